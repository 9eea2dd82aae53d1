// Checks a layer's step towards the original model against closed forms, plain loops over tokens and finite
// differences.
#include "quant/fit.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

#include "tests/expect_error.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
namespace {

constexpr double kRidge = 0.01;

// The inputs of `num_rows` tokens, and what the layer's outputs lack there: T x and noise.
struct Tokens {
  at::Tensor x_RI, missing_RO;
  at::Tensor hessian_II() const { return x_RI.t().mm(x_RI).div_(static_cast<double>(x_RI.size(0))); }
  at::Tensor missing_OI() const { return missing_RO.t().mm(x_RI).div_(static_cast<double>(x_RI.size(0))); }
};

Tokens draw_tokens(int64_t num_rows, const at::Tensor& truth_OI, double noise, uint32_t seed) {
  Tokens tokens;
  tokens.x_RI = random_weight(num_rows, truth_OI.size(1), seed).mul_(20.0);
  tokens.x_RI.select(1, 0).mul_(5.0);
  tokens.missing_RO = tokens.x_RI.mm(truth_OI.t()).add_(random_weight(num_rows, truth_OI.size(0), seed + 1), noise);
  return tokens;
}

FitResult fit_tokens(const at::Tensor& weight_OI, const Tokens& tokens, const Tokens& held, double ridge = kRidge) {
  return fit(weight_OI, fit_factor(tokens.hessian_II(), ridge).value(), tokens.missing_OI(), held.hessian_II(),
             held.missing_OI());
}

// Returns E|m - (s D) x|^2 over the tokens, by plain loops.
double loss(const Tokens& tokens, const at::Tensor& step_OI, double share) {
  double sum = 0.0;
  const int64_t num_out = step_OI.size(0), num_in = step_OI.size(1);
  for (int64_t r = 0; r < tokens.x_RI.size(0); ++r) {
    const float* x = floats(tokens.x_RI) + r * num_in;
    for (int64_t o = 0; o < num_out; ++o) {
      double difference = floats(tokens.missing_RO)[r * num_out + o];
      for (int64_t i = 0; i < num_in; ++i) difference -= share * floats(step_OI)[o * num_in + i] * x[i];
      sum += difference * difference;
    }
  }
  return sum / static_cast<double>(tokens.x_RI.size(0));
}

TEST(Fit, FindsTheLayerThatWouldHaveMadeWhatIsMissing) {
  const at::Tensor weight_OI = random_weight(70, 40, 1), truth_OI = random_weight(70, 40, 2);
  const FitResult result =
      fit_tokens(weight_OI, draw_tokens(400, truth_OI, 0.0, 3), draw_tokens(60, truth_OI, 0.0, 5), /*ridge=*/0.0);
  EXPECT_NEAR(result.share, 1.0, 1e-5);
  // Correlations in float32 have a relative error of 1e-7. It is multiplied by the condition of H: 25 from the strong
  // column, and about 4 from 400 rows.
  EXPECT_LE(result.weight_OI.sub(weight_OI).sub(truth_OI).norm().item<double>(), 1e-4 * truth_OI.norm().item<double>());
}

TEST(Fit, OfUncorrelatedInputsIsADivision) {
  const at::Tensor weight_OI = random_weight(3, 5, 1), missing_OI = random_weight(3, 5, 2);
  const at::Tensor hessian_II = at::zeros({5, 5}, at::kFloat);
  for (int64_t i = 0; i < 5; ++i) hessian_II[i][i] = static_cast<float>(i + 1);
  // The mean of the diagonal is 3. The held-out tokens lack 0.4 of what the step gives them under H' = 1.
  at::Tensor step_OI = missing_OI.clone();
  for (int64_t i = 0; i < 5; ++i) step_OI.select(1, i).div_(static_cast<double>(i + 1) + 0.5 * 3.0);
  const FitResult result =
      fit(weight_OI, fit_factor(hessian_II, 0.5).value(), missing_OI, at::eye(5, at::kFloat), step_OI.mul(0.4));
  EXPECT_NEAR(result.share, 0.4, 1e-6);
  EXPECT_LE(result.weight_OI.sub(weight_OI).sub(step_OI.mul(0.4)).abs().max().item<double>(), 1e-6);
}

TEST(Fit, TheShareIsFromNothingToAll) {
  const at::Tensor weight_OI = random_weight(6, 5, 1), missing_OI = random_weight(6, 5, 2);
  const at::Tensor factor_II = fit_factor(at::eye(5, at::kFloat), 0.0).value();
  const auto share = [&](double held) {
    return fit(weight_OI, factor_II, missing_OI, at::eye(5, at::kFloat), missing_OI.mul(held)).share;
  };
  EXPECT_NEAR(share(0.7), 0.7, 1e-6);
  EXPECT_EQ(share(1.5), 1.0);
  EXPECT_EQ(share(-0.5), 0.0);
  EXPECT_EQ(share(0.0), 0.0);
}

// The step minimizes E|m - D x|^2 + ridge mean(diag H) |D|^2, and the share minimizes E'|m - s D x|^2.
TEST(Fit, NeitherStepNorShareCanBeBettered) {
  const at::Tensor weight_OI = random_weight(4, 12, 1), truth_OI = random_weight(4, 12, 2);
  const Tokens tokens = draw_tokens(40, truth_OI, 6.0, 3), held = draw_tokens(40, truth_OI, 6.0, 5);
  const FitResult result = fit_tokens(weight_OI, tokens, held);
  ASSERT_GT(result.share, 0.05);
  ASSERT_LT(result.share, 0.95);
  const at::Tensor step_OI = result.weight_OI.sub(weight_OI).div_(result.share);
  const double at_share = loss(held, step_OI, result.share);
  for (const double away : {-0.02, 0.02}) {
    EXPECT_GT(loss(held, step_OI, result.share + away), at_share);
  }
  // The central difference of a parabola is its derivative: 0 up to the rounding of the step to float32.
  const double slope = (loss(held, step_OI, result.share + 0.1) - loss(held, step_OI, result.share - 0.1)) / 0.2;
  EXPECT_LE(std::abs(slope), 1e-4 * at_share);
  const double ridge = kRidge * tokens.hessian_II().diagonal().mean().item<double>();
  const auto objective = [&](const at::Tensor& step) {
    return loss(tokens, step, 1.0) + ridge * step.norm().item<double>() * step.norm().item<double>();
  };
  for (const int64_t place : {0, 7, 25, 47}) {
    at::Tensor more = step_OI.clone(), less = step_OI.clone();
    more.view({-1})[place] += 0.01f;
    less.view({-1})[place] -= 0.01f;
    EXPECT_LE(std::abs(objective(more) - objective(less)) / 0.02, 1e-4 * objective(step_OI)) << place;
  }
}

TEST(Fit, DeadColumnsStayAsTheyAre) {
  const at::Tensor weight_OI = random_weight(6, 20, 1), truth_OI = random_weight(6, 20, 2);
  Tokens tokens = draw_tokens(100, truth_OI, 0.0, 3), held = draw_tokens(30, truth_OI, 0.0, 5);
  for (Tokens* both : {&tokens, &held}) {
    both->x_RI.select(1, 7).zero_();
    both->missing_RO = both->x_RI.mm(truth_OI.t());
  }
  const FitResult result = fit_tokens(weight_OI, tokens, held);
  EXPECT_GT(result.share, 0.9);
  EXPECT_TRUE(result.weight_OI.select(1, 7).equal(weight_OI.select(1, 7)));
  EXPECT_FALSE(result.weight_OI.select(1, 8).equal(weight_OI.select(1, 8)));
}

// With fewer tokens than inputs, the ridge bounds the step, and other tokens decide how much of it is right.
TEST(Fit, FewTokensHelpAsFarAsTheyReach) {
  const at::Tensor weight_OI = random_weight(8, 64, 1), truth_OI = random_weight(8, 64, 2);
  const Tokens tokens = draw_tokens(20, truth_OI, 0.0, 3), held = draw_tokens(50, truth_OI, 0.0, 5);
  const FitResult result = fit_tokens(weight_OI, tokens, held);
  EXPECT_GT(result.share, 0.0);
  EXPECT_LT(loss(held, result.weight_OI.sub(weight_OI), 1.0), 0.9 * loss(held, at::zeros_like(weight_OI), 1.0));
}

TEST(Fit, WithoutInputsThereIsNoStep) {
  EXPECT_FALSE(fit_factor(at::zeros({4, 4}, at::kFloat), kRidge).has_value());
  const at::Tensor weight_OI = random_weight(3, 4, 1);
  const FitResult result = fit(weight_OI, fit_factor(at::eye(4, at::kFloat), kRidge).value(), random_weight(3, 4, 2),
                               at::zeros({4, 4}, at::kFloat), at::zeros({3, 4}, at::kFloat));
  EXPECT_EQ(result.share, 0.0);
  EXPECT_TRUE(result.weight_OI.equal(weight_OI));
}

TEST(Fit, AnyNumberOfThreadsGivesTheSameBits) {
  const at::Tensor weight_OI = random_weight(200, 130, 1), truth_OI = random_weight(200, 130, 2);
  const Tokens tokens = draw_tokens(300, truth_OI, 5.0, 3), held = draw_tokens(100, truth_OI, 5.0, 5);
  // These are computed once, because LibTorch's own products may depend on the threads.
  const at::Tensor hessian_II = tokens.hessian_II(), missing_OI = tokens.missing_OI();
  const at::Tensor held_hessian_II = held.hessian_II(), held_missing_OI = held.missing_OI();
  std::optional<FitResult> first;
  for (const int num_threads : {1, 2, 3}) {
    omp_set_num_threads(num_threads);
    FitResult result =
        fit(weight_OI, fit_factor(hessian_II, kRidge).value(), missing_OI, held_hessian_II, held_missing_OI);
    if (!first) first = result;
    EXPECT_EQ(result.share, first->share) << num_threads;
    EXPECT_TRUE(result.weight_OI.equal(first->weight_OI)) << num_threads;
  }
  omp_set_num_threads(2);
}

TEST(Fit, WhatDoesNotFitTogetherIsRefused) {
  const at::Tensor weight_OI = random_weight(3, 4, 1), square_II = at::eye(4, at::kFloat);
  const at::Tensor factor_II = fit_factor(square_II, kRidge).value(), missing_OI = random_weight(3, 4, 2);
  expect_error<std::invalid_argument>([&] { fit_factor(square_II, -1.0); }, {"ridge"});
  expect_error<std::invalid_argument>([&] { fit_factor(missing_OI, kRidge); }, {"[3, 4]"});
  expect_error<std::invalid_argument>([&] { fit(weight_OI, factor_II, missing_OI.t(), square_II, missing_OI); },
                                      {"missing", "[3, 4]", "[4, 3]"});
  expect_error<std::invalid_argument>([&] { fit(weight_OI, factor_II, missing_OI, missing_OI, missing_OI); },
                                      {"held-out hessian", "[4, 4]"});
  at::Tensor bad_OI = missing_OI.clone();
  bad_OI[1][1] = std::numeric_limits<float>::quiet_NaN();
  expect_error<std::invalid_argument>([&] { fit(weight_OI, factor_II, bad_OI, square_II, missing_OI); },
                                      {"not finite"});
}

}  // namespace
}  // namespace pare
