#include "compress/walk/text_loss.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "runtime/device/make_backend.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/token_source.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(kSourceFolder) / "calibration_data";

// Returns what `pare eval` gives on the sampled windows.
double evaluated(const Checkpoint& checkpoint, const TokenWindows& windows) {
  ScoredWindows data;
  data.windows = {std::min(kTextLossWindows, windows.num_windows), std::min(kTextLossTokens, windows.num_tokens), {}};
  for (int64_t n = 0; n < data.windows.num_windows; ++n) {
    const auto ids = windows.window(n * windows.num_windows / data.windows.num_windows);
    data.windows.ids_NT.insert(data.windows.ids_NT.end(), ids.begin(), ids.begin() + data.windows.num_tokens);
  }
  const std::unique_ptr<Backend> backend = make_backend({});
  Transformer model = Transformer::load(checkpoint, *backend);
  return evaluate_perplexity(model, data, nullptr).nll;
}

TEST(TextLoss, IsTheRuntimesLossOfTheSampledWindows) {
  const at::NoGradGuard no_grad;
  const Tokenizer tokenizer = Tokenizer::open(kData / "stories260k");
  const TokenWindows stories = read_token_windows(kData / "stories.txt", &tokenizer, 100, 0, true, 512);
  const Checkpoint trained = Checkpoint::open(kData / "stories260k");
  const TextLoss measured = measure_text_loss(trained, stories);
  // Both are sums of a few hundred float32 terms of about 1.
  EXPECT_NEAR(measured.loss, evaluated(trained, stories), 1e-4);
  EXPECT_EQ(measured.num_predictions, 8 * 63);
  EXPECT_TRUE(measured.is_known());
  for (const char* name : {"gemma3_local_global", "qwen3_moe_dense_block_bf16", "llama_sharded_fp16"}) {
    const Checkpoint checkpoint = Checkpoint::open(family(name));
    const TokenWindows windows = read_npy(family(name) / "ids.npy");
    const TextLoss random = measure_text_loss(checkpoint, windows);
    EXPECT_NEAR(random.loss, evaluated(checkpoint, windows), 2e-3) << name;
    EXPECT_FALSE(random.is_known()) << name << ": weights are random";
  }
}

TEST(TextLoss, IsTheSameForAnyNumberOfThreads) {
  const at::NoGradGuard no_grad;
  const Tokenizer tokenizer = Tokenizer::open(kData / "stories260k");
  const TokenWindows stories = read_token_windows(kData / "stories.txt", &tokenizer, 100, 0, true, 512);
  const Checkpoint trained = Checkpoint::open(kData / "stories260k");
  const int num_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const double expected = measure_text_loss(trained, stories).loss;
  for (const int threads : {2, 3}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(measure_text_loss(trained, stories).loss, expected) << threads;
  }
  omp_set_num_threads(num_threads);
}

TEST(TextLoss, EntropyIsThatOfAllTokens) {
  EXPECT_EQ(token_entropy({2, 2, {7, 7, 7, 7}}), 0.0);
  EXPECT_NEAR(token_entropy({2, 2, {1, 2, 3, 4}}), std::log(4.0), 1e-12);
  EXPECT_NEAR(token_entropy({1, 4, {1, 1, 1, 2}}), 0.75 * std::log(4.0 / 3.0) + 0.25 * std::log(4.0), 1e-12);
  EXPECT_NEAR(token_entropy(read_npy(kData / "windows" / "c4-smollm2.npy")), 7.2, 0.05);
}

TEST(TextLoss, NothingToPredictSaysNothing) {
  EXPECT_TRUE(measure_text_loss(Checkpoint::open(kData / "stories260k"), {3, 1, {1, 2, 3}}).is_known());
}

}  // namespace
}  // namespace pare::test
