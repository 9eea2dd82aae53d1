#include "quant/grid.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "quant/rtn.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

at::Tensor matrix(std::vector<float> values, int64_t num_out, int64_t num_in) {
  return at::from_blob(values.data(), {num_out, num_in}, at::kFloat).clone();
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no std::invalid_argument";
}

// Returns the weighted error of a group on a grid, in float64, by the header's definition.
double group_error(const float* weights, const float* importance, int64_t width, double scale, double zero, int bits) {
  double error = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const double code = std::clamp(std::nearbyint(weights[i] / scale) + zero, 0.0, double((1 << bits) - 1));
    const double difference = scale * (code - zero) - weights[i];
    error += importance[i] * difference * difference;
  }
  return error;
}

struct OracleGrid {
  double scale;
  double zero;
};

// Returns the grid of one shrink factor by the header's formulas.
OracleGrid oracle_grid(const float* weights, int64_t width, double shrink, const GridOptions& options) {
  const double low = std::min(0.0f, *std::min_element(weights, weights + width));
  const double high = std::max(0.0f, *std::max_element(weights, weights + width));
  const double levels = (1 << options.bits) - 1;
  const double range = options.symmetric ? 2.0 * std::max(-low, high) : high - low;
  const double scale = round_to(static_cast<float>(range * shrink / levels), options.scale_dtype);
  const double zero =
      options.symmetric ? 1 << (options.bits - 1) : std::clamp(std::nearbyint(-low * shrink / scale), 0.0, levels);
  return {scale, zero};
}

TEST(Grid, MinMaxScalesFollowTheirFormula) {
  const at::Tensor weight = random_weight(6, 96, 1);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
        const GridOptions options{bits, 32, symmetric, ScaleSearch::minmax, dtype};
        const Grid grid = search_grid(weight, {}, options);
        for (int64_t group = 0; group < 18; ++group) {
          const OracleGrid expected = oracle_grid(floats(weight) + group * 32, 32, 1.0, options);
          EXPECT_EQ(floats(grid.scales_OG)[group], expected.scale);
          EXPECT_EQ(floats(grid.zeros_OG)[group], expected.zero);
        }
      }
    }
  }
}

TEST(Grid, ScalesAreExactInTheStoredType) {
  const at::Tensor weight = random_weight(16, 128, 2), importance = at::ones({128}, at::kFloat);
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const ScaleSearch search : {ScaleSearch::minmax, ScaleSearch::squared_error, ScaleSearch::hessian_diagonal}) {
      const Grid grid = search_grid(weight, importance, {4, 32, true, search, dtype});
      for (int64_t i = 0; i < grid.scales_OG.numel(); ++i) {
        const float scale = floats(grid.scales_OG)[i];
        EXPECT_EQ(round_to(scale, dtype), scale);
        EXPECT_GT(scale, 0.0f);
      }
    }
  }
}

// The search adds at most 96 products in float32, each with a few roundings: 100 * 2^-23 relative.
constexpr double kSearchTolerance = 1.2e-5;

TEST(Grid, SearchFindsTheBestOfAllShrinkFactors) {
  const int64_t num_in = 96;
  const at::Tensor weight = random_weight(8, num_in, 3);
  const at::Tensor diagonal = random_hessian(num_in, 4).diagonal().contiguous();
  const at::Tensor ones = at::ones({num_in}, at::kFloat);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group_size : {int64_t{32}, kPerChannel}) {
        for (const ScaleSearch search : {ScaleSearch::squared_error, ScaleSearch::hessian_diagonal}) {
          const GridOptions options{bits, group_size, symmetric, search, DType::BF16};
          const float* importance = floats(search == ScaleSearch::squared_error ? ones : diagonal);
          const Grid grid = search_grid(weight, diagonal, options);
          const int64_t width = group_width(options, num_in), num_groups = num_in / width;
          for (int64_t group = 0; group < 8 * num_groups; ++group) {
            const float* weights = floats(weight) + group * width;
            const float* shares = importance + group % num_groups * width;
            double best = std::numeric_limits<double>::infinity();
            bool is_candidate = false;
            for (int k = 0; k < 25; ++k) {
              const OracleGrid candidate = oracle_grid(weights, width, kShrinkFactors[k], options);
              best = std::min(best, group_error(weights, shares, width, candidate.scale, candidate.zero, bits));
              is_candidate |=
                  floats(grid.scales_OG)[group] == candidate.scale && floats(grid.zeros_OG)[group] == candidate.zero;
            }
            EXPECT_TRUE(is_candidate);
            EXPECT_LE(
                group_error(weights, shares, width, floats(grid.scales_OG)[group], floats(grid.zeros_OG)[group], bits),
                best * (1.0 + kSearchTolerance));
          }
        }
      }
    }
  }
}

// --- codes with tables ---

const WeightCode* const kTableCodes[] = {&kNvfp4Code, &kMxfp4Code, &kNf4Code};

GridOptions table_options(const WeightCode& code, ScaleSearch scales, DType scale_dtype = DType::BF16) {
  return {.bits = code.width(),
          .group_size = code.block == 0 ? 32 : code.block,
          .scales = scales,
          .scale_dtype = code.scale_dtype.value_or(scale_dtype),
          .code = &code};
}

// Returns the distance of x from the nearest value, in float64.
double table_error(const WeightCode& code, double x) {
  double least = std::numeric_limits<double>::infinity();
  for (const float value : code.values) least = std::min(least, std::abs(x - value));
  return least;
}

double group_error_in_table(const WeightCode& code, const float* weights, const float* importance, int64_t width,
                            double scale) {
  double error = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const double difference = scale * table_error(code, weights[i] / scale);
    error += importance[i] * difference * difference;
  }
  return error;
}

float magnitude(const float* weights, int64_t width) {
  float largest = 0.0f;
  for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(weights[i]));
  return largest;
}

// Returns the stored scale of one shrink factor by the header's formulas.
float oracle_table_scale(const WeightCode& code, float absmax, float shrink, float tensor_scale, DType dtype) {
  if (dtype == DType::F8_E8M0) {
    double power = 0x1p-126;
    while (7.0 * power <= absmax) power *= 2.0;  // beyond 7 a value would be nearer to 8 than to 6
    return static_cast<float>(power * shrink);
  }
  return std::max(round_to(absmax * shrink / code.largest() * tensor_scale, dtype), smallest_scale(dtype));
}

TEST(Grid, MinMaxScalesOfTablesFollowTheirFormula) {
  at::Tensor weight = random_weight(6, 96, 41);
  weight.select(0, 2).mul_(1e-6);  // below what E4M3 resolves beside the rest
  weight.select(0, 3).zero_();
  for (const WeightCode* code : kTableCodes) {
    const GridOptions options = table_options(*code, ScaleSearch::minmax);
    const Grid grid = search_grid(weight, {}, options);
    const float tensor_scale =
        code->has_tensor_scale ? 448.0f * 6.0f / magnitude(floats(weight), weight.numel()) : 1.0f;
    EXPECT_EQ(grid.tensor_scale, tensor_scale) << code->name;
    const int64_t width = options.group_size;
    for (int64_t group = 0; group < weight.numel() / width; ++group) {
      const float absmax = magnitude(floats(weight) + group * width, width);
      const float expected =
          absmax == 0.0f ? 1.0f : oracle_table_scale(*code, absmax, 1.0f, tensor_scale, options.scale_dtype);
      EXPECT_EQ(floats(grid.scales_OG)[group], expected) << code->name << ", group " << group;
      EXPECT_EQ(floats(grid.zeros_OG)[group], 0.0f);
    }
  }
}

TEST(Grid, SearchOfTablesFindsTheBestOfAllCandidates) {
  const int64_t num_in = 96;
  const at::Tensor weight = random_weight(8, num_in, 42);
  const at::Tensor diagonal = random_hessian(num_in, 43).diagonal().contiguous();
  const std::vector<float> powers = {1.0f, 2.0f, 0.5f};
  for (const WeightCode* code : kTableCodes) {
    const GridOptions options = table_options(*code, ScaleSearch::hessian_diagonal);
    const Grid grid = search_grid(weight, diagonal, options);
    const int64_t width = options.group_size, num_groups = num_in / width;
    const std::span<const float> factors =
        options.scale_dtype == DType::F8_E8M0 ? std::span<const float>(powers) : std::span<const float>(kShrinkFactors);
    for (int64_t group = 0; group < 8 * num_groups; ++group) {
      const float* weights = floats(weight) + group * width;
      const float* shares = floats(diagonal) + group % num_groups * width;
      double best = std::numeric_limits<double>::infinity();
      bool is_candidate = false;
      for (const float factor : factors) {
        const float scale =
            oracle_table_scale(*code, magnitude(weights, width), factor, grid.tensor_scale, options.scale_dtype);
        best = std::min(
            best, group_error_in_table(*code, weights, shares, width, static_cast<double>(scale) / grid.tensor_scale));
        is_candidate |= floats(grid.scales_OG)[group] == scale;
      }
      EXPECT_TRUE(is_candidate) << code->name;
      const double found = group_error_in_table(*code, weights, shares, width,
                                                static_cast<double>(floats(grid.scales_OG)[group]) / grid.tensor_scale);
      EXPECT_LE(found, best * (1.0 + kSearchTolerance)) << code->name;
    }
  }
}

TEST(Grid, RoundedTablesHoldTheNearestValues) {
  const at::Tensor weight = random_weight(8, 96, 44), hessian = random_hessian(96, 45);
  for (const WeightCode* code : kTableCodes) {
    for (const ScaleSearch search : {ScaleSearch::minmax, ScaleSearch::squared_error, ScaleSearch::hessian}) {
      const GridOptions options = table_options(*code, search, DType::F16);
      const QuantizedWeight rounded =
          search == ScaleSearch::hessian ? rtn_with_hessian(weight, hessian, options) : rtn(weight, {}, options);
      validate(rounded, "rounded");
      EXPECT_EQ(rounded.code, code);
      const std::vector<float> values = dequantize(rounded);
      for (int64_t i = 0; i < weight.numel(); ++i) {
        const double scale =
            static_cast<double>(rounded.scales_OG[static_cast<size_t>(i / options.group_size)]) / rounded.tensor_scale;
        const double found = std::abs(floats(weight)[i] - static_cast<double>(values[static_cast<size_t>(i)]));
        // The quotient and the product are rounded to float32.
        EXPECT_LE(found, scale * table_error(*code, floats(weight)[i] / scale) + 4e-7 * std::abs(floats(weight)[i]));
      }
    }
  }
}

TEST(Grid, LayersOfOneInputShareAScaleOfTheWholeWeight) {
  const at::Tensor small = random_weight(4, 32, 46).mul_(0.125), large = random_weight(4, 32, 47);
  GridOptions options = table_options(kNvfp4Code, ScaleSearch::minmax);
  options.tensor_scale = tensor_scale_for(kNvfp4Code, largest_magnitude(large));
  const QuantizedWeight first = rtn(small, {}, options), second = rtn(large, {}, options);
  EXPECT_EQ(first.tensor_scale, second.tensor_scale);
  EXPECT_EQ(second.tensor_scale, search_grid(large, {}, table_options(kNvfp4Code, ScaleSearch::minmax)).tensor_scale);
}

// The smallest and the largest weights that float32 has keep their place in the table: what the grid makes of them is
// finite and no further off than for any others.
TEST(Grid, TablesReachTheEndsOfFloat32) {
  for (const WeightCode* code : kTableCodes) {
    for (const float size : {1e-36f, 1e-30f, 1e37f, 3.3e38f}) {
      const at::Tensor plain = random_weight(4, 64, 49).to(at::kDouble);
      const at::Tensor weight = plain.mul(size / plain.abs().max().item<double>()).to(at::kFloat);
      const DType dtype = code->scale_dtype.value_or(DType::F32);
      const QuantizedWeight rounded = rtn(weight, {}, table_options(*code, ScaleSearch::squared_error, dtype));
      validate(rounded, "rounded");
      const std::vector<float> values = dequantize(rounded);
      // E2M1 is off by a sixth of the largest value at most, NF4 by less; a scale of E8M0 may lack a third of it.
      for (int64_t i = 0; i < weight.numel(); ++i) {
        EXPECT_LE(std::abs(values[static_cast<size_t>(i)] / size - floats(weight)[i] / size), 0.35f)
            << code->name << " " << size;
      }
    }
  }
}

TEST(Grid, TablesHaveNeitherZerosNorOtherGroups) {
  const at::Tensor weight = random_weight(2, 64, 48);
  const auto message = [&](GridOptions options) { return message_of([&] { search_grid(weight, {}, options); }); };
  GridOptions options = table_options(kNvfp4Code, ScaleSearch::minmax);
  options.symmetric = false;
  EXPECT_NE(message(options).find("nvfp4 has neither zeros"), std::string::npos);
  options = table_options(kNvfp4Code, ScaleSearch::minmax);
  options.group_size = 32;
  EXPECT_NE(message(options).find("blocks of 16, found 32"), std::string::npos);
  options = table_options(kNvfp4Code, ScaleSearch::minmax);
  options.scale_dtype = DType::BF16;
  EXPECT_NE(message(options).find("expected F8_E4M3, found BF16"), std::string::npos);
  options = table_options(kNf4Code, ScaleSearch::minmax);
  options.bits = 3;
  EXPECT_NE(message(options).find("bits: expected 4, found 3"), std::string::npos);
}

TEST(Grid, SearchInGroupsFindsTheBestByEachGroupsSquareOfH) {
  const int64_t num_in = 96, width = 32;
  at::Tensor weight = random_weight(70, num_in, 20);
  const at::Tensor hessian = random_hessian(num_in, 21);
  weight.narrow(1, 32, 32).select(0, 4).zero_();
  for (const int bits : {2, 4}) {
    for (const bool symmetric : {true, false}) {
      const GridOptions options{bits, width, symmetric, ScaleSearch::hessian, DType::BF16};
      const Grid grid = search_grid_in_groups(weight, hessian, options);
      for (int64_t group = 0; group < 70 * 3; ++group) {
        const float* weights = floats(weight) + group * width;
        const auto error_of = [&](const OracleGrid& candidate) {
          std::vector<double> errors(width);
          for (int64_t i = 0; i < width; ++i) {
            const double steps = std::nearbyint(weights[i] / candidate.scale);
            errors[i] =
                candidate.scale * std::clamp(steps, -candidate.zero, (1 << bits) - 1 - candidate.zero) - weights[i];
          }
          double sum = 0.0;
          for (int64_t i = 0; i < width; ++i) {
            for (int64_t j = 0; j < width; ++j) {
              const int64_t begin = group % 3 * width;
              sum += errors[i] * floats(hessian)[(begin + i) * num_in + begin + j] * errors[j];
            }
          }
          return sum;
        };
        const OracleGrid found{floats(grid.scales_OG)[group], floats(grid.zeros_OG)[group]};
        if (group == 4 * 3 + 1) {
          EXPECT_EQ(found.scale, 1.0);
          continue;
        }
        double best = std::numeric_limits<double>::infinity();
        for (const float shrink : kShrinkFactors)
          best = std::min(best, error_of(oracle_grid(weights, width, shrink, options)));
        // The terms have both signs in float32: 2^-24 of their absolute sum, which is a few times the result.
        EXPECT_LE(error_of(found), best * (1.0 + 1e-5));
      }
    }
  }
  const GridOptions by_diagonal{4, width, true, ScaleSearch::hessian_diagonal, DType::BF16};
  EXPECT_THROW(search_grid_in_groups(weight, hessian, by_diagonal), std::invalid_argument);
  EXPECT_THROW(
      search_grid_in_groups(weight, random_hessian(64, 21), {4, width, true, ScaleSearch::hessian, DType::BF16}),
      std::invalid_argument);
}

TEST(Grid, SearchByTheWholeHessianEqualsItsDiagonalWhereThereIsNothingElse) {
  const at::Tensor weight = random_weight(20, 64, 22);
  const at::Tensor diagonal = random_hessian(64, 23).diagonal().contiguous();
  const GridOptions whole{3, 16, false, ScaleSearch::hessian, DType::BF16};
  GridOptions only = whole;
  only.scales = ScaleSearch::hessian_diagonal;
  const QuantizedWeight found = rtn_with_hessian(weight, at::diag(diagonal), whole);
  const QuantizedWeight expected = rtn(weight, diagonal, only);
  EXPECT_EQ(found.scales_OG, expected.scales_OG);
  EXPECT_EQ(found.codes_OI, expected.codes_OI);
  EXPECT_EQ(rtn_with_hessian(weight, at::diag(diagonal), only).codes_OI, expected.codes_OI);
  EXPECT_THROW(rtn(weight, diagonal, whole), std::invalid_argument);
}

TEST(Grid, ShrinkFactorsRunFromOneToFourTenths) {
  EXPECT_EQ(kShrinkFactors.size(), 25u);
  for (int k = 0; k < 25; ++k) EXPECT_FLOAT_EQ(kShrinkFactors[k], 1.0f - 0.025f * k);
}

TEST(Grid, SearchedScalesBeatMinMaxUnderTheirOwnMeasure) {
  const int64_t num_in = 128, num_out = 32;
  const at::Tensor weight = random_weight(num_out, num_in, 5);
  const at::Tensor diagonal = random_hessian(num_in, 6).diagonal().contiguous();
  const auto weighted_error = [&](ScaleSearch search) {
    const std::vector<float> rounded = dequantize(rtn(weight, diagonal, {3, 64, true, search, DType::BF16}));
    double error = 0.0;
    for (int64_t i = 0; i < num_out * num_in; ++i) {
      error += floats(diagonal)[i % num_in] * std::pow(double(rounded[i]) - floats(weight)[i], 2.0);
    }
    return error;
  };
  const double minmax = weighted_error(ScaleSearch::minmax);
  const double plain = weighted_error(ScaleSearch::squared_error);
  const double weighted = weighted_error(ScaleSearch::hessian_diagonal);
  EXPECT_LT(plain, minmax);
  EXPECT_LT(weighted, plain);
}

TEST(Grid, AllZeroGroupsHaveScaleOneAndRoundToZero) {
  for (const bool symmetric : {true, false}) {
    for (const ScaleSearch search : {ScaleSearch::minmax, ScaleSearch::hessian_diagonal}) {
      const QuantizedWeight weight =
          rtn(at::zeros({2, 64}, at::kFloat), at::ones({64}, at::kFloat), {4, 32, symmetric, search, DType::F16});
      for (const float scale : weight.scales_OG) EXPECT_EQ(scale, 1.0f);
      for (const float value : dequantize(weight)) EXPECT_EQ(value, 0.0f);
      for (const uint8_t code : weight.codes_OI) EXPECT_EQ(code, symmetric ? 8 : 0);
    }
  }
}

TEST(Grid, ZeroImportanceGivesMinMax) {
  const at::Tensor weight = random_weight(4, 64, 7);
  const Grid minmax = search_grid(weight, {}, {4, 32, true, ScaleSearch::minmax, DType::BF16});
  const Grid searched =
      search_grid(weight, at::zeros({64}, at::kFloat), {4, 32, true, ScaleSearch::hessian_diagonal, DType::BF16});
  EXPECT_TRUE(minmax.scales_OG.equal(searched.scales_OG));
}

TEST(Grid, TinyWeightsGetTheSmallestScaleAndHugeOnesAreRefused) {
  const GridOptions half{4, 32, true, ScaleSearch::squared_error, DType::F16};
  const Grid tiny = search_grid(at::full({1, 32}, 1e-12f), {}, half);
  EXPECT_EQ(floats(tiny.scales_OG)[0], 0x1p-24f);
  const GridOptions brain{4, 32, false, ScaleSearch::squared_error, DType::BF16};
  const Grid least = search_grid(at::full({1, 32}, std::numeric_limits<float>::denorm_min()), {}, brain);
  EXPECT_EQ(floats(least.scales_OG)[0], std::numeric_limits<float>::min());

  at::Tensor huge = at::ones({3, 64}, at::kFloat);
  huge.mutable_data_ptr<float>()[2 * 64 + 40] = 1e6f;
  const std::string message = message_of([&] { search_grid(huge, {}, half); });
  EXPECT_NE(message.find("row 2, group 1 overflows F16"), std::string::npos) << message;
  EXPECT_GT(floats(search_grid(huge, {}, brain).scales_OG)[5], 1e4f);
}

TEST(Grid, TheLargestFloatsAreSearchedWithoutOverflow) {
  const float most = std::numeric_limits<float>::max();
  at::Tensor weight = at::full({1, 32}, most / 2);
  weight.mutable_data_ptr<float>()[3] = -most;
  const Grid grid = search_grid(weight, {}, {4, 32, true, ScaleSearch::squared_error, DType::F32});
  EXPECT_GE(floats(grid.scales_OG)[0], 0.39f * most / 7.5f);
  EXPECT_LE(floats(grid.scales_OG)[0], most / 7.4f);
}

TEST(Grid, BadValuesAreNamed) {
  const GridOptions options{4, 32, true, ScaleSearch::hessian_diagonal, DType::BF16};
  const at::Tensor good = random_weight(3, 64, 8), importance = at::ones({64}, at::kFloat);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    at::Tensor bad = good.clone();
    bad.mutable_data_ptr<float>()[1 * 64 + 63] = value;
    EXPECT_NE(message_of([&] { search_grid(bad, importance, options); }).find("weight[1, 63]"), std::string::npos);
    at::Tensor bad_importance = importance.clone();
    bad_importance.mutable_data_ptr<float>()[5] = value;
    EXPECT_NE(message_of([&] { search_grid(good, bad_importance, options); }).find("importance[5]"), std::string::npos);
  }
  EXPECT_THROW(search_grid(good, at::full({64}, -1.0f), options), std::invalid_argument);
  EXPECT_THROW(search_grid(good, at::ones({63}, at::kFloat), options), std::invalid_argument);
  EXPECT_THROW(search_grid(good, {}, options), std::invalid_argument);
  EXPECT_THROW(search_grid(good.to(at::kDouble), importance, options), std::invalid_argument);
  EXPECT_THROW(search_grid(good.select(0, 0), importance, options), std::invalid_argument);
}

TEST(Grid, ImpossibleOptionsAreRefused) {
  const at::Tensor weight = random_weight(2, 96, 9), importance = at::ones({96}, at::kFloat);
  const auto message = [&](const GridOptions& options) {
    return message_of([&] { search_grid(weight, importance, options); });
  };
  EXPECT_NE(message({.bits = 5, .group_size = 32}).find("bits: expected 2, 3, 4 or 8, found 5"), std::string::npos);
  EXPECT_NE(message({.group_size = 64}).find("group_size: expected a divisor of the 96 inputs"), std::string::npos);
  EXPECT_NE(message({.group_size = 0}).find("found 0"), std::string::npos);
  EXPECT_NE(message({.group_size = 32, .scale_dtype = DType::I8}).find("scale_dtype"), std::string::npos);
}

TEST(Rounding, TiesGoToEvenCodesAndRangesClamp) {
  // The scale is 1 throughout, because the largest magnitude is 7.5 = 15 / 2.
  const at::Tensor weight = matrix({0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 7.5f, -7.5f}, 1, 8);
  const QuantizedWeight rounded = rtn(weight, {}, {4, 8, true, ScaleSearch::minmax, DType::BF16});
  EXPECT_EQ(rounded.scales_OG[0], 1.0f);
  EXPECT_EQ(rounded.codes_OI, (std::vector<uint8_t>{8, 10, 10, 8, 6, 6, 15, 0}));
}

TEST(Rounding, EveryCodeIsANearestGridPoint) {
  const at::Tensor weight = random_weight(5, 96, 10);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      const QuantizedWeight rounded = rtn(weight, {}, {bits, 32, symmetric, ScaleSearch::squared_error, DType::F16});
      validate(rounded, "rounded");
      for (int64_t i = 0; i < weight.numel(); ++i) {
        const double scale = rounded.scales_OG[i / 32], value = floats(weight)[i];
        const int zero = rounded.zero(i / 96, i % 96 / 32);
        double nearest = std::numeric_limits<double>::infinity();
        for (int code = 0; code < 1 << bits; ++code)
          nearest = std::min(nearest, std::abs(scale * (code - zero) - value));
        // w / scale is rounded to float32 once, which can move a point near a tie by 2^-24 of itself.
        EXPECT_LE(std::abs(scale * (rounded.codes_OI[i] - zero) - value), nearest + std::abs(value) * 0x1p-22);
      }
    }
  }
}

TEST(Rounding, AsymmetricRangesWithoutZeroInsideKeepZeroRepresentable) {
  at::Tensor weight = random_weight(2, 32, 11).abs().add(0.5);
  weight.select(0, 1).neg_();
  const QuantizedWeight rounded = rtn(weight, {}, {4, 32, false, ScaleSearch::minmax, DType::F32});
  EXPECT_EQ(rounded.zeros_OG, (std::vector<uint8_t>{0, 15}));
  const std::vector<float> values = dequantize(rounded);
  for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(values[i], floats(weight)[i], 0.5001 * rounded.scales_OG[i / 32]);
}

TEST(Rounding, RefusesAGridOfAnotherShape) {
  const at::Tensor weight = random_weight(4, 64, 12);
  const GridOptions options{4, 32, true, ScaleSearch::minmax, DType::BF16};
  const Grid grid = search_grid(weight, {}, {4, 64, true, ScaleSearch::minmax, DType::BF16});
  EXPECT_THROW(round_to_grid(weight, grid, options), std::invalid_argument);
}

TEST(TraceError, EqualsPlainLoops) {
  for (const int64_t num_in : {1, 40, 128, 300}) {
    const at::Tensor weight = random_weight(7, num_in, 13), hessian = random_hessian(num_in, 14);
    const std::vector<float> rounded = dequantize(rtn(weight, {}, {3, -1, true, ScaleSearch::minmax, DType::BF16}));
    const double expected = plain_trace_error(weight, rounded, hessian);
    const at::Tensor rounded_OI = matrix(rounded, 7, num_in);
    // H is symmetric up to the float32 rounding of its two triangles. One of them is read.
    EXPECT_NEAR(trace_error(weight, rounded_OI, hessian), expected, 1e-6 * expected);
    EXPECT_NEAR(trace_error(rounded_OI, weight, hessian), expected, 1e-6 * expected);
    EXPECT_EQ(trace_error(weight, weight, hessian), 0.0);
  }
}

TEST(TraceError, RefusesOtherShapes) {
  const at::Tensor weight = random_weight(4, 64, 15);
  EXPECT_THROW(trace_error(weight, weight, random_hessian(32, 16)), std::invalid_argument);
  EXPECT_THROW(trace_error(weight, random_weight(3, 64, 15), random_hessian(64, 16)), std::invalid_argument);
}

TEST(Grid, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  const at::Tensor weight = random_weight(50, 160, 17), hessian = random_hessian(160, 18);
  const at::Tensor diagonal = hessian.diagonal().contiguous(), zero = at::zeros({50, 160}, at::kFloat);
  const GridOptions options{4, 32, false, ScaleSearch::hessian_diagonal, DType::BF16};
  omp_set_num_threads(1);
  const QuantizedWeight expected = rtn(weight, diagonal, options);
  const double expected_trace = trace_error(weight, zero, hessian);
  for (const int num_threads : {2, 3}) {
    omp_set_num_threads(num_threads);
    const QuantizedWeight found = rtn(weight, diagonal, options);
    EXPECT_EQ(found.codes_OI, expected.codes_OI);
    EXPECT_EQ(found.scales_OG, expected.scales_OG);
    EXPECT_EQ(found.zeros_OG, expected.zeros_OG);
    EXPECT_EQ(trace_error(weight, zero, hessian), expected_trace);
  }
  EXPECT_EQ(omp_get_max_threads(), 3);  // the caller's settings survive the workers' own
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
