// Checks masks through every rounding: a pruned weight is exactly 0 afterwards, and does not affect the others.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "quant/awq.h"
#include "quant/fp8.h"
#include "quant/gptq.h"
#include "quant/llm_int8.h"
#include "quant/refine.h"
#include "quant/rtn.h"
#include "quant/smoothquant.h"
#include "tests/quant/column_twin.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

constexpr ActOrder kAllOrders[] = {ActOrder::none, ActOrder::static_groups, ActOrder::group};

ColumnMask given_mask(const at::Tensor& kept) {
  return {.kept_OI = kept, .pattern = {}, .ratio = 0.0};
}

// Returns a mask that prunes about the given share of the places.
at::Tensor random_mask(int64_t num_out, int64_t num_in, double pruned, uint32_t seed) {
  std::mt19937 generator(seed);
  at::Tensor kept = at::empty({num_out, num_in}, at::kBool);
  for (int64_t i = 0; i < kept.numel(); ++i) kept.mutable_data_ptr<bool>()[i] = generator() / 4294967296.0 >= pruned;
  return kept;
}

at::Tensor with_zeros(const at::Tensor& weight, const at::Tensor& kept) {
  at::Tensor pruned = weight.clone();
  for (int64_t i = 0; i < weight.numel(); ++i) {
    if (!kept.const_data_ptr<bool>()[i]) pruned.mutable_data_ptr<float>()[i] = 0.0f;
  }
  return pruned;
}

// Returns the weight with absurd values in pruned places, which no function may read.
at::Tensor with_junk(const at::Tensor& weight, const at::Tensor& kept) {
  at::Tensor junk = weight.clone();
  for (int64_t i = 0; i < weight.numel(); ++i) {
    if (!kept.const_data_ptr<bool>()[i]) junk.mutable_data_ptr<float>()[i] = i % 2 == 0 ? 1e4f : -1e3f;
  }
  return junk;
}

int64_t num_nonzero_pruned(const QuantizedWeight& weight, const at::Tensor& kept) {
  validate(weight, "masked");
  const std::vector<float> values = dequantize(weight);
  int64_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) count += !kept.const_data_ptr<bool>()[i] && values[i] != 0.0f;
  return count;
}

void expect_equal(const QuantizedWeight& found, const QuantizedWeight& expected) {
  EXPECT_EQ(found.codes_OI, expected.codes_OI);
  EXPECT_EQ(found.scales_OG, expected.scales_OG);
  EXPECT_EQ(found.zeros_OG, expected.zeros_OG);
  EXPECT_EQ(found.group_of_I, expected.group_of_I);
}

void for_all_grids(const std::function<void(const GridOptions&)>& check) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group_size : {int64_t{16}, kPerChannel}) {
        for (const ScaleSearch scales :
             {ScaleSearch::minmax, ScaleSearch::squared_error, ScaleSearch::hessian_diagonal, ScaleSearch::hessian}) {
          SCOPED_TRACE(std::to_string(bits) + (symmetric ? " bits, symmetric" : " bits") + ", scales " +
                       std::to_string(int(scales)) + ", group " + std::to_string(group_size));
          check({bits, group_size, symmetric, scales, DType::BF16});
        }
      }
    }
  }
}

TEST(Mask, RoundingKeepsZerosAndDoesNotSeeWhatWasPruned) {
  const at::Tensor weight = random_weight(20, 64, 1), hessian = random_hessian(64, 2);
  const at::Tensor kept = random_mask(20, 64, 0.5, 3), zeros = with_zeros(weight, kept), junk = with_junk(weight, kept);
  const at::Tensor diagonal = hessian.diagonal().contiguous();
  for_all_grids([&](const GridOptions& grid) {
    const QuantizedWeight found = rtn_with_hessian(junk, hessian, grid, kept);
    EXPECT_EQ(num_nonzero_pruned(found, kept), 0);
    expect_equal(found, rtn_with_hessian(zeros, hessian, grid, kept));
    expect_equal(found, rtn_with_hessian(zeros, hessian, grid));  // zeros need no mask
    if (grid.scales != ScaleSearch::hessian) expect_equal(found, rtn(junk, diagonal, grid, kept));
    expect_equal(rtn_with_hessian(weight, hessian, grid, at::ones({20, 64}, at::kBool)),
                 rtn_with_hessian(weight, hessian, grid));
    GridOptions per_tensor = grid;
    per_tensor.per_tensor = true;
    if (grid.group_size != kPerChannel || grid.scales == ScaleSearch::hessian) return;
    EXPECT_EQ(num_nonzero_pruned(rtn(junk, diagonal, per_tensor, kept), kept), 0);
  });
}

TEST(Mask, GptqChoosesTheCodesOfItsFloat64Twin) {
  int64_t num_rows = 0, num_rows_left = 0;
  for (const auto& [num_out, num_in, group_size, block_size] :
       {std::array<int64_t, 4>{20, 32, 16, 128}, {97, 48, kPerChannel, 7}, {9, 160, 32, 128}}) {
    const at::Tensor weight = random_weight(num_out, num_in, 5), hessian = random_hessian(num_in, 6);
    const at::Tensor kept = random_mask(num_out, num_in, 0.5, 7);
    for (const ActOrder act_order : kAllOrders) {
      const std::vector<int64_t> order = oracle_order(hessian, act_order);
      const Matrix rows = elimination_rows(hessian, 0.01, order);
      for (const int bits : {2, 3, 4, 8}) {
        for (const bool symmetric : {true, false}) {
          for (const at::Tensor& given : {weight, with_zeros(weight, kept)}) {
            GptqOptions options{.grid = {.bits = bits, .group_size = group_size, .symmetric = symmetric},
                                .act_order = act_order};
            options.block_size = block_size;
            const GptqResult result = gptq(given, factorize(hessian, options), options, given_mask(kept));
            EXPECT_EQ(num_nonzero_pruned(result.weight, kept), 0);
            EXPECT_TRUE(result.kept_OI.equal(kept));
            const OracleCodes expected = optimal_brain_quantization(given, rows, result.weight, order, kept);
            const OracleComparison comparison = compare(result.weight, expected, order);
            EXPECT_EQ(comparison.num_wrong_rows, 0) << bits << " bits, order " << int(act_order);
            num_rows += num_out;
            num_rows_left += comparison.num_rows_left_at_ties;
            const double error = plain_trace_error(given, dequantize(result.weight), hessian);
            EXPECT_NEAR(result.trace_error, error, 1e-5 * error);
          }
        }
      }
    }
  }
  EXPECT_LE(num_rows_left * 20, num_rows) << "so many ties that the comparison says little";
}

TEST(Mask, GptqSearchesItsGridsOnWhatIsKept) {
  const at::Tensor weight = random_weight(20, 64, 8), hessian = random_hessian(64, 9);
  const at::Tensor kept = random_mask(20, 64, 0.5, 10);
  for (const bool symmetric : {true, false}) {
    const GptqOptions options{.grid = {.bits = 4, .group_size = 16, .symmetric = symmetric}};
    const QuantizedWeight found =
        gptq(with_junk(weight, kept), factorize(hessian, options), options, given_mask(kept)).weight;
    const QuantizedWeight rounded = rtn(with_zeros(weight, kept), hessian.diagonal().contiguous(), options.grid);
    EXPECT_EQ(found.scales_OG, rounded.scales_OG);
    EXPECT_EQ(found.zeros_OG, rounded.zeros_OG);
  }
}

TEST(Mask, GptqThatKeepsAllGivesTheSameBits) {
  const at::Tensor weight = random_weight(110, 96, 11), hessian = random_hessian(96, 12);
  for (const bool symmetric : {true, false}) {
    for (const ActOrder act_order : kAllOrders) {
      const GptqOptions options{.grid = {.bits = 3, .group_size = 32, .symmetric = symmetric}, .act_order = act_order};
      const GptqFactor factor = factorize(hessian, options);
      const GptqResult plain = gptq(weight, factor, options);
      EXPECT_FALSE(plain.kept_OI.defined());
      const GptqResult masked = gptq(weight, factor, options, given_mask(at::ones({110, 96}, at::kBool)));
      expect_equal(masked.weight, plain.weight);
      EXPECT_EQ(masked.trace_error, plain.trace_error);
    }
  }
}

TEST(Mask, ColumnsThatStayTogetherAreOrderedByTheirSums) {
  const at::Tensor hessian = random_hessian(60, 13);
  for (const int64_t together : {1, 4, 5, 60}) {
    const GptqFactor factor = factorize(hessian, {.grid = {}, .act_order = ActOrder::static_groups}, together);
    std::vector<double> sums;
    std::vector<bool> seen(60, false);
    for (int64_t p = 0; p < 60; ++p) {
      const int64_t column = factor.order_I[p];
      EXPECT_EQ(column % together, p % together);
      EXPECT_EQ(column - column % together, factor.order_I[p - p % together]);
      EXPECT_FALSE(seen[column]);
      seen[column] = true;
      if (p % together == 0) sums.push_back(0.0);
      sums.back() += floats(hessian)[column * 61];
    }
    EXPECT_TRUE(std::is_sorted(sums.rbegin(), sums.rend()));
  }
  EXPECT_EQ(factorize(hessian, {.grid = {}, .act_order = ActOrder::none}, 4).order_I,
            oracle_order(hessian, ActOrder::none));
  EXPECT_THROW(factorize(hessian, {}, 7), std::invalid_argument);
  EXPECT_THROW(factorize(hessian, {}, 0), std::invalid_argument);
}

TEST(Mask, AwqJudgesAndRoundsWhatIsKept) {
  const int64_t num_in = 64;
  for (const bool for_gptq : {true, false}) {
    for_all_grids([&](const GridOptions& grid) {
      if (grid.bits != 4) return;
      AwqStage stage;
      stage.hessian_II = random_hessian(num_in, 14);
      stage.mean_abs_I = stage.hessian_II.diagonal().sqrt().mul(std::sqrt(2.0 / M_PI)).contiguous();
      if (for_gptq) stage.conditional_I = factorize(stage.hessian_II, {}).conditional_I;
      const at::Tensor a = random_weight(24, num_in, 15), b = random_weight(8, num_in, 16);
      const at::Tensor kept = random_mask(24, num_in, 0.5, 17);
      stage.weights_OI = {with_junk(a, kept), b};
      stage.kept_OI = {kept, {}};
      const AwqResult found = search_awq_scales(stage, {.num_grid_points = 4}, grid);
      stage.weights_OI = {with_zeros(a, kept), b};
      stage.kept_OI.clear();
      const AwqResult expected = search_awq_scales(stage, {.num_grid_points = 4}, grid);
      EXPECT_TRUE(found.scales_I.equal(expected.scales_I));
      EXPECT_EQ(found.cost_after, expected.cost_after);
      const at::Tensor scaled = scale_columns(with_zeros(a, kept), found.scales_I);
      EXPECT_EQ(num_nonzero_pruned(
                    rtn_with_hessian(scaled, scale_hessian(stage.hessian_II, found.scales_I), grid, kept), kept),
                0);
      stage.kept_OI = {kept};
      EXPECT_THROW(search_awq_scales(stage, {}, grid), std::invalid_argument);
    });
  }
}

TEST(Mask, SmoothQuantJudgesWhatIsKept) {
  const int64_t num_in = 32;
  const at::Tensor rows = random_weight(40, num_in, 18).mul_(20.0);
  const at::Tensor a = random_weight(24, num_in, 19), b = random_weight(9, num_in, 20);
  const at::Tensor kept = random_mask(24, num_in, 0.5, 21);
  const RoundInput keep_rows = [](at::Tensor&, const at::Tensor&) {};
  for (const bool symmetric : {true, false}) {
    const SmoothQuantOptions options{.grid = {.bits = 8, .group_size = kPerChannel, .symmetric = symmetric}};
    SmoothInput input{rows.abs().amax(0), rows, {with_junk(a, kept), b}, {}, {kept, {}}};
    const Smoothing found = smooth(input, keep_rows, options);
    input.weights_OI = {with_zeros(a, kept), b};
    input.kept_OI.clear();
    const Smoothing expected = smooth(input, keep_rows, options);
    EXPECT_TRUE(found.scales_I.equal(expected.scales_I));
    EXPECT_EQ(found.chosen.error, expected.chosen.error);
    EXPECT_EQ(num_nonzero_pruned(
                  rtn(with_zeros(a, kept).mul(found.scales_I), at::ones({num_in}, at::kFloat), options.grid), kept),
              0);
  }
}

TEST(Mask, EightBitRoundingsKeepZeros) {
  const at::Tensor weight = random_weight(20, 64, 22), kept = random_mask(20, 64, 0.5, 23);
  const at::Tensor zeros = with_zeros(weight, kept);
  for (const bool per_tensor : {true, false}) {
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      EXPECT_EQ(num_nonzero_pruned(quantize_fp8(zeros, per_tensor, dtype), kept), 0);
    }
  }
  for (const LlmInt8Layout layout : {LlmInt8Layout::own, LlmInt8Layout::bitsandbytes}) {
    const LlmInt8Weight found = quantize_llm_int8(zeros, {3, 40}, layout);
    EXPECT_EQ(num_nonzero_pruned(found.weight, kept), 0);
    for (size_t k = 0; k < found.columns.size(); ++k) {
      for (int64_t row = 0; row < 20; ++row) {
        EXPECT_EQ(floats(found.outlier_weight_OK)[row * 2 + int64_t(k)], floats(zeros)[row * 64 + found.columns[k]]);
      }
    }
  }
}

TEST(Mask, RefineKeepsZerosAndRaisesNoRow) {
  const at::Tensor weight = random_weight(110, 64, 24), hessian = random_hessian(64, 25);
  const at::Tensor kept = random_mask(110, 64, 0.5, 26);
  const auto row_trace = [&](int64_t row, const QuantizedWeight& found) {
    const std::vector<float> values = dequantize(found);
    return plain_trace_error(weight.narrow(0, row, 1), {values.begin() + row * 64, values.begin() + (row + 1) * 64},
                             hessian);
  };
  for_all_grids([&](const GridOptions& grid) {
    if (grid.scales == ScaleSearch::squared_error) return;
    const GptqOptions options{.grid = grid, .act_order = ActOrder::group};
    for (const QuantizedWeight& start : {rtn_with_hessian(weight, hessian, grid, kept),
                                         gptq(weight, factorize(hessian, options), options, given_mask(kept)).weight}) {
      const RefineResult found = refine(weight, start, hessian, {.sweeps = 3, .damping = 0.01}, kept);
      EXPECT_EQ(num_nonzero_pruned(found.weight, kept), 0);
      EXPECT_LT(found.trace_after, found.trace_before);
      if (!grid.symmetric && grid.bits == 4) {
        EXPECT_NE(found.weight.zeros_OG, start.zeros_OG);
      }
      for (int64_t row = 0; row < 110; row += 10) {
        EXPECT_LE(row_trace(row, found.weight), row_trace(row, start) * (1.0 + 1e-4));
      }
      const double after = plain_trace_error(weight, dequantize(found.weight), hessian);
      EXPECT_NEAR(found.trace_after, after, 1e-4 * after);
    }
    const QuantizedWeight start = rtn_with_hessian(weight, hessian, grid);
    expect_equal(refine(weight, start, hessian, {.sweeps = 2}, at::ones({110, 64}, at::kBool)).weight,
                 refine(weight, start, hessian, {.sweeps = 2}).weight);
    // The start is not 0 where it is pruned.
    EXPECT_THROW(refine(weight, start, hessian, {}, kept), std::invalid_argument);
  });
}

TEST(Mask, MasksThatDoNotFitAreRefused) {
  const at::Tensor weight = random_weight(4, 32, 27), hessian = random_hessian(32, 28);
  const GridOptions grid{.bits = 4, .group_size = 16};
  const GptqOptions options{.grid = grid, .act_order = ActOrder::none};
  const GptqFactor factor = factorize(hessian, options);
  const QuantizedWeight start = rtn_with_hessian(weight, hessian, grid);
  for (const at::Tensor& mask :
       {at::ones({4, 16}, at::kBool), at::ones({32}, at::kBool), at::ones({4, 32}, at::kFloat)}) {
    EXPECT_THROW(rtn_with_hessian(weight, hessian, grid, mask), std::invalid_argument);
    EXPECT_THROW(gptq(weight, factor, options, given_mask(mask)), std::invalid_argument);
    EXPECT_THROW(refine(weight, start, hessian, {}, mask), std::invalid_argument);
  }
  const at::Tensor kept = at::ones({4, 32}, at::kBool);
  const std::vector<ColumnMask> bad = {
      {.kept_OI = kept, .pattern = kTwoOfFour, .ratio = 0.0},
      {.kept_OI = kept, .pattern = {}, .ratio = 0.5},
      {.kept_OI = {}, .pattern = kTwoOfFour, .ratio = 0.5},
      {.kept_OI = {}, .pattern = {4, 4}, .ratio = 0.0},
      {.kept_OI = {}, .pattern = {0, 4}, .ratio = 0.0},
      {.kept_OI = {}, .pattern = {2, 5}, .ratio = 0.0},
      {.kept_OI = {}, .pattern = {}, .ratio = 0.0, .allowed_OI = kept},
      {.kept_OI = kept, .pattern = {}, .ratio = 0.0, .allowed_OI = kept},
      {.kept_OI = {}, .pattern = kTwoOfFour, .ratio = 0.0, .allowed_OI = kept.narrow(1, 0, 16)},
      {.kept_OI = {}, .pattern = {}, .ratio = 1.5},
      {.kept_OI = {}, .pattern = {}, .ratio = -0.1},
      {.kept_OI = {}, .pattern = {}, .ratio = NAN}};
  for (const ColumnMask& mask : bad) EXPECT_THROW(gptq(weight, factor, options, mask), std::invalid_argument);
  GptqOptions ordered = options;
  ordered.act_order = ActOrder::static_groups;
  const ColumnMask two_of_four{.kept_OI = {}, .pattern = kTwoOfFour, .ratio = 0.0};
  EXPECT_THROW(gptq(weight, factorize(hessian, ordered), ordered, two_of_four), std::invalid_argument);
  EXPECT_NO_THROW(gptq(weight, factorize(hessian, ordered, 4), ordered, two_of_four));
}

TEST(Mask, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  const at::Tensor weight = random_weight(230, 96, 29), hessian = random_hessian(96, 30);
  const GptqOptions options{.grid = {.bits = 4, .group_size = 32, .symmetric = false}, .act_order = ActOrder::none};
  const GptqFactor factor = factorize(hessian, options);
  const std::vector<ColumnMask> masks = {{.kept_OI = random_mask(230, 96, 0.5, 31), .pattern = {}, .ratio = 0.0},
                                         {.kept_OI = {}, .pattern = kTwoOfFour, .ratio = 0.0},
                                         {.kept_OI = {}, .pattern = {}, .ratio = 0.6}};
  for (const ColumnMask& mask : masks) {
    omp_set_num_threads(1);
    const GptqResult expected = gptq(weight, factor, options, mask);
    const RefineResult refined = refine(weight, expected.weight, hessian, {.sweeps = 2}, expected.kept_OI);
    EXPECT_EQ(num_nonzero_pruned(refined.weight, expected.kept_OI), 0);
    for (const int num_threads : {2, 3}) {
      omp_set_num_threads(num_threads);
      const GptqResult found = gptq(weight, factor, options, mask);
      expect_equal(found.weight, expected.weight);
      EXPECT_TRUE(found.kept_OI.equal(expected.kept_OI));
      expect_equal(refine(weight, found.weight, hessian, {.sweeps = 2}, found.kept_OI).weight, refined.weight);
    }
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
