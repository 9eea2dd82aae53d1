#include "prune/alps.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>

#include "prune/resolve.h"
#include "prune/wanda.h"
#include "tests/expect_error.h"
#include "tests/prune/plain_sparse.h"

namespace pare {
using namespace prune;
using namespace runtime;
namespace {

AlpsResult alps_of(const at::Tensor& weight, const KeepRule& rule, const NormalizedHessian& hessian) {
  return alps({weight}, {rule}, hessian, {}, {})[0];
}

// Returns the least trace of a row over all masks that `fits` allows, with weights solved exactly.
template <typename Fits>
double best_of_all(const float* weights_I, const Matrix& matrix, Fits&& fits) {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned mask = 0; mask < 1u << matrix.size(); ++mask) {
    if (!fits(mask)) continue;
    const std::vector<double> values = least_squares(weights_I, matrix, [&](size_t i) { return mask >> i & 1; });
    best = std::min(best, plain_trace(weights_I, values, matrix));
  }
  return best;
}

// Small problems must have these properties. No row is below the best of all masks, so the traces are right. All rows
// together lose at most a fifth of the distance between the best and Wanda's mask with its weights re-solved. Most rows
// find the very best.
TEST(Alps, IsCloseToTheBestOfAllMasks) {
  constexpr int64_t kRows = 60;
  const auto count = [](unsigned mask) { return __builtin_popcount(mask); };
  for (const uint32_t seed : {1u, 2u, 3u}) {
    const at::Tensor weight = random_weight(kRows, 8, seed);
    const NormalizedHessian hessian = normalize(random_hessian(8, 10 + seed), 0.01);
    const Matrix matrix = damped_matrix(hessian);
    for (const bool is_pattern : {true, false}) {
      const KeepRule rule = is_pattern ? KeepRule(kTwoOfFour) : KeepRule(KeepOfRows{0.5});
      const AlpsResult found = alps_of(weight, rule, hessian);
      const PrunedWeight first = wanda(weight, hessian.hessian_II.diagonal().contiguous(), rule);
      const at::Tensor solved = resolve_exact(weight, first.kept_OI, hessian);
      double best_total = 0.0, found_total = 0.0, first_total = 0.0;
      int num_best = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        const double best = best_of_all(floats(weight) + row * 8, matrix, [&](unsigned mask) {
          return is_pattern ? count(mask & 15) == 2 && count(mask >> 4) == 2 : count(mask) == 4;
        });
        const double trace = plain_trace(weight, found.pruned.weight_OI, row, matrix);
        EXPECT_GE(trace, best * (1.0 - 1e-6));
        num_best += trace <= best * 1.001;
        best_total += best;
        found_total += trace;
        first_total += plain_trace(weight, solved, row, matrix);
      }
      EXPECT_LT(found_total - best_total, 0.2 * (first_total - best_total)) << seed << (is_pattern ? " 2:4" : " rows");
      EXPECT_GT(num_best, kRows / 2) << seed << (is_pattern ? " 2:4" : " rows");
    }
  }
}

// Checks the same among the masks within an allowed set: the zeros of a weight that was pruned before.
TEST(Alps, IsCloseToTheBestOfAllMasksWithinAnother) {
  constexpr int64_t kRows = 60;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    std::mt19937 generator(seed);
    const at::Tensor allowed = at::ones({kRows, 8}, at::kBool);
    std::vector<unsigned> allowed_O(kRows, 0);
    for (int64_t i = 0; i < kRows * 8; ++i) {
      allowed.mutable_data_ptr<bool>()[i] = generator() % 4 != 0;
      allowed_O[size_t(i / 8)] |= unsigned{allowed.const_data_ptr<bool>()[i]} << i % 8;
    }
    const at::Tensor weight = masked(random_weight(kRows, 8, seed), allowed);
    const NormalizedHessian hessian = normalize(random_hessian(8, 10 + seed), 0.01);
    const Matrix matrix = damped_matrix(hessian);
    for (const bool is_pattern : {true, false}) {
      const KeepRule rule = is_pattern ? KeepRule(kTwoOfFour) : KeepRule(KeepOfRows{0.5});
      const AlpsResult found = alps({weight}, {rule}, hessian, {}, {}, {allowed})[0];
      EXPECT_FALSE(found.pruned.kept_OI.logical_and(allowed.logical_not()).any().item<bool>());
      EXPECT_TRUE(masked(found.pruned.weight_OI, found.pruned.kept_OI).equal(found.pruned.weight_OI));
      int num_best = 0, num_pruned = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto count = [&](unsigned mask) { return __builtin_popcount(mask); };
        const double best = best_of_all(floats(weight) + row * 8, matrix, [&](unsigned mask) {
          const bool fits = is_pattern ? count(mask & 15) <= 2 && count(mask >> 4) <= 2 : count(mask) <= 4;
          return fits && (mask & ~allowed_O[size_t(row)]) == 0;
        });
        const double trace = plain_trace(weight, found.pruned.weight_OI, row, matrix);
        if (best < 1e-20) {  // the allowed weights are few enough: only the rounding of the solution is lost
          EXPECT_EQ(trace, 0.0);
          continue;
        }
        EXPECT_GE(trace, best * (1.0 - 1e-6));
        ++num_pruned;
        num_best += trace <= best * 1.001;
      }
      EXPECT_GT(2 * num_best, num_pruned) << seed << (is_pattern ? " 2:4" : " rows");
    }
  }
}

TEST(Alps, KeepsThePatternAndSolvesOnIt) {
  const at::Tensor weight = random_weight(100, 96, 20);
  const NormalizedHessian hessian = normalize(random_hessian(96, 21), 0.01);
  for (const KeepRule& rule : {KeepRule(kTwoOfFour), KeepRule(SparsePattern{4, 8}), KeepRule(SparsePattern{3, 32}),
                               KeepRule(KeepOfRows{0.7}), KeepRule(KeepOfLayer{0.6}), KeepRule(KeepAbove{0.06f, 0})}) {
    const AlpsResult found = alps_of(weight, rule, hessian);
    const at::Tensor& kept = found.pruned.kept_OI;
    EXPECT_TRUE(masked(found.pruned.weight_OI, kept).equal(found.pruned.weight_OI));
    if (const SparsePattern* pattern = std::get_if<SparsePattern>(&rule)) {
      EXPECT_TRUE(has_pattern(kept, *pattern));
      EXPECT_EQ(kept.sum().item<int64_t>(), weight.numel() / pattern->group * pattern->num_kept);
    } else {
      EXPECT_TRUE(kept.sum(1).equal(keep_best(weight.mul(hessian.root_I).abs(), rule).sum(1)));
    }
    const RowTraces traces = row_traces(weight, found.pruned.weight_OI, hessian);
    const RowTraces best = row_traces(weight, resolve_exact(weight, kept, hessian), hessian);
    double sum = 0.0, damped = 0.0, best_damped = 0.0;
    for (int64_t row = 0; row < 100; ++row) {
      sum += traces.plain_O[row];
      damped += traces.damped_O[row];
      best_damped += best.damped_O[row];
    }
    EXPECT_NEAR(found.trace_error, sum, 1e-12 * sum);
    EXPECT_LT(damped, 1.002 * best_damped);
  }
}

// With uncorrelated inputs every weight's error is independent of the others, and Wanda's mask is the best.
TEST(Alps, IsWandaWhereInputsAreUncorrelated) {
  const at::Tensor weight = random_weight(40, 64, 22), diagonal = random_weight(1, 64, 23).abs().squeeze(0);
  const NormalizedHessian hessian = normalize(at::diag(diagonal), 0.0);
  for (const KeepRule& rule : {KeepRule(kTwoOfFour), KeepRule(KeepOfRows{0.5}), KeepRule(KeepOfLayer{0.5})}) {
    const AlpsResult found = alps_of(weight, rule, hessian);
    const PrunedWeight expected = wanda(weight, diagonal, rule);
    const RowTraces mine = row_traces(weight, found.pruned.weight_OI, hessian);
    const RowTraces best = row_traces(weight, expected.weight_OI, hessian);
    if (std::holds_alternative<KeepOfLayer>(rule)) {
      // The rows' own numbers of weights are those of Wanda's mask.
      EXPECT_TRUE(found.pruned.kept_OI.sum(1).equal(expected.kept_OI.sum(1)));
    }
    EXPECT_TRUE(found.pruned.kept_OI.equal(expected.kept_OI));
    for (int64_t row = 0; row < 40; ++row) EXPECT_NEAR(mine.plain_O[row], best.plain_O[row], 1e-6 * best.plain_O[row]);
  }
}

// Inputs are correlated as a language model's. ALPS must leave a quarter less error than SparseGPT, and a tenth less
// than the best weights for SparseGPT's mask.
TEST(Alps, LeavesLessThanSparseGpt) {
  const int64_t num_in = 96, num_rows = 16;
  const at::Tensor weight = random_weight(num_rows, num_in, 24);
  const NormalizedHessian hessian = normalize(random_hessian(num_in, 25), 0.01);
  const Matrix matrix = damped_matrix(hessian);
  for (const SparsePattern pattern : {SparsePattern{2, 4}, {4, 8}}) {
    const AlpsResult found = alps_of(weight, pattern, hessian);
    double mine = 0.0, sparsegpt = 0.0, solved = 0.0;
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* weights_I = floats(weight) + row * num_in;
      const std::vector<double> other = plain_sparsegpt(weights_I, matrix, pattern);
      mine += plain_trace(weight, found.pruned.weight_OI, row, matrix);
      sparsegpt += plain_trace(weights_I, other, matrix);
      solved +=
          plain_trace(weights_I, least_squares(weights_I, matrix, [&](size_t i) { return other[i] != 0.0; }), matrix);
    }
    EXPECT_LT(mine, 0.75 * sparsegpt) << pattern.group;
    EXPECT_LT(mine, 0.90 * solved) << pattern.group;
  }
}

TEST(Alps, NoRowIsWorseThanWanda) {
  const at::Tensor weight = random_weight(80, 40, 26);
  const NormalizedHessian hessian = normalize(random_hessian(40, 27), 0.0);
  const at::Tensor kept = keep_best(weight.mul(hessian.root_I).abs(), kTwoOfFour);
  const RowTraces first = row_traces(weight, masked(weight, kept), hessian);
  for (const AlpsOptions& options : {AlpsOptions{}, AlpsOptions{.num_penalties = 1, .rounds = 1},
                                     AlpsOptions{.first_penalty = 1e-3, .last_penalty = 1e-3, .num_penalties = 2}}) {
    const AlpsResult found = alps({weight}, {kTwoOfFour}, hessian, options, {.gradient_steps = 0})[0];
    const RowTraces last = row_traces(weight, found.pruned.weight_OI, hessian);
    EXPECT_TRUE(has_pattern(found.pruned.kept_OI, kTwoOfFour));
    for (int64_t row = 0; row < 80; ++row) EXPECT_LE(last.damped_O[row], first.damped_O[row]);
  }
}

TEST(Alps, HoldsForDeadColumnsAndSingularHessians) {
  const at::Tensor inputs = random_weight(20, 48, 28), weight = random_weight(30, 48, 29);
  // A whole group is dead, and one column of another.
  for (const int64_t dead : {0, 1, 2, 3, 17}) inputs.select(1, dead).zero_();
  for (const double damping : {0.0, 0.01}) {
    const NormalizedHessian hessian = normalize(at::mm(inputs.t(), inputs), damping);
    const AlpsResult found = alps_of(weight, kTwoOfFour, hessian);
    EXPECT_TRUE(has_pattern(found.pruned.kept_OI, kTwoOfFour));
    EXPECT_FALSE(found.pruned.kept_OI.select(1, 17).any().item<bool>());
    // Among inputs that never fire, the lower ones are kept, unchanged.
    EXPECT_TRUE(found.pruned.weight_OI.narrow(1, 0, 2).equal(weight.narrow(1, 0, 2)));
    const PrunedWeight first = wanda(weight, hessian.hessian_II.diagonal().contiguous(), kTwoOfFour);
    const ResolveResult solved = resolve(weight, first.weight_OI, first.kept_OI, hessian, {});
    EXPECT_LT(found.trace_error, solved.trace_before);
    if (damping > 0.0) {
      EXPECT_LT(found.trace_error, solved.trace_after);
    }
  }
}

TEST(Alps, AnyThreadsAndAnyCompanyGiveTheSameBits) {
  const at::Tensor first = random_weight(130, 64, 30), second = random_weight(40, 64, 31);
  const at::Tensor hessian = random_hessian(64, 32);
  const int threads = omp_get_max_threads();
  const auto run = [&](int num_threads, const std::vector<at::Tensor>& weights, const std::vector<KeepRule>& rules) {
    omp_set_num_threads(num_threads);
    return alps(weights, rules, normalize(hessian, 0.01), {}, {});
  };
  const AlpsResult alone = run(1, {first}, {kTwoOfFour})[0];
  const AlpsResult other = run(1, {second}, {KeepOfRows{0.4}})[0];
  for (const int num_threads : {1, 2, 5}) {
    const std::vector<AlpsResult> both = run(num_threads, {first, second}, {kTwoOfFour, KeepOfRows{0.4}});
    EXPECT_TRUE(both[0].pruned.weight_OI.equal(alone.pruned.weight_OI));
    EXPECT_TRUE(both[1].pruned.weight_OI.equal(other.pruned.weight_OI));
    EXPECT_EQ(both[0].trace_error, alone.trace_error);
  }
  omp_set_num_threads(threads);
}

TEST(Alps, RefusesWhatDoesNotFit) {
  at::Tensor weight = random_weight(4, 12, 33);
  const NormalizedHessian hessian = normalize(random_hessian(12, 34), 0.01);
  expect_error<std::invalid_argument>([&] { alps({weight}, {}, hessian, {}, {}); }, {"1 layers", "found 0"});
  expect_error<std::invalid_argument>(
      [&] {
        alps({weight}, {kTwoOfFour}, hessian, {}, {}, {{}, {}});
      },
      {"1 layers", "and 2"});
  const at::Tensor none = at::ones({4, 12}, at::kBool).logical_not();
  expect_error<std::invalid_argument>([&] { alps({weight}, {kTwoOfFour}, hessian, {}, {}, {none}); },
                                      {"zero where nothing may be kept"});
  expect_error<std::invalid_argument>([&] { alps_of(weight, SparsePattern{4, 8}, hessian); }, {"4:8", "8 divides"});
  expect_error<std::invalid_argument>([&] { alps_of(random_weight(4, 8, 33), kTwoOfFour, hessian); },
                                      {"8 columns", "[12, 12]"});
  expect_error<std::invalid_argument>([&] { alps({weight}, {kTwoOfFour}, hessian, {.rounds = 0}, {}); }, {"penalties"});
  expect_error<std::invalid_argument>([&] { alps({weight}, {kTwoOfFour}, hessian, {.first_penalty = 0.0}, {}); },
                                      {"penalties"});
  expect_error<std::invalid_argument>([&] { alps({weight}, {kTwoOfFour}, hessian, {}, {.gradient_steps = -2}); },
                                      {"steps", "-2"});
  weight[1][7] = std::numeric_limits<float>::infinity();
  expect_error<std::invalid_argument>([&] { alps_of(weight, kTwoOfFour, hessian); }, {"weight[1, 7]", "inf"});
}

}  // namespace
}  // namespace pare
