#include "quant/smoothquant.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "quant/gptq.h"
#include "quant/rtn.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

constexpr GridOptions kW8{8, kPerChannel, true, ScaleSearch::minmax, DType::BF16};

// Rounds to int8 with one scale per row, as the runtime's dynamic activations. The search in these tests uses it.
void round_rows_int8(at::Tensor& x_RI, const at::Tensor&) {
  float* x = x_RI.mutable_data_ptr<float>();
  const int64_t num_in = x_RI.size(1);
  for (int64_t r = 0; r < x_RI.size(0); ++r, x += num_in) {
    float absmax = 0.0f;
    for (int64_t i = 0; i < num_in; ++i) absmax = std::max(absmax, std::fabs(x[i]));
    const float scale = absmax > 0.0f ? absmax / 127.0f : 1.0f;
    for (int64_t i = 0; i < num_in; ++i) x[i] = std::nearbyint(x[i] / scale) * scale;
  }
}

void keep_rows(at::Tensor&, const at::Tensor&) {}

// Returns rows whose channels differ in strength, with `outlier` times as much in channel 3. Two layers read them.
SmoothInput make_input(int64_t num_rows, int64_t num_in, double outlier, uint32_t seed) {
  at::Tensor rows = random_weight(num_rows, num_in, seed).mul_(20.0);
  const std::vector<double> strength = random_normals(num_in, seed + 1);
  for (int64_t i = 0; i < num_in; ++i) rows.select(1, i).mul_(std::exp(0.7 * strength[i]) * (i == 3 ? outlier : 1.0));
  return {rows.abs().amax(0), rows, {random_weight(24, num_in, seed + 2), random_weight(9, num_in, seed + 3)}};
}

// Returns the error by its definition, in plain loops and float64.
double plain_error(const SmoothInput& input, const at::Tensor& scales, const RoundInput& round,
                   const GridOptions& grid) {
  at::Tensor x = input.rows_RI / scales;
  const at::Tensor diagonal = x.square().mean(0);
  round(x, scales);
  const int64_t num_rows = x.size(0), num_in = x.size(1);
  double error = 0.0;
  for (const at::Tensor& weight : input.weights_OI) {
    const std::vector<float> rounded = dequantize(rtn(weight * scales, diagonal, grid));
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t o = 0; o < weight.size(0); ++o) {
        double sum = 0.0;
        for (int64_t i = 0; i < num_in; ++i) {
          sum += double(floats(x)[r * num_in + i]) * rounded[o * num_in + i];
          sum -= double(floats(input.rows_RI)[r * num_in + i]) * floats(weight)[o * num_in + i];
        }
        error += sum * sum;
      }
    }
  }
  return error;
}

TEST(SmoothQuant, ScalesFollowEquationFour) {
  SmoothInput input = make_input(8, 32, 40.0, 1);
  for (const double alpha : {0.0, 0.3, 0.5, 0.8, 1.0}) {
    const at::Tensor scales = smoothing_scales(input, alpha, false);
    for (int64_t j = 0; j < 32; ++j) {
      double largest_weight = 0.0;
      for (const at::Tensor& weight : input.weights_OI) {
        for (int64_t o = 0; o < weight.size(0); ++o) {
          largest_weight = std::max(largest_weight, std::fabs(double(floats(weight)[o * 32 + j])));
        }
      }
      const double expected = std::pow(floats(input.absmax_I)[j], alpha) / std::pow(largest_weight, 1.0 - alpha);
      EXPECT_NEAR(floats(scales)[j], expected, 1e-6 * expected);  // float32 is accurate to 6e-8
    }
  }
}

// With alpha = 1/2, max|X_j / s_j| = max|W_j s_j| = sqrt(max|X_j| max|W_j|): the paper's "same difficulty".
TEST(SmoothQuant, AlphaOneHalfSharesTheRangeEqually) {
  SmoothInput input = make_input(16, 32, 40.0, 2);
  input.weights_OI.pop_back();
  const at::Tensor scales = smoothing_scales(input, 0.5, false);
  const at::Tensor left = input.absmax_I / scales, right = (input.weights_OI[0] * scales).abs().amax(0);
  for (int64_t j = 0; j < 32; ++j) EXPECT_NEAR(floats(left)[j], floats(right)[j], 1e-6 * floats(left)[j]);
}

TEST(SmoothQuant, DeadChannelsKeepOne) {
  SmoothInput input = make_input(16, 32, 1.0, 3);
  input.rows_RI.select(1, 5).zero_();
  input.absmax_I = input.rows_RI.abs().amax(0);
  for (at::Tensor& weight : input.weights_OI) weight.select(1, 7).zero_();
  input.weights_OI[0].select(1, 9).zero_();  // still read by the other layer
  for (const bool power_of_two : {false, true}) {
    const at::Tensor scales = smoothing_scales(input, 0.7, power_of_two);
    EXPECT_EQ(floats(scales)[5], 1.0f);
    EXPECT_EQ(floats(scales)[7], 1.0f);
    EXPECT_NE(floats(scales)[9], 1.0f);
  }
  EXPECT_EQ(smooth(input, round_rows_int8, {.alpha = 0.7, .grid = kW8}).num_dead_columns, 2);
}

TEST(SmoothQuant, PowersOfTwoAreTheNearestInTheLogarithm) {
  const SmoothInput input = make_input(16, 64, 100.0, 4);
  const at::Tensor exact = smoothing_scales(input, 0.6, false);
  const at::Tensor rounded = smoothing_scales(input, 0.6, true);
  for (int64_t j = 0; j < 64; ++j) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(floats(rounded)[j], &exponent), 0.5f);
    EXPECT_LE(std::fabs(std::log2(floats(rounded)[j] / floats(exact)[j])), 0.5 + 1e-6);
  }
}

TEST(SmoothQuant, ScalesStayWithinTheProducersBounds) {
  SmoothInput input = make_input(16, 64, 100.0, 4);
  const at::Tensor free = smoothing_scales(input, 0.6, true);
  input.bounds = {std::vector<float>(64, 0.5f), std::vector<float>(64, 2.0f)};
  const at::Tensor held = smoothing_scales(input, 0.6, true);
  int64_t num_held_back = 0;
  for (int64_t j = 0; j < 64; ++j) {
    EXPECT_EQ(floats(held)[j], std::clamp(floats(free)[j], 0.5f, 2.0f)) << j;
    num_held_back += floats(held)[j] != floats(free)[j];
  }
  EXPECT_GT(num_held_back, 0);
  const Smoothing fixed = smooth(input, round_rows_int8, {.alpha = 0.6, .power_of_two = true, .grid = kW8});
  EXPECT_TRUE(fixed.scales_I.equal(held));
  EXPECT_EQ(fixed.num_held_back, num_held_back);
  input.bounds.least_I.clear();
  EXPECT_THROW(smoothing_scales(input, 0.6, true), std::invalid_argument);
}

// Channels 0 .. 15 and 16 .. 31 come from the same 16 producers. The result is as if the second half were more rows of
// the first.
TEST(SmoothQuant, ChannelsOfOneProducerShareTheirScale) {
  SmoothInput input = make_input(16, 32, 40.0, 50);
  for (int64_t i = 0; i < 32; ++i) input.producer_I.push_back(i % 16);
  const at::Tensor scales = smoothing_scales(input, 0.4, false);
  SmoothInput folded{at::maximum(input.absmax_I.narrow(0, 0, 16), input.absmax_I.narrow(0, 16, 16)), {}, {}};
  for (const at::Tensor& weight : input.weights_OI) {
    for (const int64_t half : {0, 16}) folded.weights_OI.push_back(weight.narrow(1, half, 16).contiguous());
  }
  const at::Tensor expected = smoothing_scales(folded, 0.4, false);
  EXPECT_TRUE(scales.narrow(0, 0, 16).equal(expected));
  EXPECT_TRUE(scales.narrow(0, 16, 16).equal(expected));
  const Smoothing result = smooth(input, round_rows_int8, {.grid = kW8});
  EXPECT_TRUE(result.scales_I.narrow(0, 0, 16).equal(result.scales_I.narrow(0, 16, 16)));
}

// X / s and W s are exact for powers of two, so the smoothed layer computes the same function. Each product has the
// same bits.
TEST(SmoothQuant, SmoothingKeepsTheFunction) {
  const SmoothInput input = make_input(16, 64, 100.0, 5);
  const at::Tensor powers = smoothing_scales(input, 0.6, true);
  for (const at::Tensor& weight : input.weights_OI) {
    EXPECT_TRUE(at::mm(input.rows_RI / powers, (weight * powers).t()).equal(at::mm(input.rows_RI, weight.t())));
  }
  // Any other s costs two roundings per product: |difference| <= 2^-23 sum |x w| (1 + I / 2), with I = 64 additions.
  const at::Tensor scales = smoothing_scales(input, 0.6, false);
  const at::Tensor& weight = input.weights_OI[0];
  const at::Tensor difference =
      at::mm(input.rows_RI / scales, (weight * scales).t()) - at::mm(input.rows_RI, weight.t());
  const at::Tensor bound = at::mm(input.rows_RI.abs(), weight.abs().t()) * (33.0 * 0x1p-23);
  EXPECT_TRUE(difference.abs().le(bound).all().item<bool>());
}

TEST(SmoothQuant, ErrorEqualsItsDefinition) {
  const SmoothInput input = make_input(20, 48, 30.0, 6);
  for (const ScaleSearch search : {ScaleSearch::minmax, ScaleSearch::hessian_diagonal}) {
    for (const int bits : {4, 8}) {
      const GridOptions grid{bits, kPerChannel, true, search, DType::BF16};
      const at::Tensor scales = smoothing_scales(input, 0.5, false);
      const double expected = plain_error(input, scales, round_rows_int8, grid);
      // Products are in float32. With outliers their rounding is 1e-6 of an output, and the error is at least 1e-3 of
      // it.
      EXPECT_NEAR(smoothed_error(input, scales, round_rows_int8, grid), expected, 2e-3 * expected);
    }
  }
}

TEST(SmoothQuant, SearchEqualsBruteForceOverAlpha) {
  for (const double outlier : {1.0, 60.0}) {
    const SmoothInput input = make_input(24, 48, outlier, 7);
    for (const bool power_of_two : {false, true}) {
      const Smoothing result = smooth(input, round_rows_int8, {.power_of_two = power_of_two, .grid = kW8});
      ASSERT_EQ(result.tried.size(), kSmoothAlphas.size() + 1);
      EXPECT_FALSE(result.tried[0].alpha.has_value());
      double best = plain_error(input, at::ones({48}, at::kFloat), round_rows_int8, kW8);
      EXPECT_NEAR(result.plain_error, best, 2e-3 * best);
      for (size_t k = 0; k < kSmoothAlphas.size(); ++k) {
        const at::Tensor scales = smoothing_scales(input, kSmoothAlphas[k], power_of_two);
        const double error = plain_error(input, scales, round_rows_int8, kW8);
        EXPECT_EQ(result.tried[k + 1].alpha, kSmoothAlphas[k]);
        EXPECT_NEAR(result.tried[k + 1].error, error, 2e-3 * error);
        best = std::min(best, error);
      }
      EXPECT_NEAR(result.chosen.error, best, 2e-3 * best);
      EXPECT_EQ(smoothed_error(input, result.scales_I, round_rows_int8, kW8), result.chosen.error);
    }
  }
}

TEST(SmoothQuant, TakesTheOutlierOutOfTheActivations) {
  const SmoothInput input = make_input(64, 48, 100.0, 8);
  const Smoothing result = smooth(input, round_rows_int8, {.grid = kW8});
  ASSERT_TRUE(result.chosen.alpha.has_value());
  EXPECT_LT(result.chosen.error, 0.2 * result.plain_error);
  double energy = 0.0;
  for (const at::Tensor& weight : input.weights_OI) {
    energy += at::mm(input.rows_RI, weight.t()).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(result.output_energy, energy, 1e-5 * energy);
}

// Every channel has the same range and activations are exact, so s is a constant. Nothing is gained, and s = 1 stays.
TEST(SmoothQuant, StaysOffWhereItDoesNotPay) {
  SmoothInput input{at::full({32}, 2.0f), at::full({8, 32}, 2.0f), {at::full({4, 32}, 0.5f)}};
  const Smoothing result = smooth(input, keep_rows, {.grid = kW8});
  EXPECT_FALSE(result.chosen.alpha.has_value());
  EXPECT_TRUE(result.scales_I.equal(at::ones({32}, at::kFloat)));
}

TEST(SmoothQuant, IsNeverWorseThanNoSmoothing) {
  for (uint32_t seed = 20; seed < 30; ++seed) {
    const SmoothInput input = make_input(12, 32, std::pow(3.0, seed - 22.0), seed);
    for (const bool per_tensor : {false, true}) {
      GridOptions grid = kW8;
      grid.per_tensor = per_tensor;
      const Smoothing result = smooth(input, round_rows_int8, {.grid = grid});
      EXPECT_LE(result.chosen.error, result.plain_error);
      for (const SmoothingTrial& trial : result.tried) EXPECT_LE(result.chosen.error, trial.error);
    }
  }
}

TEST(SmoothQuant, FixedAlphaIsTakenEvenWhereItIsWorse) {
  const SmoothInput input = make_input(12, 32, 1.0, 31);
  const Smoothing result = smooth(input, round_rows_int8, {.alpha = 0.0, .grid = kW8});
  EXPECT_EQ(result.chosen.alpha, 0.0);
  EXPECT_EQ(result.tried.size(), 2u);
  EXPECT_TRUE(result.scales_I.equal(smoothing_scales(input, 0.0, false)));
}

// A static range belongs to the unsmoothed input, so the function must be given s.
TEST(SmoothQuant, HandsTheScalesToTheRounding) {
  const SmoothInput input = make_input(12, 32, 10.0, 32);
  const at::Tensor scales = smoothing_scales(input, 0.5, false);
  int num_calls = 0;
  const RoundInput round = [&](at::Tensor& x_RI, const at::Tensor& scales_I) {
    ++num_calls;
    EXPECT_TRUE(scales_I.equal(scales));
    EXPECT_TRUE(x_RI.equal(input.rows_RI / scales));
    EXPECT_TRUE(x_RI.abs().amax(0).equal(input.absmax_I / scales_I));
  };
  const at::Tensor before = input.rows_RI.clone();
  smoothed_error(input, scales, round, kW8);
  EXPECT_EQ(num_calls, 1);
  EXPECT_TRUE(input.rows_RI.equal(before));
}

TEST(SmoothQuant, AnyNumberOfThreadsGivesTheSameBits) {
  SmoothInput input = make_input(40, 64, 30.0, 33);
  input.weights_OI.push_back(random_weight(300, 64, 34));  // needs several chunks
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Smoothing one = smooth(input, round_rows_int8, {});
  omp_set_num_threads(4);
  const Smoothing four = smooth(input, round_rows_int8, {});
  omp_set_num_threads(before);
  EXPECT_TRUE(one.scales_I.equal(four.scales_I));
  EXPECT_EQ(one.output_energy, four.output_energy);
  for (size_t k = 0; k < one.tried.size(); ++k) EXPECT_EQ(one.tried[k].error, four.tried[k].error);
}

TEST(SmoothQuant, RefusesWhatItCannotUse) {
  const SmoothInput good = make_input(8, 16, 1.0, 35);
  const auto refuses = [&](const std::function<void(SmoothInput&)>& spoil) {
    SmoothInput bad{
        good.absmax_I.clone(), good.rows_RI.clone(), {good.weights_OI[0].clone(), good.weights_OI[1].clone()}};
    spoil(bad);
    EXPECT_THROW(smooth(bad, round_rows_int8, {.grid = kW8}), std::invalid_argument);
  };
  refuses([](SmoothInput& bad) { bad.weights_OI.clear(); });
  refuses([](SmoothInput& bad) { bad.producer_I = {0, 1, 2}; });
  refuses([](SmoothInput& bad) { bad.producer_I.assign(16, 16); });
  refuses([](SmoothInput& bad) { bad.producer_I.assign(16, -1); });
  refuses([](SmoothInput& bad) { bad.weights_OI[1] = random_weight(4, 15, 1); });
  refuses([](SmoothInput& bad) { bad.rows_RI = random_weight(4, 15, 1); });
  refuses([](SmoothInput& bad) { bad.absmax_I = at::ones({15}, at::kFloat); });
  refuses([](SmoothInput& bad) { bad.absmax_I.select(0, 2).fill_(-1.0); });
  refuses([](SmoothInput& bad) { bad.absmax_I.select(0, 2).fill_(INFINITY); });
  refuses([](SmoothInput& bad) { bad.rows_RI.select(0, 2).fill_(NAN); });
  refuses([](SmoothInput& bad) { bad.weights_OI[0].select(0, 2).fill_(NAN); });
  EXPECT_THROW(smooth(good, round_rows_int8, {.alpha = 1.5, .grid = kW8}), std::invalid_argument);
  EXPECT_THROW(smoothed_error(good, at::zeros({16}, at::kFloat), round_rows_int8, kW8), std::invalid_argument);
}

TEST(Grid, PerTensorRepeatsTheScaleOfTheWholeWeight) {
  const at::Tensor weight = random_weight(12, 32, 40), diagonal = random_hessian(32, 41).diagonal().contiguous();
  for (const ScaleSearch search : {ScaleSearch::minmax, ScaleSearch::squared_error, ScaleSearch::hessian_diagonal}) {
    for (const bool symmetric : {true, false}) {
      GridOptions options{8, kPerChannel, symmetric, search, DType::BF16, true};
      const Grid grid = search_grid(weight, diagonal, options);
      ASSERT_EQ(grid.scales_OG.sizes(), (std::vector<int64_t>{12, 1}));
      // The same weight as one long row, with each column's importance repeated, has one ordinary group.
      options.per_tensor = false;
      const Grid row = search_grid(weight.reshape({1, -1}), diagonal.repeat({12}), options);
      EXPECT_TRUE(grid.scales_OG.eq(row.scales_OG).all().item<bool>());
      EXPECT_TRUE(grid.zeros_OG.eq(row.zeros_OG).all().item<bool>());
    }
  }
  EXPECT_THROW(search_grid(weight, diagonal, {8, 16, true, ScaleSearch::minmax, DType::BF16, true}),
               std::invalid_argument);
}

TEST(Grid, PerTensorServesGptqAsWell) {
  const at::Tensor weight = random_weight(12, 32, 42), hessian = random_hessian(32, 43);
  const GridOptions grid{4, kPerChannel, true, ScaleSearch::minmax, DType::BF16, true};
  const QuantizedWeight rounded = gptq(weight, hessian, {.grid = grid}).weight;
  for (const float scale : rounded.scales_OG) EXPECT_EQ(scale, rounded.scales_OG[0]);
  EXPECT_LT(plain_trace_error(weight, dequantize(rounded), hessian),
            plain_trace_error(weight, dequantize(rtn(weight, {}, grid)), hessian));
}

}  // namespace
}  // namespace pare
