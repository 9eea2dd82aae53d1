#include "prune/resolve.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <limits>
#include <stdexcept>

#include "tests/expect_error.h"
#include "tests/prune/plain_sparse.h"

namespace pare {
using namespace prune;
using namespace runtime;
namespace {

// This many steps bring every row of these tests to rest.
constexpr ResolveOptions kGradients{.gradient_steps = 400, .tolerance = 0.0};
// Values are float32, and so are the products that lead to them. Where a row is at its minimum, weight errors of 2^-24
// cost their square, far below this share of the trace.
constexpr double kTraceTolerance = 1e-6;

double total(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

TEST(NormalizedHessian, HasADiagonalOfOnesAndTheSameTraces) {
  const at::Tensor hessian = random_hessian(24, 1), weight = random_weight(5, 24, 2), other = random_weight(5, 24, 3);
  const NormalizedHessian normal = normalize(hessian, 0.05);
  EXPECT_NEAR(normal.damping, 0.05 * hessian.diagonal().to(at::kDouble).mean().item<double>(), 1e-9 * normal.damping);
  const RowTraces traces = row_traces(weight, other, normal);
  const Matrix damped = damped_matrix(normal);
  Matrix plain = damped;
  for (size_t i = 0; i < 24; ++i) plain[i][i] -= normal.damping;
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_NEAR(traces.damped_O[row], plain_trace(weight, other, row, damped), 1e-10 * traces.damped_O[row]);
    EXPECT_NEAR(traces.plain_O[row], plain_trace(weight, other, row, plain), 1e-10 * traces.damped_O[row]);
    // The trace must be the same in normalized columns.
    double sum = 0.0;
    for (int64_t i = 0; i < 24; ++i) {
      EXPECT_EQ(floats(normal.normalized_II)[i * 25], 1.0f);
      for (int64_t j = 0; j < 24; ++j) {
        const auto error = [&](int64_t k) {
          return (double(floats(weight)[row * 24 + k]) - floats(other)[row * 24 + k]) * floats(normal.root_I)[k];
        };
        sum += error(i) * floats(normal.normalized_II)[i * 24 + j] * error(j);
      }
    }
    EXPECT_NEAR(sum, traces.damped_O[row], 1e-5 * traces.damped_O[row]);
  }
}

TEST(NormalizedHessian, ShiftedInversesAreInversesAndSymmetric) {
  for (const int64_t size : {1, 7, 130, 300}) {
    const NormalizedHessian hessian = normalize(random_hessian(size, 4), 0.01);
    for (const double penalty : {0.01, 0.3, 10.0}) {
      const at::Tensor inverse = shifted_inverse(hessian, penalty);
      EXPECT_TRUE(inverse.equal(inverse.t()));
      const at::Tensor shifted = hessian.normalized_II.to(at::kDouble);
      shifted.diagonal().add_(penalty);
      // Elements are rounded to float32, at most 1 / penalty, and are multiplied by rows of norm at most I.
      const double residual =
          at::mm(inverse.to(at::kDouble), shifted).sub_(at::eye(size, at::kDouble)).abs().max().item<double>();
      EXPECT_LT(residual, 1e-6 * static_cast<double>(size) / penalty) << size << " " << penalty;
    }
  }
}

TEST(NormalizedHessian, RefusesWhatIsNoHessian) {
  expect_error<std::invalid_argument>([] { normalize(at::ones({2, 3}), 0.01); }, {"square", "[2, 3]"});
  expect_error<std::invalid_argument>([] { normalize(at::eye(3), 1.5); }, {"damping", "1.5"});
  at::Tensor indefinite = at::ones({2, 2});
  indefinite[0][1] = 3.0f;
  indefinite[1][0] = 3.0f;
  expect_error<std::invalid_argument>([&] { shifted_inverse(normalize(indefinite, 0.0), 0.1); }, {"semidefinite"});
  expect_error<std::invalid_argument>([&] { shifted_inverse(normalize(at::eye(2), 0.0), 0.0); }, {"penalty"});
}

TEST(ResolveExact, IsTheLeastSquaresSolution) {
  for (const double share : {0.1, 0.5, 0.9}) {
    const at::Tensor weight = random_weight(9, 40, 5), kept = random_mask(9, 40, share, 6);
    const NormalizedHessian hessian = normalize(random_hessian(40, 7), 0.01);
    const at::Tensor found = resolve_exact(weight, kept, hessian);
    const Matrix matrix = damped_matrix(hessian);
    for (int64_t row = 0; row < 9; ++row) {
      const bool* kept_I = kept.const_data_ptr<bool>() + row * 40;
      const std::vector<double> expected =
          least_squares(floats(weight) + row * 40, matrix, [&](size_t i) { return kept_I[i]; });
      for (int64_t i = 0; i < 40; ++i) {
        EXPECT_NEAR(floats(found)[row * 40 + i], expected[i], 1e-7 + 1e-6 * std::abs(expected[i]));
        if (!kept_I[i]) {
          EXPECT_EQ(floats(found)[row * 40 + i], 0.0f);
        }
      }
    }
  }
}

TEST(Resolve, LeadsToTheExactSolution) {
  const int64_t num_in = 96;
  const at::Tensor weight = random_weight(110, num_in, 8);
  const NormalizedHessian hessian = normalize(random_hessian(num_in, 9), 0.01);
  for (const at::Tensor& kept : {keep_best(weight.abs(), kTwoOfFour), random_mask(110, num_in, 0.3, 10)}) {
    const at::Tensor start = masked(weight, kept);
    const RowTraces best = row_traces(weight, resolve_exact(weight, kept, hessian), hessian);
    const ResolveResult found = resolve(weight, start, kept, hessian, kGradients);
    const RowTraces traces = row_traces(weight, found.weight_OI, hessian);
    for (int64_t row = 0; row < 110; ++row) {
      EXPECT_GE(traces.damped_O[row], best.damped_O[row] * (1.0 - kTraceTolerance));
      EXPECT_LE(traces.damped_O[row], best.damped_O[row] * (1.0 + kTraceTolerance));
    }
    EXPECT_EQ(found.num_rows_left, 0);
    EXPECT_NEAR(found.trace_after, total(traces.plain_O), 1e-12 * found.trace_after);
    EXPECT_NEAR(found.trace_before, total(row_traces(weight, start, hessian).plain_O), 1e-12 * found.trace_before);
    EXPECT_TRUE(masked(found.weight_OI, kept).equal(found.weight_OI));
  }
}

// Brute force: the normal equations of each row, by elimination in float64. Rows that do not fall stay, dead columns
// are the start's.
TEST(Resolve, IsExactWhereThatIsAsked) {
  const int64_t num_in = 40;
  at::Tensor hessian = random_hessian(num_in, 31);
  hessian.select(0, 7).zero_();
  hessian.select(1, 7).zero_();
  const at::Tensor weight = random_weight(30, num_in, 32), kept = random_mask(30, num_in, 0.5, 33);
  at::Tensor start = masked(weight, kept);
  start.select(1, 7).mul_(2.0);
  const NormalizedHessian normal = normalize(hessian, 0.02);
  const ResolveResult found = resolve(weight, start, kept, normal, {.gradient_steps = 1, .exact = true});
  const Matrix matrix = damped_matrix(normal);
  EXPECT_EQ(found.num_rows_left, 0);
  for (int64_t row = 0; row < 30; ++row) {
    const bool* kept_I = kept.const_data_ptr<bool>() + row * num_in;
    const std::vector<double> expected =
        least_squares(floats(weight) + row * num_in, matrix, [&](size_t i) { return kept_I[i] && i != 7; });
    for (int64_t i = 0; i < num_in; ++i) {
      const float value = floats(found.weight_OI)[row * num_in + i];
      if (i == 7) {
        EXPECT_EQ(value, floats(start)[row * num_in + i]);
      } else {
        EXPECT_NEAR(value, expected[i], 1e-7 + 1e-6 * std::abs(expected[i]));
      }
    }
  }
  const ResolveResult again = resolve(weight, found.weight_OI, kept, normal, {.exact = true});
  EXPECT_TRUE(again.weight_OI.equal(found.weight_OI));
}

// The tolerance limits the last step alone. The remaining error is a few times that on such matrices.
TEST(Resolve, DefaultsComeClose) {
  const at::Tensor weight = random_weight(64, 192, 11), kept = keep_best(weight.abs(), kTwoOfFour);
  const NormalizedHessian hessian = normalize(random_hessian(192, 12), ResolveOptions{}.damping);
  const double best = total(row_traces(weight, resolve_exact(weight, kept, hessian), hessian).damped_O);
  const at::Tensor found = resolve(weight, masked(weight, kept), kept, hessian, {}).weight_OI;
  EXPECT_LT(total(row_traces(weight, found, hessian).damped_O), 1.002 * best);
}

// Whatever the start is, and with few rounds or many, no row's trace may rise under either H.
TEST(Resolve, NoRowBecomesWorse) {
  const at::Tensor weight = random_weight(60, 48, 13), kept = random_mask(60, 48, 0.5, 14);
  const NormalizedHessian hessian = normalize(random_hessian(48, 15), 0.1);
  const at::Tensor exact = resolve_exact(weight, kept, hessian);
  for (const at::Tensor& start :
       {masked(weight, kept), exact, masked(random_weight(60, 48, 16), kept), at::zeros({60, 48})}) {
    const RowTraces before = row_traces(weight, start, hessian);
    for (const ResolveOptions& options :
         {kGradients, ResolveOptions{.gradient_steps = 1}, ResolveOptions{.gradient_steps = 0}}) {
      const ResolveResult found = resolve(weight, start, kept, hessian, options);
      const RowTraces after = row_traces(weight, found.weight_OI, hessian);
      int64_t num_left = 0;
      for (int64_t row = 0; row < 60; ++row) {
        EXPECT_LE(after.damped_O[row], before.damped_O[row]);
        EXPECT_LE(after.plain_O[row], before.plain_O[row]);
        num_left += found.weight_OI[row].equal(start[row]);
      }
      EXPECT_EQ(found.num_rows_left, num_left);
    }
  }
}

TEST(Resolve, ChangesNothingWhereInputsAreUncorrelated) {
  const at::Tensor weight = random_weight(20, 32, 17), kept = keep_best(weight.abs(), kTwoOfFour);
  const at::Tensor start = masked(weight, kept);
  for (const double damping : {0.0, 0.2}) {
    const NormalizedHessian hessian = normalize(at::diag(random_weight(1, 32, 18).abs().squeeze(0)), damping);
    const ResolveResult found = resolve(weight, start, kept, hessian, kGradients);
    EXPECT_TRUE(found.weight_OI.equal(start));
    EXPECT_EQ(found.trace_after, found.trace_before);
    EXPECT_TRUE(resolve_exact(weight, kept, hessian).equal(start));
  }
}

// An input that never fires says nothing about its weights. They stay, and all others are as without it.
TEST(Resolve, LeavesDeadColumnsAsTheyWere) {
  at::Tensor hessian = random_hessian(24, 19);
  for (const int64_t dead : {3, 10}) {
    hessian.select(0, dead).zero_();
    hessian.select(1, dead).zero_();
  }
  const at::Tensor weight = random_weight(12, 24, 20);
  at::Tensor kept = random_mask(12, 24, 0.5, 21);
  kept.select(1, 3).fill_(true);
  kept.select(1, 10).fill_(false);
  at::Tensor start = masked(weight, kept);
  start.select(1, 3).mul_(2.0);
  for (const double damping : {0.0, 0.05}) {
    const NormalizedHessian normal = normalize(hessian, damping);
    const RowTraces best = row_traces(weight, resolve_exact(weight, kept, normal), normal);
    EXPECT_TRUE(resolve_exact(weight, kept, normal).select(1, 3).equal(weight.select(1, 3)));
    const ResolveResult found = resolve(weight, start, kept, normal, kGradients);
    const RowTraces traces = row_traces(weight, found.weight_OI, normal);
    EXPECT_TRUE(found.weight_OI.select(1, 3).equal(start.select(1, 3)));
    EXPECT_TRUE(found.weight_OI.select(1, 10).equal(at::zeros({12})));
    for (int64_t row = 0; row < 12; ++row) EXPECT_LE(traces.damped_O[row], best.damped_O[row] * (1.0 + 1e-5));
  }
}

// There are fewer inputs than channels and no damping, so many solutions have the same trace.
TEST(Resolve, HoldsForSingularHessians) {
  const int64_t num_in = 40;
  const at::Tensor inputs = random_weight(12, num_in, 22), weight = random_weight(10, num_in, 23);
  const NormalizedHessian hessian = normalize(at::mm(inputs.t(), inputs), 0.0);
  const at::Tensor kept = random_mask(10, num_in, 0.2, 24), start = masked(weight, kept);  // keeps 8 of 40
  const at::Tensor many = random_mask(10, num_in, 0.7, 25), many_start = masked(weight, many);
  const RowTraces best = row_traces(weight, resolve_exact(weight, kept, hessian), hessian);
  const double exact_many = total(row_traces(weight, resolve_exact(weight, many, hessian), hessian).plain_O);
  const RowTraces few = row_traces(weight, resolve(weight, start, kept, hessian, kGradients).weight_OI, hessian);
  for (int64_t row = 0; row < 10; ++row) EXPECT_LE(few.plain_O[row], best.plain_O[row] * (1.0 + 1e-3));
  // 28 columns for 12 inputs can make up for everything, as far as float32 shows. The steps are chosen by traces that
  // are sums of 40 products. Rounding moves these by up to 40 x 2^-24 = 2.4e-6 of the start's, at both ends.
  const ResolveResult all = resolve(weight, many_start, many, hessian, kGradients);
  EXPECT_LT(all.trace_after, 5e-6 * all.trace_before);
  EXPECT_LT(exact_many, 1e-6 * all.trace_before);
}

TEST(Resolve, AnyNumberOfThreadsGivesTheSameBits) {
  const at::Tensor weight = random_weight(250, 160, 26), kept = keep_best(weight.abs(), kTwoOfFour);
  const at::Tensor hessian = random_hessian(160, 27), start = masked(weight, kept);
  const ResolveOptions few{.gradient_steps = 10};
  const int threads = omp_get_max_threads();
  const auto run = [&](int num_threads) {
    omp_set_num_threads(num_threads);
    return resolve(weight, start, kept, normalize(hessian, 0.01), few);
  };
  const ResolveResult alone = run(1);
  for (const int num_threads : {2, 5}) {
    const ResolveResult found = run(num_threads);
    EXPECT_TRUE(found.weight_OI.equal(alone.weight_OI));
    EXPECT_EQ(found.trace_after, alone.trace_after);
  }
  omp_set_num_threads(threads);
}

TEST(Resolve, RefusesWhatDoesNotFit) {
  const at::Tensor weight = random_weight(4, 8, 28), kept = keep_best(weight.abs(), kTwoOfFour);
  const at::Tensor start = masked(weight, kept);
  const NormalizedHessian hessian = normalize(random_hessian(8, 29), 0.01);
  expect_error<std::invalid_argument>([&] { resolve(weight, weight, kept, hessian, {}); }, {"zero where the mask"});
  expect_error<std::invalid_argument>([&] { resolve(weight, start, kept.to(at::kFloat), hessian, {}); }, {"bool"});
  expect_error<std::invalid_argument>([&] { resolve(weight, start, {}, hessian, {}); }, {"mask", "none"});
  expect_error<std::invalid_argument>([&] { resolve(weight, start, kept, normalize(random_hessian(9, 29), 0.01), {}); },
                                      {"8 columns", "[9, 9]"});
  expect_error<std::invalid_argument>([&] { resolve(weight, start, kept, hessian, {.gradient_steps = -1}); },
                                      {"steps", "-1"});
  expect_error<std::invalid_argument>(
      [&] { resolve(weight, start, kept, hessian, {.tolerance = std::numeric_limits<double>::quiet_NaN()}); },
      {"tolerance", "nan"});
  at::Tensor damaged = weight.clone();
  damaged[2][5] = std::numeric_limits<float>::quiet_NaN();
  expect_error<std::invalid_argument>([&] { resolve(damaged, start, kept, hessian, {}); }, {"weight[2, 5]", "nan"});
  expect_error<std::invalid_argument>([&] { resolve_exact(damaged, kept, hessian); }, {"weight[2, 5]", "nan"});
}

}  // namespace
}  // namespace pare
