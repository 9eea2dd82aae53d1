// Compares the memory predicted for the evaluation of a run's result with the memory that it held.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "runtime/files/npy.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class EvaluationMemory : public testing::Test {
 protected:
  nlohmann::json run(std::vector<std::string> more) {
    more.insert(more.begin(), {"run", (folder_ / "r.yaml").string(), "--out", (folder_ / "out").string(), "--threads",
                               "2", "--json"});
    const Outcome outcome = run_pare(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  // The prediction must never be less than what is held, or --max-memory would not be kept. It must not be so much more
  // that it refuses what fits.
  void expect_right(const fs::path& model, const fs::path& windows, const std::string& passes,
                    const std::string& options) {
    write_text(folder_ / "r.yaml", "model: " + model.string() + "\ncalibration: {text: " + windows.string() +
                                       ", samples: 2}\npasses:\n" + passes +
                                       "evaluate:\n  - perplexity: {text: " + windows.string() + options + "}\n");
    const auto predicted = run({"--dry-run"}).at("predicted_peak_memory_bytes").get<double>();
    const auto held = run({}).at("peak_memory_bytes").get<double>();
    EXPECT_LE(held, predicted) << passes << options;
    EXPECT_LE(predicted, 1.3 * held) << passes << options;
    fs::remove_all(folder_ / "out");
  }
  TemporaryFolder folder_{"evaluation_memory"};
};

TEST_F(EvaluationMemory, IsWhatWasPredictedOfATinyModel) {
  const fs::path model = family("llama_gqa_untied");
  for (const char* options : {"", ", reference: false"}) {
    expect_right(model, model / "ids.npy", "  - rtn: {bits: 4, group_size: 32}\n", options);
  }
}

// The model has two blocks of SmolLM2's shape, whose values do not matter. There are windows that fill a batch and a
// window that does not.
TEST_F(EvaluationMemory, IsWhatWasPredictedOfARealShape) {
  const char* const python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
  const std::string command = std::string(python) + " '" + kSourceFolder + "/tests/bench/make_random_model.py' '" +
                              (folder_ / "model").string() + "' --shape smollm2 --blocks 2";
  ASSERT_EQ(std::system(command.c_str()), 0);
  TokenWindows windows{.num_windows = 8, .num_tokens = 512, .ids_NT = {}};
  for (int32_t i = 0; i < 8 * 512; ++i) windows.ids_NT.push_back(i * 7919 % 49152);
  write_npy(folder_ / "windows.npy", windows);
  for (const char* options : {"", ", windows: 1", ", reference: false"}) {
    expect_right(folder_ / "model", folder_ / "windows.npy", "  - rtn: {bits: 4, group_size: 64}\n", options);
  }
  expect_right(folder_ / "model", folder_ / "windows.npy", "  - rtn: {bits: 8, group_size: -1, activations: int8}\n",
               ", windows: 1");
}

}  // namespace
}  // namespace pare::test
