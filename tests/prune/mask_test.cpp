#include "prune/mask.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "prune/magnitude.h"
#include "prune/owl.h"
#include "prune/wanda.h"
#include "tests/expect_error.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace prune;
using namespace runtime;
namespace {

std::vector<bool> bools(const at::Tensor& kept) {
  const bool* values = kept.const_data_ptr<bool>();
  return std::vector<bool>(values, values + kept.numel());
}

// Returns scores of few different values, so that most comparisons are ties.
at::Tensor tied_scores(int64_t num_out, int64_t num_in, uint32_t seed) {
  return random_weight(num_out, num_in, seed).abs().mul_(40.0).floor_();
}

// Keeps the num_kept best of the indices. A stable sort by descending score keeps ties in order.
void keep_sorted(const float* scores, std::vector<int64_t> indices, int64_t num_kept, std::vector<bool>& kept) {
  std::stable_sort(indices.begin(), indices.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (int64_t k = 0; k < num_kept; ++k) kept[indices[k]] = true;
}

std::vector<bool> sorted_groups(const at::Tensor& scores, int64_t group, int64_t num_kept) {
  std::vector<bool> kept(scores.numel(), false);
  for (int64_t begin = 0; begin < scores.numel(); begin += group) {
    std::vector<int64_t> indices(group);
    std::iota(indices.begin(), indices.end(), begin);
    keep_sorted(floats(scores), indices, num_kept, kept);
  }
  return kept;
}

// No mask with the pattern keeps a larger sum of squares, so no other pruning without data loses less.
TEST(Magnitude, IsTheBestOfAllMasks) {
  for (const SparsePattern pattern : {SparsePattern{1, 2}, {2, 4}, {3, 4}, {4, 8}, {3, 5}, {5, 10}}) {
    const int64_t num_in = pattern.group <= 5 ? 2 * pattern.group : pattern.group;
    const at::Tensor weight = random_weight(6, num_in, 1 + static_cast<uint32_t>(num_in));
    const PrunedWeight pruned = magnitude(weight, pattern);
    EXPECT_TRUE(has_pattern(pruned.kept_OI, pattern));
    for (int64_t row = 0; row < 6; ++row) {
      const float* weights = floats(weight) + row * num_in;
      double best = 0.0, found = 0.0;
      for (int mask = 0; mask < 1 << num_in; ++mask) {
        bool fits = true;
        double sum = 0.0;
        for (int64_t begin = 0; begin < num_in; begin += pattern.group) {
          fits = fits && __builtin_popcount(mask >> begin & ((1 << pattern.group) - 1)) <= pattern.num_kept;
        }
        for (int64_t i = 0; fits && i < num_in; ++i) sum += mask >> i & 1 ? double(weights[i]) * weights[i] : 0.0;
        best = std::max(best, sum);
      }
      for (int64_t i = 0; i < num_in; ++i) {
        const float value = floats(pruned.weight_OI)[row * num_in + i];
        EXPECT_TRUE(value == 0.0f || value == weights[i]);
        found += double(value) * value;
      }
      EXPECT_EQ(found, best);
    }
  }
}

TEST(Mask, TiesKeepTheLowerIndex) {
  const at::Tensor equal = at::ones({2, 40});
  for (const SparsePattern pattern : {SparsePattern{2, 4}, {3, 8}, {7, 20}}) {
    const std::vector<bool> kept = bools(keep_best(equal, pattern));
    for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(kept[i], i % pattern.group < pattern.num_kept);
  }
  const std::vector<bool> of_rows = bools(keep_best(equal, KeepOfRows{0.75}));
  const std::vector<bool> of_layer = bools(keep_best(equal, KeepOfLayer{0.75}));
  for (int64_t i = 0; i < 80; ++i) {
    EXPECT_EQ(of_rows[i], i % 40 < 10);
    EXPECT_EQ(of_layer[i], i < 20);
  }
}

TEST(Mask, AgreesWithSorting) {
  for (const at::Tensor& scores : {tied_scores(9, 240, 2), random_weight(9, 240, 3).abs()}) {
    for (const SparsePattern pattern : {SparsePattern{2, 4}, {4, 8}, {1, 2}, {5, 6}, {8, 16}, {13, 24}, {60, 240}}) {
      EXPECT_EQ(bools(keep_best(scores, pattern)), sorted_groups(scores, pattern.group, pattern.num_kept));
    }
    for (const double ratio : {0.0, 1.0 / 240, 0.1, 0.5, 0.7, 223.0 / 240, 239.0 / 240, 1.0}) {
      const int64_t of_row = num_kept_of(240, ratio);
      EXPECT_EQ(bools(keep_best(scores, KeepOfRows{ratio})), sorted_groups(scores, 240, of_row));
      EXPECT_EQ(bools(keep_best(scores, KeepOfLayer{ratio})),
                sorted_groups(scores, scores.numel(), num_kept_of(scores.numel(), ratio)));
    }
  }
}

TEST(Mask, CountsAreTheNearest) {
  EXPECT_EQ(num_kept_of(100, 0.29), 71);  // 0.29 * 100 is below 29 in binary
  EXPECT_EQ(num_kept_of(10, 0.3), 7);
  EXPECT_EQ(num_kept_of(7, 0.0), 7);
  EXPECT_EQ(num_kept_of(7, 1.0), 0);
}

TEST(Mask, AnyNumberOfThreadsGivesTheSame) {
  const at::Tensor scores = tied_scores(200, 96, 4);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const at::Tensor alone = keep_best(scores, kTwoOfFour), alone_rows = keep_best(scores, KeepOfRows{0.6});
  omp_set_num_threads(5);
  EXPECT_TRUE(alone.equal(keep_best(scores, kTwoOfFour)));
  EXPECT_TRUE(alone_rows.equal(keep_best(scores, KeepOfRows{0.6})));
  omp_set_num_threads(threads);
}

TEST(Mask, RefusesWhatIsNoScore) {
  at::Tensor scores = at::ones({3, 8});
  expect_error<std::invalid_argument>([&] { keep_best(scores, SparsePattern{2, 5}); }, {"2:5", "5 divides", "8"});
  expect_error<std::invalid_argument>([&] { keep_best(scores, SparsePattern{4, 4}); }, {"0 < N < M", "4:4"});
  expect_error<std::invalid_argument>([&] { keep_best(scores, SparsePattern{}); }, {"0 < N < M", "0:0"});
  expect_error<std::invalid_argument>([&] { keep_best(scores, KeepOfRows{1.5}); }, {"ratio", "1.5"});
  expect_error<std::invalid_argument>([&] { keep_best(scores, KeepOfLayer{std::nan("")}); }, {"ratio", "nan"});
  scores[1][3] = -1.0f;
  expect_error<std::invalid_argument>([&] { keep_best(scores, kTwoOfFour); }, {"scores[1, 3]", "-1", "negative"});
  scores[1][3] = std::numeric_limits<float>::quiet_NaN();
  expect_error<std::invalid_argument>([&] { keep_best(scores, kTwoOfFour); }, {"scores[1, 3]", "nan"});
  expect_error<std::invalid_argument>([&] { magnitude(scores, kTwoOfFour); }, {"weight[1, 3]", "nan"});
  expect_error<std::invalid_argument>([&] { wanda(scores, at::ones({8}), kTwoOfFour); }, {"weight[1, 3]"});
}

TEST(GlobalThreshold, KeepsWhatSortingAllLayersKeeps) {
  std::vector<at::Tensor> layers = {tied_scores(5, 64, 10), random_weight(12, 32, 11).abs(), tied_scores(3, 128, 12),
                                    at::zeros({2, 16})};
  layers[1].select(0, 0).mul_(1e-38);  // subnormal scores have the same order as others
  std::vector<float> all;
  for (const at::Tensor& layer : layers) all.insert(all.end(), floats(layer), floats(layer) + layer.numel());
  for (const double ratio : {0.0, 0.03, 0.5, 0.83, 0.999, 1.0}) {
    std::vector<bool> expected(all.size(), false);
    std::vector<int64_t> indices(all.size());
    std::iota(indices.begin(), indices.end(), 0);
    keep_sorted(all.data(), indices, num_kept_of(static_cast<int64_t>(all.size()), ratio), expected);

    GlobalThreshold global(ratio);
    do {
      for (const at::Tensor& layer : layers) global.add(layer);
    } while (global.end_pass());
    ASSERT_EQ(global.rules().size(), layers.size());
    std::vector<bool> found;
    for (size_t n = 0; n < layers.size(); ++n) {
      const std::vector<bool> kept = bools(keep_best(layers[n], global.rules()[n]));
      found.insert(found.end(), kept.begin(), kept.end());
    }
    EXPECT_EQ(found, expected) << ratio;
  }
}

TEST(GlobalThreshold, RefusesWrongUse) {
  expect_error<std::invalid_argument>([] { GlobalThreshold(-0.1); }, {"ratio", "-0.1"});
  expect_error<std::invalid_argument>([] { GlobalThreshold(0.5).end_pass(); }, {"expected some", "found 0"});
  GlobalThreshold global(0.5);
  global.add(at::ones({2, 4}));
  EXPECT_TRUE(global.end_pass());
  global.add(at::ones({1, 4}));
  expect_error<std::invalid_argument>([&] { global.end_pass(); }, {"expected 8", "found 4"});
  EXPECT_THROW(global.rules(), std::logic_error);
}

TEST(Wanda, ScoresAreMagnitudesTimesNormsOfInputs) {
  const at::Tensor weight = random_weight(7, 24, 20), hessian = random_hessian(24, 21);
  const at::Tensor diagonal = hessian.diagonal().contiguous();
  const PrunedWeight pruned = wanda(weight, diagonal, kTwoOfFour);
  std::vector<float> scores(weight.numel());
  for (int64_t i = 0; i < weight.numel(); ++i) {
    scores[i] = std::abs(floats(weight)[i]) * std::sqrt(floats(diagonal)[i % 24]);
  }
  std::vector<bool> expected(weight.numel(), false);
  for (int64_t begin = 0; begin < weight.numel(); begin += 4) {
    keep_sorted(scores.data(), {begin, begin + 1, begin + 2, begin + 3}, 2, expected);
  }
  EXPECT_EQ(bools(pruned.kept_OI), expected);
  EXPECT_TRUE(pruned.weight_OI.equal(weight.mul(pruned.kept_OI)));
}

// A dead input scores 0 whatever its weight is.
TEST(Wanda, DropsDeadColumnsFirst) {
  const at::Tensor weight = at::tensor({9.0f, 1.0f, 2.0f, 9.0f, 9.0f, 9.0f, 9.0f, 1.0f}).reshape({1, 8});
  const at::Tensor diagonal = at::tensor({0.0f, 1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f});
  EXPECT_EQ(bools(wanda(weight, diagonal, kTwoOfFour).kept_OI),
            (std::vector<bool>{false, true, true, false, true, false, false, true}));
}

TEST(Wanda, RefusesADiagonalThatIsNone) {
  const at::Tensor weight = at::ones({2, 4});
  expect_error<std::invalid_argument>([&] { wanda(weight, at::ones({5}), kTwoOfFour); }, {"4 values", "[5]"});
  expect_error<std::invalid_argument>([&] { wanda(weight, {}, kTwoOfFour); }, {"4 values", "none"});
  expect_error<std::invalid_argument>([&] { wanda(weight, at::full({4}, -1.0), kTwoOfFour); }, {"negative", "-1"});
  expect_error<std::invalid_argument>([&] { wanda(weight, at::full({4}, INFINITY), kTwoOfFour); }, {"inf", "finite"});
}

TEST(Owl, SharesCountScoresAboveTheMultipleOfTheMean) {
  // The mean over both layers is 2. 10 is above 4 times the mean, 6 and 8 are not.
  const at::Tensor first = at::tensor({10.0f, 0.0f, 0.0f, 0.0f, 6.0f, 0.0f}).reshape({2, 3});
  const at::Tensor second = at::tensor({8.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}).reshape({1, 6});
  EXPECT_DOUBLE_EQ(outlier_share({first, second}, 4.0), 1.0 / 12.0);
  EXPECT_DOUBLE_EQ(outlier_share({first, second}, 3.9), 2.0 / 12.0);
  EXPECT_DOUBLE_EQ(outlier_share({first, second}, 2.9), 3.0 / 12.0);
  EXPECT_DOUBLE_EQ(outlier_share({at::zeros({2, 2})}, 5.0), 0.0);
  expect_error<std::invalid_argument>([] { outlier_share({}, 5.0); }, {"at least one", "none"});
  expect_error<std::invalid_argument>([&] { outlier_share({first}, 0.0); }, {"outlier", "0"});
}

TEST(Owl, RatiosKeepTheMeanAndTheBound) {
  const std::vector<OwlUnit> units = {{0.02, 1000}, {0.005, 4000}, {0.01, 1000}, {0.05, 2000}, {0.005, 3000}};
  for (const double bound : {0.0, 0.08, 0.3}) {
    const std::vector<double> ratios = owl_ratios(units, 0.6, {.outlier = 5.0, .bound = bound});
    double sum = 0.0, weights = 0.0, largest = 0.0;
    for (size_t n = 0; n < units.size(); ++n) {
      sum += ratios[n] * static_cast<double>(units[n].num_weights);
      weights += static_cast<double>(units[n].num_weights);
      largest = std::max(largest, std::abs(ratios[n] - 0.6));
      for (size_t m = 0; m < units.size(); ++m) {
        if (bound > 0.0 && units[n].outlier_share > units[m].outlier_share) {
          EXPECT_LT(ratios[n], ratios[m]);
        }
        if (units[n].outlier_share == units[m].outlier_share) {
          EXPECT_EQ(ratios[n], ratios[m]);
        }
      }
    }
    EXPECT_NEAR(sum / weights, 0.6, 1e-12);
    EXPECT_NEAR(largest, bound, 1e-12);
  }
  for (const double ratio : owl_ratios({{0.01, 10}, {0.01, 90}}, 0.5, {})) EXPECT_EQ(ratio, 0.5);
}

TEST(Owl, RefusesWhatCannotHold) {
  expect_error<std::invalid_argument>([] { owl_ratios({}, 0.5, {}); }, {"at least one"});
  expect_error<std::invalid_argument>([] { owl_ratios({{0.1, 10}}, 0.05, {}); }, {"ratio - bound", "0.05"});
  expect_error<std::invalid_argument>([] { owl_ratios({{0.1, 10}}, 0.95, {}); }, {"ratio + bound", "0.95"});
  expect_error<std::invalid_argument>([] { owl_ratios({{1.5, 10}}, 0.5, {}); }, {"outlier share", "1.5"});
  expect_error<std::invalid_argument>([] { owl_ratios({{0.1, 0}}, 0.5, {}); }, {"weights", "0"});
}

}  // namespace
}  // namespace pare
