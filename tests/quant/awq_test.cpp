#include "quant/awq.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "quant/gptq.h"
#include "quant/rtn.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

// Returns E|x| of a normal input whose mean square is diag(H).
at::Tensor mean_abs_of(const at::Tensor& hessian) {
  return hessian.diagonal().sqrt().mul(std::sqrt(2.0 / M_PI)).contiguous();
}

AwqStage random_stage(std::vector<int64_t> heights, int64_t num_in, uint32_t seed) {
  AwqStage stage;
  for (size_t k = 0; k < heights.size(); ++k) {
    stage.weights_OI.push_back(random_weight(heights[k], num_in, seed + 10 * uint32_t(k)));
  }
  stage.hessian_II = random_hessian(num_in, seed + 5);
  stage.mean_abs_I = mean_abs_of(stage.hessian_II);
  return stage;
}

GridOptions grid_for(int bits, int64_t group_size, bool symmetric, ScaleSearch scales = ScaleSearch::hessian_diagonal) {
  return {bits, group_size, symmetric, scales, DType::BF16};
}

// Returns s of the header's formula in float64, where every channel is its own producer.
std::vector<double> plain_scales(const AwqStage& stage, int64_t width, double a, bool duo) {
  const int64_t n = stage.mean_abs_I.size(0);
  std::vector<double> weights(n, 0.0), s(n);
  int64_t num_rows = 0;
  for (const at::Tensor& weight : stage.weights_OI) {
    for (int64_t row = 0; row < weight.size(0); ++row, ++num_rows) {
      for (int64_t i = 0; i < n; ++i) {
        double largest = 0.0;
        for (int64_t j = i / width * width; j < (i / width + 1) * width; ++j) {
          largest = std::max(largest, double(std::abs(floats(weight)[row * n + j])));
        }
        weights[i] += std::abs(floats(weight)[row * n + i]) / largest;
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    s[i] = std::pow(double(floats(stage.mean_abs_I)[i]), a);
    if (duo) s[i] /= std::pow(weights[i] / double(num_rows), 1.0 - a) + 1e-4;
  }
  const double middle = std::sqrt(*std::max_element(s.begin(), s.end()) * *std::min_element(s.begin(), s.end()));
  for (double& value : s) value /= middle;
  return s;
}

// Returns the trace, or GPTQ's measure in its place, of all weights of a stage rounded with the scales s. These are
// plain float64 sums over values that other, separately tested functions round to.
double plain_cost(const AwqStage& stage, const std::vector<double>& s, const GridOptions& grid) {
  const int64_t n = stage.mean_abs_I.size(0);
  double cost = 0.0;
  for (const at::Tensor& weight : stage.weights_OI) {
    at::Tensor scaled = weight.clone(), diagonal = at::ones({n}, at::kFloat);
    for (int64_t i = 0; i < n; ++i) {
      diagonal.mutable_data_ptr<float>()[i] = floats(stage.hessian_II)[i * (n + 1)] / (float(s[i]) * float(s[i]));
      for (int64_t row = 0; row < weight.size(0); ++row) {
        scaled.mutable_data_ptr<float>()[row * n + i] = floats(weight)[row * n + i] * float(s[i]);
      }
    }
    const std::vector<float> rounded = dequantize(rtn(scaled, diagonal, grid));
    std::vector<float> unscaled(rounded.size());
    for (size_t i = 0; i < rounded.size(); ++i) unscaled[i] = float(rounded[i] / s[i % size_t(n)]);
    if (!stage.conditional_I.defined()) {
      cost += plain_trace_error(weight, unscaled, stage.hessian_II);
      continue;
    }
    for (size_t i = 0; i < rounded.size(); ++i) {
      cost += floats(stage.conditional_I)[i % size_t(n)] * std::pow(double(unscaled[i]) - floats(weight)[i], 2.0);
    }
  }
  return cost;
}

TEST(Awq, FindsTheBestOfAllExponents) {
  for (const bool duo : {true, false}) {
    for (const bool symmetric : {true, false}) {
      for (const bool for_gptq : {true, false}) {
        AwqStage stage = random_stage({24, 8}, 64, 1);
        if (for_gptq) stage.conditional_I = factorize(stage.hessian_II, {}).conditional_I;
        const GridOptions grid = grid_for(3, 16, symmetric);
        const AwqResult found = search_awq_scales(stage, {.duo_scaling = duo, .num_grid_points = 10}, grid);
        const double unscaled = plain_cost(stage, std::vector<double>(64, 1.0), grid);
        double best = unscaled;
        std::vector<double> best_scales(64, 1.0);
        for (const bool form : {false, true}) {
          for (int k = 0; k < 10 && (duo || !form); ++k) {
            const std::vector<double> s = plain_scales(stage, 16, k / 10.0, form);
            const double cost = plain_cost(stage, s, grid);
            if (cost < best) best_scales = s;
            best = std::min(best, cost);
          }
        }
        // Scales differ by float32 rounding, which moves single codes at ties. One code is 1 of 2048.
        EXPECT_NEAR(found.cost_before, unscaled, 1e-3 * unscaled);
        EXPECT_NEAR(found.cost_after, best, 1e-3 * best);
        EXPECT_LE(found.cost_after, found.cost_before);
        if (found.scaled) {
          const std::vector<double> s = plain_scales(stage, 16, found.exponent, found.duo_scaling);
          for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(floats(found.scales_I)[i], s[i], 1e-5 * s[i]);
        }
      }
    }
  }
}

TEST(Awq, PlantedOutlierChannelsAreScaledUpAndLoseLess) {
  // Eight channels carry inputs 30 times as large: rounding them more finely must pay.
  const int64_t num_in = 128;
  AwqStage stage = random_stage({64, 64}, num_in, 2);
  stage.hessian_II = at::eye(num_in, at::kFloat);
  for (int64_t i = 3; i < num_in; i += 16) stage.hessian_II.mutable_data_ptr<float>()[i * (num_in + 1)] = 900.0f;
  stage.mean_abs_I = mean_abs_of(stage.hessian_II);
  const AwqResult found = search_awq_scales(stage, {}, grid_for(4, 64, false, ScaleSearch::minmax));
  EXPECT_TRUE(found.scaled);
  EXPECT_LT(found.cost_after, 0.5 * found.cost_before);
  for (int64_t i = 0; i < num_in; ++i) {
    if (i % 16 == 3) continue;
    EXPECT_GT(floats(found.scales_I)[3], 1.5f * floats(found.scales_I)[i]);
  }
}

TEST(Awq, EqualInputsAndWeightsNeedNoScales) {
  AwqStage stage = random_stage({32}, 64, 3);
  stage.hessian_II = at::eye(64, at::kFloat);
  stage.mean_abs_I = at::ones({64}, at::kFloat);
  const AwqResult found = search_awq_scales(stage, {.duo_scaling = false}, grid_for(4, 32, true));
  EXPECT_FALSE(found.scaled);
  EXPECT_EQ(found.cost_after, found.cost_before);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(floats(found.scales_I)[i], 1.0f);
}

TEST(Awq, PowersOfTwoAreExact) {
  for (const bool duo : {true, false}) {
    const AwqStage stage = random_stage({40, 12}, 96, 4);
    const AwqResult found = search_awq_scales(stage, {.duo_scaling = duo, .powers_of_two = true},
                                              grid_for(3, 32, false, ScaleSearch::minmax));
    EXPECT_TRUE(found.scaled);
    EXPECT_LT(found.cost_after, found.cost_before);
    for (int64_t i = 0; i < 96; ++i) {
      int exponent = 0;
      EXPECT_EQ(std::frexp(floats(found.scales_I)[i], &exponent), 0.5f);
    }
    const at::Tensor scaled = scale_columns(stage.weights_OI[0], found.scales_I);
    EXPECT_TRUE(scaled.div(found.scales_I).equal(stage.weights_OI[0]));
  }
}

TEST(Awq, ChannelsOfOneProducerShareTheirScale) {
  // 4 query heads of 8 channels read 2 value heads, so channel 8 h + d comes from 8 (h / 2) + d.
  AwqStage stage = random_stage({40}, 32, 5);
  for (int64_t i = 0; i < 32; ++i) stage.producer_I.push_back(i / 16 * 8 + i % 8);
  const AwqResult found = search_awq_scales(stage, {}, grid_for(3, 16, false));
  EXPECT_TRUE(found.scaled);
  bool differ = false;
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(floats(found.scales_I)[i], floats(found.scales_I)[i / 16 * 16 + i % 8]);
    differ |= floats(found.scales_I)[i] != floats(found.scales_I)[0];
  }
  EXPECT_TRUE(differ);

  // A producer that feeds a single channel shares its scale with no other, whatever its number.
  AwqStage alone = random_stage({40}, 32, 5), reversed = alone;
  for (int64_t i = 0; i < 32; ++i) reversed.producer_I.push_back(31 - i);
  EXPECT_TRUE(search_awq_scales(alone, {}, grid_for(3, 16, false))
                  .scales_I.equal(search_awq_scales(reversed, {}, grid_for(3, 16, false)).scales_I));
}

TEST(Awq, CandidatesStayWithinTheProducersBounds) {
  AwqStage stage = random_stage({40, 12}, 96, 4);
  const GridOptions grid = grid_for(3, 32, false, ScaleSearch::minmax);
  const AwqResult free = search_awq_scales(stage, {.powers_of_two = true}, grid);
  EXPECT_EQ(free.num_held_back, 0);
  // Every third channel may not grow, and every second one may not change at all.
  for (int64_t i = 0; i < 96; ++i) {
    stage.bounds.least_I.push_back(i % 2 == 0 ? 1.0f : 0x1p-20f);
    stage.bounds.most_I.push_back(i % 2 == 0 || i % 3 == 0 ? 1.0f : 0x1p20f);
  }
  const AwqResult held = search_awq_scales(stage, {.powers_of_two = true}, grid);
  EXPECT_TRUE(held.scaled);
  EXPECT_LT(held.cost_after, held.cost_before);
  EXPECT_GE(held.cost_after, free.cost_after);
  EXPECT_GT(held.num_held_back, 0);
  for (int64_t i = 0; i < 96; ++i) {
    EXPECT_LE(floats(held.scales_I)[i], stage.bounds.most_I[static_cast<size_t>(i)]) << i;
    EXPECT_GE(floats(held.scales_I)[i], stage.bounds.least_I[static_cast<size_t>(i)]) << i;
  }
  stage.bounds.most_I.pop_back();
  EXPECT_THROW(search_awq_scales(stage, {}, grid), std::invalid_argument);
}

TEST(Awq, DeadChannelsKeepScaleOneAndChangeNoOther) {
  AwqStage stage = random_stage({24}, 64, 6);
  for (const int64_t i : {0, 21}) {
    stage.hessian_II.select(0, i).zero_();
    stage.hessian_II.select(1, i).zero_();
    stage.mean_abs_I.mutable_data_ptr<float>()[i] = 0.0f;
  }
  const AwqResult found = search_awq_scales(stage, {}, grid_for(3, 32, false, ScaleSearch::minmax));
  EXPECT_TRUE(found.scaled);
  EXPECT_EQ(floats(found.scales_I)[0], 1.0f);
  EXPECT_EQ(floats(found.scales_I)[21], 1.0f);
  stage.hessian_II.zero_();
  const AwqResult dead = search_awq_scales(stage, {}, grid_for(3, 32, false, ScaleSearch::minmax));
  EXPECT_FALSE(dead.scaled);
}

TEST(Awq, ExtremeInputsKeepScalesInBounds) {
  AwqStage stage = random_stage({24}, 32, 7);
  stage.mean_abs_I.mutable_data_ptr<float>()[1] = 1e30f;
  stage.mean_abs_I.mutable_data_ptr<float>()[2] = 1e-30f;
  const AwqResult found = search_awq_scales(stage, {.num_grid_points = 3}, grid_for(4, 32, true));
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_GE(floats(found.scales_I)[i], 1.0f / kMaxAwqScale);
    EXPECT_LE(floats(found.scales_I)[i], kMaxAwqScale);
  }
}

TEST(Awq, TheScaledProblemIsTheSameFunction) {
  // Since (W diag(s)) (diag(1/s) x) = W x, errors of the scaled weight under the scaled H are those of the unscaled
  // layer.
  const at::Tensor weight = random_weight(10, 48, 8), hessian = random_hessian(48, 9);
  const at::Tensor s = random_weight(1, 48, 10).select(0, 0).abs().mul(20.0).add(0.1);
  const at::Tensor scaled = scale_columns(weight, s), scaled_hessian = scale_hessian(hessian, s);
  const std::vector<float> rounded = dequantize(rtn_with_hessian(scaled, scaled_hessian, grid_for(3, 16, true)));
  std::vector<float> unscaled(rounded.size());
  for (size_t i = 0; i < rounded.size(); ++i) unscaled[i] = rounded[i] / floats(s)[i % 48];
  const double expected = plain_trace_error(weight, unscaled, hessian);
  EXPECT_NEAR(plain_trace_error(scaled, rounded, scaled_hessian), expected, 1e-4 * expected);
}

TEST(Awq, JudgesOnEvenlySpacedRows) {
  AwqStage stage = random_stage({64, 16}, 32, 11);
  const GridOptions grid = grid_for(4, 16, true);
  const AwqResult sampled = search_awq_scales(stage, {.max_rows = 16}, grid);
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < 16; ++r) rows.push_back(4 * r);
  stage.weights_OI[0] = stage.weights_OI[0].index_select(0, at::tensor(rows));
  EXPECT_EQ(sampled.cost_before, search_awq_scales(stage, {}, grid).cost_before);
}

// A larger sample decides between the best few of a small sample of rows. Plain loops compute both.
TEST(Awq, FinalistsOfASmallSampleAreDecidedOnTheLargerOne) {
  const AwqStage stage = random_stage({96}, 32, 23);
  const GridOptions grid = grid_for(3, 16, true);
  AwqStage sample = stage;
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < 12; ++r) rows.push_back(8 * r);
  sample.weights_OI[0] = stage.weights_OI[0].index_select(0, at::tensor(rows));
  std::vector<std::pair<double, int>> ranking;
  for (int k = 0; k < 20; ++k)
    ranking.emplace_back(plain_cost(sample, plain_scales(stage, 16, k / 20.0, false), grid), k);
  std::sort(ranking.begin(), ranking.end());
  // The sample's ranking must leave no doubt about the finalists, and must not be that of all rows.
  ASSERT_GT(ranking[3].first, 1.003 * ranking[2].first);
  std::pair<double, int> best = {INFINITY, 0};
  for (int i = 0; i < 3; ++i) {
    const int k = ranking[static_cast<size_t>(i)].second;
    best = std::min(best, {plain_cost(stage, plain_scales(stage, 16, k / 20.0, false), grid), k});
  }
  const AwqResult found = search_awq_scales(stage, {.duo_scaling = false, .screen_rows = 12, .num_finalists = 3}, grid);
  ASSERT_TRUE(found.scaled);
  EXPECT_DOUBLE_EQ(found.exponent, best.second / 20.0);
  EXPECT_NEAR(found.cost_after, best.first, 1e-3 * best.first);
  EXPECT_NE(best.second, ranking[0].second) << "the larger sample decides";
}

TEST(Awq, WithGptqItsMeasureFollowsTheTrace) {
  // This is the reason for the second measure: the candidate that it prefers has the smaller trace after GPTQ.
  AwqStage stage = random_stage({48}, 128, 12);
  const GridOptions grid = grid_for(3, 32, false, ScaleSearch::hessian);
  stage.conditional_I = factorize(stage.hessian_II, {}).conditional_I;
  const AwqResult found = search_awq_scales(stage, {}, grid);
  ASSERT_TRUE(found.scaled);
  const GptqOptions options{.grid = grid};
  const double before = gptq(stage.weights_OI[0], stage.hessian_II, options).trace_error;
  const double after =
      gptq(scale_columns(stage.weights_OI[0], found.scales_I), scale_hessian(stage.hessian_II, found.scales_I), options)
          .trace_error;
  EXPECT_LT(after, before);
}

TEST(Awq, WhatDoesNotFitIsRefused) {
  const GridOptions grid = grid_for(4, 16, true);
  const auto refused = [&](const std::function<void(AwqStage&)>& spoil) {
    AwqStage stage = random_stage({8, 4}, 32, 13);
    spoil(stage);
    EXPECT_THROW(search_awq_scales(stage, {}, grid), std::invalid_argument);
  };
  refused([](AwqStage& stage) { stage.weights_OI.clear(); });
  refused([](AwqStage& stage) { stage.weights_OI[1] = random_weight(4, 16, 13); });
  refused([](AwqStage& stage) { stage.hessian_II = random_hessian(16, 13); });
  refused([](AwqStage& stage) { stage.mean_abs_I = at::ones({31}, at::kFloat); });
  refused([](AwqStage& stage) { stage.mean_abs_I = at::Tensor(); });
  refused([](AwqStage& stage) { stage.mean_abs_I.mutable_data_ptr<float>()[4] = -1.0f; });
  refused([](AwqStage& stage) { stage.mean_abs_I.mutable_data_ptr<float>()[4] = NAN; });
  refused([](AwqStage& stage) { stage.conditional_I = at::ones({16}, at::kFloat); });
  refused([](AwqStage& stage) { stage.producer_I = {0, 1}; });
  refused([](AwqStage& stage) { stage.producer_I.assign(32, 32); });
  const AwqStage good = random_stage({8}, 32, 13);
  EXPECT_THROW(search_awq_scales(good, {.num_grid_points = 0}, grid), std::invalid_argument);
  EXPECT_THROW(search_awq_scales(good, {.max_rows = 0}, grid), std::invalid_argument);
  EXPECT_THROW(search_awq_scales(good, {.screen_rows = 0}, grid), std::invalid_argument);
  EXPECT_THROW(search_awq_scales(good, {.num_finalists = 0}, grid), std::invalid_argument);
  EXPECT_THROW(search_awq_scales(good, {}, grid_for(4, 24, true)), std::invalid_argument);
}

TEST(Awq, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  AwqStage stage = random_stage({150, 70}, 160, 14);
  const GridOptions grid = grid_for(4, 32, false, ScaleSearch::hessian);
  omp_set_num_threads(1);
  const AwqResult expected = search_awq_scales(stage, {.num_grid_points = 5}, grid);
  for (const int num_threads : {2, 3}) {
    omp_set_num_threads(num_threads);
    const AwqResult found = search_awq_scales(stage, {.num_grid_points = 5}, grid);
    EXPECT_TRUE(found.scales_I.equal(expected.scales_I));
    EXPECT_EQ(found.cost_before, expected.cost_before);
    EXPECT_EQ(found.cost_after, expected.cost_after);
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
