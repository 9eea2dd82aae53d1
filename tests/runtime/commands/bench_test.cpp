#include "runtime/commands/bench.h"

#include <gtest/gtest.h>

#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

class Bench : public testing::Test {
 protected:
  void SetUp() override { clear_interrupt(); }
  void TearDown() override { clear_interrupt(); }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(detect_isa(), 1);
  Transformer model_ = Transformer::load(Checkpoint::open(family_path("mistral_window")), *backend_);
};

TEST_F(Bench, FiguresFollowFromOneAnother) {
  const BenchOptions options = {.prefill_tokens = 40, .decode_tokens = 20, .repetitions = 3};
  const BenchResult result = bench(model_, {.isa = detect_isa(), .num_threads = 1}, options);
  EXPECT_GE(result.prefill_tokens_per_second.best, result.prefill_tokens_per_second.median);
  EXPECT_GE(result.decode_tokens_per_second.best, result.decode_tokens_per_second.median);
  EXPECT_GT(result.decode_tokens_per_second.median, 0.0);
  const double gflops = static_cast<double>(result.linear_flops) * result.prefill_tokens_per_second.best / 40 / 1e9;
  EXPECT_NEAR(result.prefill_gflops, gflops, 1e-9 * gflops);
  EXPECT_NEAR(result.prefill_share * result.prefill_roof_gflops, gflops, 1e-9 * gflops);
  const double gbps = static_cast<double>(model_.bytes_per_token()) * result.decode_tokens_per_second.best / 1e9;
  EXPECT_NEAR(result.decode_gbps, gbps, 1e-9 * gbps);
  EXPECT_LE(result.lowest_read_roof_gbps, result.read_roof_gbps);
  EXPECT_LE(result.decode_share, gbps / result.lowest_read_roof_gbps * (1.0 + 1e-9));
  // The higher roof beside the only decode is the highest.
  const BenchResult once = bench(model_, {.isa = detect_isa(), .num_threads = 1},
                                 {.prefill_tokens = 40, .decode_tokens = 20, .repetitions = 1});
  EXPECT_NEAR(once.decode_share * once.read_roof_gbps, once.decode_gbps, 1e-9 * once.decode_gbps);
  EXPECT_GT(result.prefill_share, 0.0);
  EXPECT_LT(result.prefill_share, 1.0);
  EXPECT_EQ(result.kernels, model_.kernel_names());
  EXPECT_EQ(result.bytes_per_token, model_.bytes_per_token());
}

// Each step reads the weights once, for a token of every text.
TEST_F(Bench, BatchesAddUpTheirTexts) {
  const BenchOptions options = {.prefill_tokens = 8, .decode_tokens = 12, .batch = 5, .repetitions = 2};
  const BenchResult result = bench(model_, {.isa = detect_isa(), .num_threads = 1}, options);
  const double gbps = static_cast<double>(model_.bytes_per_token()) * result.decode_tokens_per_second.best / 5 / 1e9;
  EXPECT_NEAR(result.decode_gbps, gbps, 1e-9 * gbps);
  EXPECT_GT(result.decode_share, 0.0);
  EXPECT_NE(to_text(result).find("12 tokens of each of 5 texts"), std::string::npos) << to_text(result);
  const auto memory = [&](int64_t batch) {
    return cache_bytes(model_.description(),
                       bench_workload(model_.description(), {.num_threads = 1}, {.batch = batch}, 32));
  };
  EXPECT_EQ(memory(5), 5 * memory(1));
  expect_error<std::invalid_argument>(
      [&] { bench(model_, {.isa = detect_isa(), .num_threads = 1}, {.prefill_tokens = 8, .batch = 0}); },
      {"at least 1"});
}

// The texts of a batch go to several experts, whose number follows from the texts.
TEST_F(Bench, ABatchInAMixtureSaysThatItReadsMore) {
  Transformer mixture = Transformer::load(Checkpoint::open(family_path("mixtral_experts")), *backend_);
  for (const int64_t batch : {1, 3}) {
    const BenchResult result = bench(mixture, {.isa = detect_isa(), .num_threads = 1},
                                     {.prefill_tokens = 8, .decode_tokens = 4, .batch = batch, .repetitions = 1});
    EXPECT_EQ(to_text(result).find("at least") != std::string::npos, batch > 1) << to_text(result);
    EXPECT_EQ(to_json(result).find("decode_gbps_is_a_lower_bound") != std::string::npos, batch > 1);
  }
}

// Two blocks with a window of 16 tokens and 4 heads of size 16. The pairs are counted one by one.
TEST_F(Bench, WorkIsCountedFromTheShapes) {
  const ModelDescription& model = model_.description();
  int64_t num_pairs = 0, decode_pairs = 0;
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t s = 0; s <= t; ++s) num_pairs += t - s < 16 ? 1 : 0;
  }
  for (int64_t t = 8; t < 28; ++t) {
    for (int64_t s = 0; s <= t; ++s) decode_pairs += t - s < 16 ? 1 : 0;
  }
  EXPECT_EQ(attention_flops(model, 40), 2 * 4 * model.num_heads * 16 * num_pairs);
  const BenchResult result = bench(model_, {.isa = detect_isa(), .num_threads = 1},
                                   {.prefill_tokens = 40, .decode_tokens = 20, .repetitions = 1});
  const int64_t kv_width = model.num_kv_heads * 16;
  const int64_t parameters = 2 * (2 * model.num_heads * 16 * 64 + 2 * kv_width * 64 + 3 * 96 * 64);
  EXPECT_EQ(result.linear_flops, 2 * parameters * 40);
  EXPECT_EQ(result.kv_bytes_per_token, 2 * 2 * kv_width * 4 * decode_pairs / 20);
}

TEST_F(Bench, RefusesWhatCannotBeMeasured) {
  expect_error<std::invalid_argument>(
      [&] { bench(model_, {.isa = detect_isa(), .num_threads = 1}, {.prefill_tokens = 129}); }, {"129", "128"});
  expect_error<std::invalid_argument>(
      [&] { bench(model_, {.isa = detect_isa(), .num_threads = 1}, {.prefill_tokens = 8, .repetitions = 0}); },
      {"at least 1"});
  expect_error<std::invalid_argument>(
      [&] { bench(model_, {.isa = detect_isa(), .num_threads = 1}, {.prefill_tokens = 8, .decode_tokens = 121}); },
      {"prompt of 8", "121 tokens", "128"});
  request_interrupt();
  EXPECT_THROW(bench(model_, {.isa = detect_isa(), .num_threads = 1}, {.prefill_tokens = 8, .decode_tokens = 8}),
               Interrupted);
}

}  // namespace
}  // namespace pare
