#include "quant/gptq.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "quant/rtn.h"
#include "tests/quant/column_twin.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

constexpr ActOrder kAllOrders[] = {ActOrder::none, ActOrder::static_groups, ActOrder::group};

GptqOptions options_for(int bits, int64_t group_size, bool symmetric, ActOrder act_order,
                        ScaleSearch scales = ScaleSearch::hessian_diagonal) {
  return {.grid = {bits, group_size, symmetric, scales, DType::BF16}, .act_order = act_order};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no std::invalid_argument";
}

TEST(Gptq, EqualsRoundingWhenHessianIsDiagonal) {
  const int64_t num_in = 160;
  const at::Tensor weight = random_weight(100, num_in, 1);
  const at::Tensor hessian = at::diag(random_hessian(num_in, 2).diagonal());
  for (const at::Tensor& h : {hessian, at::eye(num_in, at::kFloat)}) {
    for (const ActOrder act_order : {ActOrder::none, ActOrder::static_groups}) {
      const GptqOptions options = options_for(4, 32, false, act_order);
      const GptqResult result = gptq(weight, h, options);
      const QuantizedWeight rounded = rtn(weight, h.diagonal().contiguous(), options.grid);
      EXPECT_EQ(result.weight.codes_OI, rounded.codes_OI);
      EXPECT_EQ(result.weight.scales_OG, rounded.scales_OG);
      EXPECT_EQ(result.weight.zeros_OG, rounded.zeros_OG);
      EXPECT_EQ(result.events.damping_used, options.damping);
      EXPECT_EQ(result.events.num_dead_columns, 0);
      EXPECT_FALSE(result.events.fell_back_to_rounding);
    }
  }
}

TEST(Gptq, GroupOrderWithDiagonalHessianEqualsRoundingOfSortedColumns) {
  const at::Tensor weight = random_weight(20, 64, 3);
  const at::Tensor diagonal = random_hessian(64, 4).diagonal().contiguous();
  const GptqOptions options = options_for(3, 16, true, ActOrder::group);
  const GptqResult result = gptq(weight, at::diag(diagonal), options);
  const std::vector<int64_t> order = oracle_order(at::diag(diagonal), ActOrder::group);
  const at::Tensor index = at::tensor(order);
  const QuantizedWeight rounded = rtn(weight.index_select(1, index), diagonal.index_select(0, index), options.grid);
  EXPECT_EQ(result.weight.scales_OG, rounded.scales_OG);
  for (int64_t row = 0; row < 20; ++row) {
    for (int64_t p = 0; p < 64; ++p) {
      EXPECT_EQ(result.weight.group_of_I[order[p]], p / 16);
      EXPECT_EQ(result.weight.codes_OI[row * 64 + order[p]], rounded.codes_OI[row * 64 + p]);
    }
  }
}

struct TwinCase {
  int64_t num_out, num_in, group_size, block_size;
};

class GptqTwin : public testing::TestWithParam<TwinCase> {};

TEST_P(GptqTwin, ChoosesTheCodesOfOptimalBrainQuantization) {
  const auto [num_out, num_in, group_size, block_size] = GetParam();
  const at::Tensor weight = random_weight(num_out, num_in, 5), hessian = random_hessian(num_in, 6);
  int64_t num_rows = 0, num_rows_left = 0;
  for (const ActOrder act_order : kAllOrders) {
    const std::vector<int64_t> order = oracle_order(hessian, act_order);
    const Matrix rows = elimination_rows(hessian, 0.01, order);
    for (const int bits : {2, 3, 4, 8}) {
      for (const bool symmetric : {true, false}) {
        GptqOptions options = options_for(bits, group_size, symmetric, act_order);
        options.block_size = block_size;
        const GptqResult result = gptq(weight, hessian, options);
        validate(result.weight, "result");
        const OracleComparison comparison =
            compare(result.weight, optimal_brain_quantization(weight, rows, result.weight, order), order);
        EXPECT_EQ(comparison.num_wrong_rows, 0) << bits << " bits, order " << int(act_order);
        num_rows += num_out;
        num_rows_left += comparison.num_rows_left_at_ties;
      }
    }
  }
  EXPECT_LE(num_rows_left * 20, num_rows) << "so many ties that the comparison says little";
}

INSTANTIATE_TEST_SUITE_P(Shapes, GptqTwin,
                         testing::Values(TwinCase{5, 12, 4, 128}, TwinCase{3, 7, kPerChannel, 128},
                                         TwinCase{1, 96, 32, 32}, TwinCase{100, 64, 32, 7}, TwinCase{9, 200, 40, 128},
                                         TwinCase{9, 172, kPerChannel, 128}, TwinCase{20, 160, 32, 1},
                                         TwinCase{97, 160, 32, 32}, TwinCase{20, 160, 32, 1000}));

GridOptions grid_of(const WeightCode& code, ScaleSearch scales = ScaleSearch::hessian_diagonal) {
  return {.bits = code.width(),
          .group_size = code.block == 0 ? 32 : code.block,
          .scales = scales,
          .scale_dtype = code.scale_dtype.value_or(DType::BF16),
          .code = &code};
}

TEST(Gptq, ChoosesTheValuesOfATableAsOptimalBrainQuantization) {
  const at::Tensor weight = random_weight(40, 96, 15), hessian = random_hessian(96, 16);
  int64_t num_rows_left = 0;
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code, &kNf4Code}) {
    for (const ActOrder act_order : {ActOrder::none, ActOrder::static_groups}) {
      const std::vector<int64_t> order = oracle_order(hessian, act_order);
      const GptqOptions options{.grid = grid_of(*code), .act_order = act_order};
      const GptqResult result = gptq(weight, hessian, options);
      validate(result.weight, "result");
      const OracleCodes expected =
          optimal_brain_quantization(weight, elimination_rows(hessian, 0.01, order), result.weight, order);
      const OracleComparison comparison = compare(result.weight, expected, order);
      EXPECT_EQ(comparison.num_wrong_rows, 0) << code->name << ", order " << int(act_order);
      num_rows_left += comparison.num_rows_left_at_ties;
      const QuantizedWeight rounded = rtn(weight, hessian.diagonal().contiguous(), options.grid);
      std::vector<float> values = dequantize(rounded);
      const double error = trace_error(weight, at::from_blob(values.data(), weight.sizes(), at::kFloat), hessian);
      EXPECT_LT(result.trace_error, error) << code->name;
    }
  }
  EXPECT_LE(num_rows_left, 12) << "so many ties that the comparison says little";
}

TEST(Gptq, TheComparisonWithTheOracleFindsPlantedFaults) {
  const at::Tensor weight = random_weight(4, 32, 7), hessian = random_hessian(32, 8);
  GptqResult result = gptq(weight, hessian, options_for(4, 32, true, ActOrder::none));
  const std::vector<int64_t> order = oracle_order(hessian, ActOrder::none);
  const auto expected = [&](double damping) {
    return optimal_brain_quantization(weight, elimination_rows(hessian, damping, order), result.weight, order);
  };
  EXPECT_EQ(compare(result.weight, expected(0.01), order).num_wrong_rows, 0);
  EXPECT_GT(compare(result.weight, expected(0.0), order).num_wrong_rows, 0);
  for (const int64_t i : {0, 37, 4 * 32 - 1}) {
    QuantizedWeight faulty = result.weight;
    faulty.codes_OI[i] ^= 1;
    EXPECT_EQ(compare(faulty, expected(0.01), order).num_wrong_rows, 1);
  }
}

TEST(Gptq, GridsAreSearchedOnTheOriginalWeights) {
  const at::Tensor weight = random_weight(10, 96, 9), hessian = random_hessian(96, 10);
  for (const bool symmetric : {true, false}) {
    const GptqOptions options = options_for(3, 32, symmetric, ActOrder::static_groups);
    const GptqResult result = gptq(weight, hessian, options);
    const QuantizedWeight rounded = rtn(weight, hessian.diagonal().contiguous(), options.grid);
    EXPECT_EQ(result.weight.scales_OG, rounded.scales_OG);
    EXPECT_EQ(result.weight.zeros_OG, rounded.zeros_OG);
    EXPECT_TRUE(result.weight.group_of_I.empty());
  }
}

TEST(Gptq, ConditionalVariancesAreTheInverseDiagonalsInverses) {
  const int64_t n = 40;
  const at::Tensor weight = random_weight(10, n, 40), hessian = random_hessian(n, 41);
  for (const ActOrder act_order : kAllOrders) {
    const GptqOptions options = options_for(3, 8, false, act_order, ScaleSearch::hessian);
    const GptqFactor factor = factorize(hessian, options);
    std::vector<int64_t> storage(n);
    std::iota(storage.begin(), storage.end(), 0);
    const Matrix rows = elimination_rows(hessian, options.damping, storage);  // nothing is eliminated in row 0
    Matrix damped(n, std::vector<double>(n));
    double mean = 0.0;
    for (int64_t i = 0; i < n; ++i) mean += floats(hessian)[i * n + i] / double(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) damped[i][j] = floats(hessian)[i * n + j] + (i == j) * options.damping * mean;
    }
    const Matrix inverted = inverse(damped);
    EXPECT_NEAR(floats(factor.conditional_I)[0], 1.0 / rows[0][0], 1e-6 / rows[0][0]);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(floats(factor.conditional_I)[i], 1.0 / inverted[i][i], 1e-6 / inverted[i][i]);
    }
    if (act_order == ActOrder::group) continue;
    const Grid grid = search_grid(weight, factor.conditional_I, options.grid);
    const GptqResult result = gptq(weight, factor, options);
    EXPECT_TRUE(std::equal(result.weight.scales_OG.begin(), result.weight.scales_OG.end(), floats(grid.scales_OG)));
  }
}

TEST(Gptq, OrderOfColumnsIsAPermutation) {
  // Static and group order are by definition storage order on permuted columns. With one group per row, and grids that
  // do not depend on the order of a sum, static order differs from it in nothing else.
  const at::Tensor weight = random_weight(30, 192, 11), hessian = random_hessian(192, 12);
  const std::vector<int64_t> order = oracle_order(hessian, ActOrder::group);
  const at::Tensor index = at::tensor(order);
  const at::Tensor sorted = weight.index_select(1, index);
  const at::Tensor sorted_hessian = hessian.index_select(0, index).index_select(1, index);
  const auto expect_permuted = [&](const GptqResult& found, const GptqResult& expected) {
    EXPECT_EQ(found.weight.scales_OG, expected.weight.scales_OG);
    for (int64_t row = 0; row < 30; ++row) {
      for (int64_t p = 0; p < 192; ++p) {
        ASSERT_EQ(found.weight.codes_OI[row * 192 + order[p]], expected.weight.codes_OI[row * 192 + p]);
      }
    }
  };
  const auto channel = [](ActOrder act_order) {
    return options_for(4, kPerChannel, true, act_order, ScaleSearch::minmax);
  };
  expect_permuted(gptq(weight, hessian, channel(ActOrder::static_groups)),
                  gptq(sorted, sorted_hessian, channel(ActOrder::none)));
  expect_permuted(gptq(weight, hessian, channel(ActOrder::group)),
                  gptq(sorted, sorted_hessian, channel(ActOrder::none)));
  expect_permuted(gptq(weight, hessian, options_for(4, 32, true, ActOrder::group)),
                  gptq(sorted, sorted_hessian, options_for(4, 32, true, ActOrder::none)));
}

TEST(Gptq, ReportsTheTraceErrorOfItsResult) {
  const at::Tensor weight = random_weight(8, 96, 13), hessian = random_hessian(96, 14);
  for (const ActOrder act_order : kAllOrders) {
    const GptqResult result = gptq(weight, hessian, options_for(4, 32, false, act_order));
    const double expected = plain_trace_error(weight, dequantize(result.weight), hessian);
    const double signal = plain_trace_error(weight, std::vector<float>(8 * 96, 0.0f), hessian);
    // The terms of the sum cancel, and H differs from its transpose by float32 rounding.
    EXPECT_NEAR(result.trace_error, expected, 1e-5 * expected);
    EXPECT_NEAR(result.relative_error, expected / signal, 2e-5 * result.relative_error);
  }
}

TEST(Gptq, HasLessErrorThanRounding) {
  const at::Tensor weight = random_weight(32, 160, 15), hessian = random_hessian(160, 16);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const ActOrder act_order : kAllOrders) {
        const GptqOptions options = options_for(bits, 32, symmetric, act_order);
        const QuantizedWeight rounded = rtn(weight, hessian.diagonal().contiguous(), options.grid);
        const double rounding_error = plain_trace_error(weight, dequantize(rounded), hessian);
        EXPECT_LT(gptq(weight, hessian, options).trace_error, 0.7 * rounding_error) << bits;
      }
    }
  }
}

TEST(Gptq, LiesBetweenTheBestPossibleCodesAndRounding) {
  constexpr int64_t kRows = 40, kColumns = 6;
  const at::Tensor weight = random_weight(kRows, kColumns, 17), hessian = random_hessian(kColumns, 18);
  const GptqOptions options = options_for(2, kPerChannel, true, ActOrder::static_groups);
  const GptqResult result = gptq(weight, hessian, options);
  const QuantizedWeight rounded = rtn(weight, hessian.diagonal().contiguous(), options.grid);
  double total = 0.0, total_of_rounding = 0.0, total_of_best = 0.0;
  for (int64_t row = 0; row < kRows; ++row) {
    const at::Tensor weight_row = weight.narrow(0, row, 1);
    const auto error_of = [&](const std::function<int(int64_t)>& code_of) {
      std::vector<float> values(kColumns);
      for (int64_t i = 0; i < kColumns; ++i) values[i] = result.weight.scales_OG[row] * float(code_of(i) - 2);
      return plain_trace_error(weight_row, values, hessian);
    };
    double best = std::numeric_limits<double>::infinity();
    for (int combination = 0; combination < 1 << (2 * kColumns); ++combination) {
      best = std::min(best, error_of([&](int64_t i) { return combination >> (2 * i) & 3; }));
    }
    const double error = error_of([&](int64_t i) { return result.weight.codes_OI[row * kColumns + i]; });
    EXPECT_GE(error, best);
    total += error;
    total_of_best += best;
    total_of_rounding += error_of([&](int64_t i) { return rounded.codes_OI[row * kColumns + i]; });
  }
  EXPECT_LT(total, total_of_rounding);
  EXPECT_LT(total - total_of_best, 0.6 * (total_of_rounding - total_of_best));
}

TEST(Gptq, LayersOfOneInputShareAFactor) {
  const at::Tensor hessian = random_hessian(64, 19);
  const GptqOptions options = options_for(4, 32, true, ActOrder::static_groups);
  const GptqFactor factor = factorize(hessian, options);
  for (const int64_t num_out : {1, 96, 130}) {
    const at::Tensor weight = random_weight(num_out, 64, 20);
    const GptqResult shared = gptq(weight, factor, options), alone = gptq(weight, hessian, options);
    EXPECT_EQ(shared.weight.codes_OI, alone.weight.codes_OI);
    EXPECT_EQ(shared.trace_error, alone.trace_error);
  }
  GptqOptions other = options;
  other.damping = 0.1;
  EXPECT_THROW(gptq(random_weight(4, 64, 20), factor, other), std::invalid_argument);
  EXPECT_THROW(gptq(random_weight(4, 32, 20), factor, options), std::invalid_argument);
}

TEST(Gptq, DeadColumnsAreRoundedAndChangeNoOther) {
  const int64_t num_in = 40;
  const std::vector<int64_t> dead = {0, 17, 39};
  const at::Tensor weight = random_weight(12, num_in, 21);
  at::Tensor hessian = random_hessian(num_in, 22);
  std::vector<int64_t> live;
  for (int64_t i = 0; i < num_in; ++i) {
    if (std::find(dead.begin(), dead.end(), i) == dead.end()) live.push_back(i);
  }
  for (const int64_t i : dead) {
    hessian.select(0, i).zero_();
    hessian.select(1, i).zero_();
    weight.select(1, i).mul_(0.1);  // does not set the range of its row
  }
  const at::Tensor index = at::tensor(live);
  for (const ActOrder act_order : kAllOrders) {
    const GptqOptions options = options_for(4, kPerChannel, true, act_order, ScaleSearch::minmax);
    const GptqResult result = gptq(weight, hessian, options);
    EXPECT_EQ(result.events.num_dead_columns, 3);
    EXPECT_EQ(result.events.damping_used, options.damping);
    const QuantizedWeight rounded = rtn(weight, {}, options.grid);
    const GptqResult without =
        gptq(weight.index_select(1, index), hessian.index_select(0, index).index_select(1, index), options);
    for (int64_t row = 0; row < 12; ++row) {
      for (const int64_t i : dead)
        EXPECT_EQ(result.weight.codes_OI[row * num_in + i], rounded.codes_OI[row * num_in + i]);
      for (size_t p = 0; p < live.size(); ++p) {
        EXPECT_EQ(result.weight.codes_OI[row * num_in + live[p]], without.weight.codes_OI[row * live.size() + p]);
      }
    }
    EXPECT_NEAR(result.trace_error, without.trace_error, 1e-9 * without.trace_error);
  }
}

TEST(Gptq, AllColumnsDeadIsRounding) {
  const at::Tensor weight = random_weight(4, 32, 23);
  const GptqResult result = gptq(weight, at::zeros({32, 32}, at::kFloat), options_for(4, 32, true, ActOrder::group));
  // Without importance every shrink factor is as good, so the largest is taken: that of min-max.
  const Grid widest = search_grid(weight, {}, {4, 32, true, ScaleSearch::minmax, DType::BF16});
  const GridOptions options{4, 32, true, ScaleSearch::hessian_diagonal, DType::BF16};
  EXPECT_EQ(result.weight.codes_OI, round_to_grid(weight, widest, options).codes_OI);
  EXPECT_EQ(result.events.num_dead_columns, 32);
  EXPECT_EQ(result.trace_error, 0.0);
  EXPECT_EQ(result.relative_error, 0.0);
}

// A 2 x 2 matrix with diagonal 1 and c off the diagonal has the eigenvalues 1 - c and 1 + c.
at::Tensor coupled_hessian(float c) {
  at::Tensor hessian = at::eye(4, at::kFloat);
  hessian.mutable_data_ptr<float>()[1] = c;
  hessian.mutable_data_ptr<float>()[4] = c;
  return hessian;
}

TEST(Gptq, ClimbsTheDampingLadderUntilTheHessianIsPositiveDefinite) {
  const at::Tensor weight = random_weight(3, 4, 24);
  const auto damping_used = [&](float c, double damping) {
    GptqOptions options = options_for(4, kPerChannel, true, ActOrder::none);
    options.damping = damping;
    const GptqResult result = gptq(weight, coupled_hessian(c), options);
    EXPECT_FALSE(result.events.fell_back_to_rounding);
    return result.events.damping_used;
  };
  EXPECT_DOUBLE_EQ(damping_used(0.5f, 0.0), 0.0);
  EXPECT_DOUBLE_EQ(damping_used(1.0f, 0.0), 0.01);
  EXPECT_DOUBLE_EQ(damping_used(1.0f, 0.01), 0.01);
  EXPECT_DOUBLE_EQ(damping_used(1.05f, 0.01), 0.1);
  EXPECT_DOUBLE_EQ(damping_used(1.5f, 0.01), 1.0);
  EXPECT_DOUBLE_EQ(damping_used(1.5f, 0.03), 1.0);
}

TEST(Gptq, FewerInputsThanColumnsClimbFromZeroDamping) {
  // A matrix of rank 1 has float64 pivots of rounding size. Some are positive, and the check of the factor must refuse
  // them.
  const at::Tensor x = random_weight(1, 48, 25);
  GptqOptions options = options_for(4, kPerChannel, true, ActOrder::static_groups);
  options.damping = 0.0;
  const GptqResult result = gptq(random_weight(3, 48, 26), x.t().matmul(x), options);
  EXPECT_DOUBLE_EQ(result.events.damping_used, 0.01);
  EXPECT_FALSE(result.events.fell_back_to_rounding);
}

TEST(Gptq, FallsBackToRoundingWhenNoDampingHelps) {
  const at::Tensor weight = random_weight(3, 4, 27), hessian = coupled_hessian(2.5f);
  for (const ActOrder act_order : kAllOrders) {
    const GptqOptions options = options_for(4, kPerChannel, true, act_order);
    const GptqResult result = gptq(weight, hessian, options);
    EXPECT_TRUE(result.events.fell_back_to_rounding);
    EXPECT_EQ(result.events.damping_used, 1.0);
    EXPECT_EQ(result.weight.codes_OI, rtn(weight, hessian.diagonal().contiguous(), options.grid).codes_OI);
  }
}

TEST(Gptq, BadHessiansAreRefusedByElement) {
  const at::Tensor weight = random_weight(3, 32, 28), good = random_hessian(32, 29);
  const auto message_with = [&](int64_t i, int64_t j, float value) {
    at::Tensor hessian = good.clone();
    hessian.mutable_data_ptr<float>()[i * 32 + j] = value;
    return message_of([&] { gptq(weight, hessian, options_for(4, 32, true, ActOrder::none)); });
  };
  EXPECT_NE(message_with(3, 30, NAN).find("Hessian[3, 30] is nan"), std::string::npos);
  EXPECT_NE(message_with(31, 31, INFINITY).find("Hessian[31, 31] is inf"), std::string::npos);
  EXPECT_NE(message_with(5, 5, -1.0f).find("Hessian[5, 5] is -1; expected no negative value"), std::string::npos);
  EXPECT_NE(message_with(7, 2, 1e3f).find("Hessian[7, 2]"), std::string::npos);
  EXPECT_NE(message_with(2, 7, 1e3f).find("Hessian[7, 2]"), std::string::npos);
  const GptqOptions options = options_for(4, 32, true, ActOrder::none);
  EXPECT_THROW(gptq(weight, random_hessian(16, 29), options), std::invalid_argument);
  EXPECT_THROW(gptq(weight, at::zeros({32, 31}, at::kFloat), options), std::invalid_argument);
  EXPECT_THROW(gptq(weight, at::Tensor(), options), std::invalid_argument);
}

TEST(Gptq, BadWeightsAndOptionsAreRefused) {
  const at::Tensor weight = random_weight(3, 32, 30), hessian = random_hessian(32, 31);
  const GptqOptions good = options_for(4, 32, true, ActOrder::group);
  at::Tensor bad = weight.clone();
  bad.mutable_data_ptr<float>()[32 + 4] = NAN;
  EXPECT_NE(
      message_of([&] { gptq(bad, hessian, options_for(4, 32, true, ActOrder::none)); }).find("weight[1, 4] is nan"),
      std::string::npos);
  EXPECT_NE(message_of([&] { gptq(bad, hessian, good); }).find("weight[1, 4] is nan"), std::string::npos);
  for (const double damping : {-0.01, 1.5, double(NAN)}) {
    GptqOptions options = good;
    options.damping = damping;
    EXPECT_THROW(gptq(weight, hessian, options), std::invalid_argument);
  }
  GptqOptions options = good;
  options.block_size = 0;
  EXPECT_THROW(gptq(weight, hessian, options), std::invalid_argument);
  options = good;
  options.grid.group_size = 24;
  EXPECT_THROW(gptq(weight, hessian, options), std::invalid_argument);
}

TEST(Gptq, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  const at::Tensor weight = random_weight(230, 320, 32), hessian = random_hessian(320, 33);
  const GptqOptions options = options_for(4, 32, true, ActOrder::static_groups);
  omp_set_num_threads(1);
  const GptqResult expected = gptq(weight, hessian, options);
  const GptqFactor expected_factor = factorize(hessian, options);
  for (const int num_threads : {2, 3}) {
    omp_set_num_threads(num_threads);
    const GptqResult found = gptq(weight, hessian, options);
    EXPECT_EQ(found.weight.codes_OI, expected.weight.codes_OI);
    EXPECT_EQ(found.weight.scales_OG, expected.weight.scales_OG);
    EXPECT_EQ(found.trace_error, expected.trace_error);
    EXPECT_EQ(found.relative_error, expected.relative_error);
    EXPECT_TRUE(factorize(hessian, options).inverse_factor_II.equal(expected_factor.inverse_factor_II));
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
