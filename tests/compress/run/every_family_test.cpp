// Each kind of pass on a model of each family: what is written is read again, verified, and computes what the original
// does as far as its bits allow. The oracle is the logits of transformers for the original.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>

#include "compress/run/pipeline.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/transformer.h"
#include "tests/compress/run_pare.h"
#include "tests/golden_families.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class EveryFamily : public testing::TestWithParam<std::string> {
 protected:
  bool is_mixture() const { return description_.has_mixture(); }

  void make(const std::string& passes, const std::string& name, const std::string& more = "") {
    const Recipe recipe = parse_recipe("model: " + model_.string() + "\n" + more + "calibration: {text: " +
                                           (model_ / "ids.npy").string() + "}\npasses:\n" + passes,
                                       folder_ / "r.yaml");
    RunOptions options;
    options.output = folder_ / name;
    options.num_threads = 2;
    std::ostringstream log;
    Progress progress(ProgressStyle::silent, log);
    pare::compress::run(recipe, options, progress);
    const Verification verification = verify(folder_ / name);
    EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
    EXPECT_EQ(Checkpoint::open(folder_ / name).description().family, description_.family);
  }

  // Returns || logits - golden || / || golden ||.
  double distance(const std::string& name) const {
    const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
    Transformer model = Transformer::load(Checkpoint::open(folder_ / name), *backend);
    const TokenWindows windows = read_npy(model_ / "ids.npy");
    const std::vector<float> found = prefill_logits(model, windows.ids_NT, windows.num_windows);
    const std::vector<float> golden = read_golden_floats(model_ / "logits.npy");
    EXPECT_EQ(found.size(), golden.size());
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < golden.size(); ++i) {
      difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(golden[i]), 2.0);
      size += std::pow(static_cast<double>(golden[i]), 2.0);
    }
    return std::sqrt(difference / size);
  }

  // The share of zeros in the linears of blocks, routers left out.
  double zero_share(const std::string& name) const {
    const Checkpoint checkpoint = Checkpoint::open(folder_ / name);
    double zeros = 0.0, all = 0.0;
    for (const LinearDescription& linear : block_linears(checkpoint.description())) {
      if (linear.name.ends_with("gate") || linear.name.ends_with("router") || linear.num_in % 4 != 0) continue;
      zeros += static_cast<double>(count_zeros(checkpoint.linear(linear), {}).num_zeros);
      all += static_cast<double>(linear.num_out * linear.num_in);
    }
    return zeros / all;
  }

  const TemporaryFolder folder_{"every_family"};
  const fs::path model_ = family(GetParam());
  const ModelDescription description_ = Checkpoint::open(model_).description();
};

// Codes of 8 bits are within 1/255 of a row's range. Random rows have a range of some 5 standard deviations, so each
// product errs by some 0.006 of its size, and some dozen of them by a few hundredths. A wrong row, scale or place would
// change the logits by their own size. (In mixtures a token may go to another expert.)
TEST_P(EveryFamily, KeepsItsLogitsInEightBits) {
  make("  - rtn: {bits: 8, group_size: -1}\n", "rtn");
  EXPECT_LT(distance("rtn"), is_mixture() ? 0.3 : 0.08);
  make("  - gptq: {bits: 8, group_size: -1}\n", "gptq");
  EXPECT_LT(distance("gptq"), is_mixture() ? 0.3 : 0.05);
}

// The folds are exact, so that scaled weights of 8 bits stand for the same function.
TEST_P(EveryFamily, KeepsItsLogitsUnderScales) {
  if (is_mixture()) return;  // what its experts read is not scaled
  make("  - awq: {}\n  - rtn: {bits: 8, group_size: -1}\n", "awq");
  EXPECT_LT(distance("awq"), 0.08);
  make("  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n", "smooth");
  EXPECT_LT(distance("smooth"), 0.2);  // inputs are rounded as well
}

TEST_P(EveryFamily, IsPruned) {
  make("  - wanda: {pattern: \"2:4\"}\n", "wanda");
  EXPECT_GE(zero_share("wanda"), 0.499);
  EXPECT_LT(distance("wanda"), 1.5);
  make("  - sparsegpt: {pattern: unstructured, ratio: 0.25, allocation: layer}\n", "sparsegpt");
  EXPECT_GE(zero_share("sparsegpt"), 0.24);
}

// Blocks that are trained in float32 and in bfloat16 come nearer to the original's, or stay as they were.
TEST_P(EveryFamily, IsReconstructed) {
  const std::string gptq = "  - gptq: {bits: 4, group_size: -1}\n";
  make(gptq, "gptq");
  for (const std::string precision : {"float32", "bfloat16"}) {
    make(gptq + "  - reconstruct: {epochs: 1, precision: " + precision + "}\n", precision);
    EXPECT_LT(distance(precision), (is_mixture() ? 1.5 : 1.1) * distance("gptq")) << precision;
  }
}

// A student without its first block learns from the whole model. Its output is nearer after some steps, because the
// first block's part of it can be made up for in part.
TEST_P(EveryFamily, IsDistilled) {
  const std::string student = "student: {layers: " + std::to_string(description_.blocks.size() - 1) + "}\n";
  const auto train = [&](int64_t num_tokens, const std::string& name) {
    make("  - distill: {text: " + (model_ / "ids.npy").string() +
             ", loss: forward_kl, batch: 2, precision: float32, learning_rate: 0.003, validations: 1, "
             "validation_windows: 2, "
             "validation_text: " +
             (model_ / "ids.npy").string() + ", total_tokens: " + std::to_string(num_tokens) + "}\n",
         name, student);
  };
  train(128, "short");
  train(128 * 30, "long");
  EXPECT_LT(distance("long"), distance("short"));
}

INSTANTIATE_TEST_SUITE_P(Goldens, EveryFamily, testing::ValuesIn(golden_families()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace pare::test
