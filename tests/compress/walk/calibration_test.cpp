// Checks statistics and stores of the calibration against float64 and against each other.
#include "compress/walk/statistics.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "compress/walk/block_walk.h"
#include "compress/walk/hidden_store.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// Returns activations with the properties that make H hard: channels of very different size, a common direction, and
// rare large values.
at::Tensor make_activations(int64_t num_rows, int64_t width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  at::Tensor x_RI = at::empty({num_rows, width}, at::kFloat);
  float* x = x_RI.data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r) {
    const float common = normal(random);
    for (int64_t i = 0; i < width; ++i) {
      const float size = std::exp(3.0f * std::sin(static_cast<float>(i)));
      x[r * width + i] = size * (normal(random) + common) * (random() % 997 == 0 ? 100.0f : 1.0f);
    }
  }
  return x_RI;
}

LayerStatistics collect(const at::Tensor& x_RI, int64_t num_windows, int64_t num_tokens, StatisticsNeed need) {
  const std::vector<int64_t> rows = draw_sorted(num_windows * num_tokens, kNumSampleRows, 7);
  StatisticsAccumulator accumulator("test", x_RI.size(1), num_windows, num_tokens, rows, need);
  const int64_t group = chunk_windows(num_tokens);
  for (int64_t first = 0; first < num_windows; first += group) {
    const int64_t count = std::min(group, num_windows - first);
    for (int64_t n = first; n < first + count; ++n) {
      accumulator.observe(n, x_RI.narrow(0, n * num_tokens, num_tokens));
    }
    accumulator.accumulate(first, x_RI.narrow(0, first * num_tokens, count * num_tokens));
  }
  return accumulator.finish();
}

// Tests the bound that compress/walk/statistics.h promises. Widths are one tile, several equal ones, and several with a
// ragged last one.
TEST(Statistics, HessianEqualsFloat64) {
  for (const int64_t width : {40, 300, 576}) {
    const int64_t num_windows = 21, num_tokens = 512;
    const at::Tensor x_RI = make_activations(num_windows * num_tokens, width, 1);
    const LayerStatistics statistics = collect(x_RI, num_windows, num_tokens, StatisticsNeed::hessian);
    const at::Tensor wide_RI = x_RI.to(at::kDouble);
    const at::Tensor expected_II = wide_RI.t().mm(wide_RI).div_(static_cast<double>(x_RI.size(0)));
    const double error = statistics.hessian_II.to(at::kDouble).sub(expected_II).norm().item<double>();
    EXPECT_LE(error, 1e-5 * expected_II.norm().item<double>()) << "width " << width;
    EXPECT_TRUE(statistics.hessian_II.equal(statistics.hessian_II.t())) << "width " << width;
    EXPECT_TRUE(statistics.hessian_diagonal_I.equal(statistics.hessian_II.diagonal()));
  }
}

TEST(Statistics, RangesEqualPlainLoops) {
  const int64_t num_windows = 5, num_tokens = 100, width = 30;
  const at::Tensor x_RI = make_activations(num_windows * num_tokens, width, 2);
  const LayerStatistics statistics = collect(x_RI, num_windows, num_tokens, StatisticsNeed::hessian_diagonal);
  EXPECT_FALSE(statistics.hessian_II.defined());
  EXPECT_EQ(statistics.num_tokens, 500);
  const float* x = x_RI.const_data_ptr<float>();
  for (int64_t i = 0; i < width; ++i) {
    float minimum = x[i], maximum = x[i];
    double sum_abs = 0.0, sum_squares = 0.0;
    for (int64_t r = 0; r < 500; ++r) {
      const float value = x[r * width + i];
      minimum = std::min(minimum, value);
      maximum = std::max(maximum, value);
      sum_abs += std::fabs(value);
      sum_squares += static_cast<double>(value) * value;
    }
    EXPECT_EQ(statistics.min_I[i].item<float>(), minimum);
    EXPECT_EQ(statistics.max_I[i].item<float>(), maximum);
    EXPECT_NEAR(statistics.mean_abs_I[i].item<float>(), sum_abs / 500, 1e-5 * sum_abs / 500);
    EXPECT_NEAR(statistics.hessian_diagonal_I[i].item<float>(), sum_squares / 500, 1e-5 * sum_squares / 500);
  }
}

TEST(Statistics, SampleHoldsTheDrawnRows) {
  const int64_t num_windows = 9, num_tokens = 100, width = 8;
  const at::Tensor x_RI = make_activations(num_windows * num_tokens, width, 3);
  const LayerStatistics statistics = collect(x_RI, num_windows, num_tokens, StatisticsNeed::hessian_diagonal);
  const std::vector<int64_t> rows = draw_sorted(900, kNumSampleRows, 7);
  ASSERT_EQ(statistics.sample_RI.size(0), kNumSampleRows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(statistics.sample_RI[static_cast<int64_t>(i)].equal(x_RI[rows[i]])) << "row " << rows[i];
  }
}

TEST(Statistics, DrawnRowsAreDistinctSortedAndSeeded) {
  const std::vector<int64_t> rows = draw_sorted(10000, 512, 1);
  ASSERT_EQ(rows.size(), 512u);
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows[i - 1], rows[i]);
  EXPECT_EQ(rows, draw_sorted(10000, 512, 1));
  EXPECT_NE(rows, draw_sorted(10000, 512, 2));
  EXPECT_EQ(draw_sorted(3, 512, 1), (std::vector<int64_t>{0, 1, 2}));
  // The draws are uniform: the mean of 512 draws from 0 .. 9999 has a standard error of 128.
  double mean = 0.0;
  for (const int64_t row : rows) mean += static_cast<double>(row) / 512.0;
  EXPECT_NEAR(mean, 5000.0, 5 * 128.0);
}

TEST(Statistics, AnyNumberOfThreadsGivesTheSameBits) {
  const at::Tensor x_RI = make_activations(20 * 256, 576, 4);
  at::Tensor first_II;
  for (const int num_threads : {1, 2, 3}) {
    omp_set_num_threads(num_threads);
    const LayerStatistics statistics = collect(x_RI, 20, 256, StatisticsNeed::hessian);
    if (!first_II.defined()) first_II = statistics.hessian_II;
    EXPECT_TRUE(first_II.equal(statistics.hessian_II)) << num_threads << " threads";
  }
  omp_set_num_threads(2);
}

TEST(Statistics, NotFiniteActivationsAreNamed) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    at::Tensor x_TI = make_activations(10, 6, 5);
    x_TI.data_ptr<float>()[4 * 6 + 2] = bad;
    StatisticsAccumulator accumulator("model.layers.1, attention input", 6, 3, 10, {}, StatisticsNeed::hessian);
    try {
      accumulator.observe(2, x_TI);
      FAIL() << "accepted";
    } catch (const UnusableInput& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("model.layers.1, attention input"), std::string::npos) << message;
      EXPECT_NE(message.find("window 2, token 4, channel 2"), std::string::npos) << message;
    }
  }
}

TEST(Statistics, MissingWindowsAreRefused) {
  StatisticsAccumulator accumulator("test", 6, 2, 10, {}, StatisticsNeed::hessian);
  const at::Tensor x_TI = make_activations(10, 6, 6);
  accumulator.observe(0, x_TI);
  EXPECT_THROW(accumulator.finish(), std::invalid_argument);
  EXPECT_THROW(accumulator.accumulate(1, x_TI), std::invalid_argument);
}

TEST(HiddenStore, SpilledAndResidentStoresHoldTheSame) {
  const fs::path directory = fs::temp_directory_path() / ("pare-store-" + std::to_string(getpid()));
  fs::create_directories(directory);
  {
    HiddenStore resident({6, 50, 40});
    HiddenStore spilled({6, 50, 40, /*spilled=*/true}, directory);
    EXPECT_TRUE(fs::is_empty(directory)) << "the spill file has a name";
    for (int64_t n = 0; n < 6; ++n) {
      const at::Tensor x = make_activations(50, 40, static_cast<uint32_t>(n));
      for (const HiddenStore* store : {&resident, &spilled}) store->windows(n, 1, 40).copy_(x);
      spilled.release(n, 1, 40);
    }
    for (int64_t n = 0; n < 6; ++n) {
      EXPECT_TRUE(resident.windows(n, 1, 40).equal(spilled.windows(n, 1, 40)));
      EXPECT_TRUE(spilled.windows(n, 1, 40).equal(make_activations(50, 40, static_cast<uint32_t>(n))));
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(resident.windows(3, 1, 40).data_ptr()) % 64,
              reinterpret_cast<uintptr_t>(spilled.windows(3, 1, 40).data_ptr()) % 64);
    EXPECT_THROW(resident.windows(5, 2, 40), std::invalid_argument);
  }
  fs::remove_all(directory);
}

TEST(HiddenStore, NotEnoughDiskIsAnErrorAtOnce) {
  const fs::path directory = fs::temp_directory_path() / ("pare-store-full-" + std::to_string(getpid()));
  fs::create_directories(directory);
  EXPECT_THROW(HiddenStore({int64_t{1} << 20, 4096, 4096, /*spilled=*/true}, directory), std::runtime_error);  // 64 TiB
  EXPECT_TRUE(fs::is_empty(directory));
  fs::remove_all(directory);
}

}  // namespace
}  // namespace pare
