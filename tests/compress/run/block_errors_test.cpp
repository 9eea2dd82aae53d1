// What a run says of the error behind each block, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/evaluate/perplexity.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/compress/walk/plain_forward.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The errors are ratios of sums of squares of differences. Float32 gives a state with a relative error of some 1e-6,
// and the difference of states that are 1 % apart with 1e-4.
TEST(BlockErrors, AreThoseOfPlainLoopsOverBothModels) {
  const TemporaryFolder folder("block-errors");
  const fs::path model = fs::path(kSourceFolder) / "calibration_data/stories260k",
                 text = fs::path(kSourceFolder) / "calibration_data/stories.txt";
  write_text(folder / "recipe.yaml", "model: " + model.string() +
                                         "\npasses:\n  - magnitude: {pattern: unstructured, ratio: 0.3, resolve: "
                                         "0}\nevaluate:\n  - perplexity: {text: " +
                                         text.string() + ", context: 130, windows: 2}\n");
  const Outcome outcome =
      run_pare({"run", (folder / "recipe.yaml").string(), "--out", (folder / "out").string(), "--quiet"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = Json::parse(read_text_file(folder / "out" / "report.json"));
  const std::vector<double> found = report.at("perplexity").at(0).at("block_errors");

  const Checkpoint original = Checkpoint::open(model), pruned = Checkpoint::open(folder / "out");
  const Tokenizer tokenizer = Tokenizer::open(model);
  const ScoredWindows data =
      make_scored_windows(text, &tokenizer, original.description(), {.context = 130, .num_windows = 2});
  ASSERT_EQ(observed_rows(130), 2);
  const size_t num_blocks = original.description().blocks.size();
  std::vector<double> squares(num_blocks), differences(num_blocks);
  for (int64_t n = 0; n < 2; ++n) {
    std::vector<PlainForward::Rows> expected, changed;
    PlainForward(original).logits(data.windows.window(n), std::nullopt, &expected);
    PlainForward(pruned).logits(data.windows.window(n), std::nullopt, &changed);
    for (size_t block = 0; block < num_blocks; ++block) {
      for (const size_t t : {128, 129}) {
        for (size_t i = 0; i < expected[block][t].size(); ++i) {
          squares[block] += std::pow(expected[block][t][i], 2.0);
          differences[block] += std::pow(changed[block][t][i] - expected[block][t][i], 2.0);
        }
      }
    }
  }
  ASSERT_EQ(found.size(), num_blocks);
  for (size_t block = 0; block < num_blocks; ++block) {
    const double expected = differences[block] / squares[block];
    EXPECT_GT(expected, 1e-4);
    EXPECT_NEAR(found[block], expected, 1e-3 * expected) << block;
  }
}

}  // namespace
}  // namespace pare::test
