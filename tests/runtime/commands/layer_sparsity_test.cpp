// Tests which zeros of a weight count as pruned, and in which pattern.
#include "runtime/commands/layer_sparsity.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <span>

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kRows = 96, kColumns = 128;

// Returns float32 weights [kRows, kColumns] that are zero where is_kept(row, column) is false.
template <typename IsKept>
std::vector<float> weight_where(IsKept&& is_kept) {
  std::vector<float> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      const float size = 0.5f + 1e-3f * static_cast<float>((row * kColumns + column) % 997);
      values.push_back(is_kept(row, column) ? (row % 2 == 0 ? size : -size) : 0.0f);
    }
  }
  return values;
}

LinearWeights linear_of(const std::vector<float>& values, int64_t num_in = kColumns) {
  const DenseWeight weight{.num_out = static_cast<int64_t>(values.size()) / num_in,
                           .num_in = num_in,
                           .dtype = DType::F32,
                           .data = std::as_bytes(std::span(values))};
  return {"linear", weight, {}};
}

// Returns a weight in which each group of M keeps N values at random places.
std::vector<float> pattern_weight(const SparsePattern& pattern) {
  std::mt19937 generator(3);
  std::vector<bool> kept;
  for (int64_t i = 0; i < kRows * kColumns; i += pattern.group) {
    std::vector<bool> group(static_cast<size_t>(pattern.group));
    std::fill_n(group.begin(), pattern.num_kept, true);
    std::shuffle(group.begin(), group.end(), generator);
    kept.insert(kept.end(), group.begin(), group.end());
  }
  return weight_where([&](int64_t row, int64_t column) { return kept[static_cast<size_t>(row * kColumns + column)]; });
}

std::vector<float> unstructured(double share) {
  std::mt19937 generator(4);
  return weight_where([&](int64_t, int64_t) { return generator() / 4294967296.0 >= share; });
}

TEST(PrunedZeros, FindsThePatternThatNothingSpeaksOf) {
  for (const SparsePattern pattern :
       {SparsePattern{1, 2}, {2, 4}, {1, 4}, {3, 4}, {4, 8}, {2, 8}, {1, 8}, {8, 16}, {16, 32}, {4, 32}}) {
    std::vector<float> values = pattern_weight(pattern);
    const auto found = pruned_zeros(linear_of(values), nullptr);
    ASSERT_TRUE(found) << pattern_name(pattern);
    EXPECT_EQ(pattern_name(found->pattern), pattern_name(pattern));
    EXPECT_EQ(found->num_zeros, kRows * kColumns * (pattern.group - pattern.num_kept) / pattern.group);
    EXPECT_FALSE(found->is_claimed);
    // More zeros still fit the pattern, and one nonzero weight too many breaks it.
    for (size_t i = 0; i < values.size(); i += 97) values[i] = 0.0f;
    EXPECT_EQ(pruned_zeros(linear_of(values), nullptr)->pattern, pattern) << pattern_name(pattern);
    std::fill_n(values.begin(), pattern.group, 1.0f);
    EXPECT_NE(pruned_zeros(linear_of(values), nullptr)->pattern, pattern) << pattern_name(pattern);
  }
}

TEST(PrunedZeros, TakesNoPatternForAnAccident) {
  for (const double share : {0.1, 0.3, 0.5, 0.7, 0.9, 0.99}) {
    const std::vector<float> values = unstructured(share);
    const auto found = pruned_zeros(linear_of(values), nullptr);
    ASSERT_TRUE(found) << share;
    EXPECT_EQ(pattern_name(found->pattern), "none") << share;
  }
  const std::vector<float> nothing(kRows * kColumns, -0.0f), odd(33 * 33, 0.0f);
  EXPECT_TRUE(pruned_zeros(linear_of(nothing), nullptr)->pattern.is_dense());
  EXPECT_TRUE(pruned_zeros(linear_of(odd, 33), nullptr)->pattern.is_dense());
}

TEST(PrunedZeros, AreMoreThanATwentiethUnlessTheyAreClaimed) {
  constexpr int64_t kTwentieth = kRows * kColumns / kPrunedShare;
  static_assert(kTwentieth * kPrunedShare != kRows * kColumns);
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 1.0f);
  std::fill_n(values.begin(), kTwentieth, 0.0f);
  EXPECT_FALSE(pruned_zeros(linear_of(values), nullptr));
  const SparsityClaim unstructured_claim{.pattern = {}, .zeros = 0.01};
  const auto claimed = pruned_zeros(linear_of(values), &unstructured_claim);
  ASSERT_TRUE(claimed);
  EXPECT_TRUE(claimed->is_claimed);
  EXPECT_EQ(claimed->num_zeros, kTwentieth);
  values[kTwentieth] = 0.0f;
  EXPECT_TRUE(pruned_zeros(linear_of(values), nullptr));
  const std::vector<float> dense(kRows * kColumns, 1.0f);
  EXPECT_FALSE(pruned_zeros(linear_of(dense), &unstructured_claim)) << "a claim without a zero has nothing to keep";
}

// Weights that were codes hold the zeros of their grid, which nobody pruned. Normal weights are rounded in groups of 32
// to the grids of Q4_0, MXFP4 and three values. Of pruned ones the grid has more zeros.
TEST(PrunedZeros, AreNotThoseOfAGrid) {
  const std::vector<std::vector<float>> grids = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}, {0, 1, 2, 3}, {0, 1}};
  for (const std::vector<float>& grid : grids) {
    for (const double pruned : {0.0, 0.5}) {
      std::mt19937 generator(5);
      std::normal_distribution<float> normal;
      std::vector<float> values(kRows * kColumns);
      for (float& value : values) value = normal(generator);
      for (float& value : values) {
        if (generator() / 4294967296.0 < pruned) value = 0.0f;
      }
      for (size_t begin = 0; begin < values.size(); begin += 32) {
        float largest = 0.0f;
        for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::abs(values[i]));
        const float scale = grid.size() == 2 ? 1.0f : largest / grid.back();
        for (size_t i = begin; i < begin + 32; ++i) {
          const float size = std::abs(values[i]) / scale;
          const auto nearest = std::min_element(
              grid.begin(), grid.end(), [&](float a, float b) { return std::abs(a - size) < std::abs(b - size); });
          values[i] = std::copysign(*nearest * scale, values[i]);
        }
      }
      const auto zeros = std::count(values.begin(), values.end(), 0.0f);
      ASSERT_GT(zeros * kPrunedShare, kRows * kColumns);
      EXPECT_EQ(pruned_zeros(linear_of(values), nullptr).has_value(), pruned > 0.0) << grid.size() << ", " << pruned;
      const SparsityClaim claim{.pattern = {}, .zeros = 0.05};
      EXPECT_TRUE(pruned_zeros(linear_of(values), &claim));
    }
  }
}

TEST(PrunedZeros, BelieveAClaimThatHolds) {
  const std::vector<float> values = pattern_weight({1, 4});
  for (const SparsePattern pattern : {SparsePattern{2, 4}, {4, 8}, {1, 4}}) {
    const SparsityClaim claim{.pattern = pattern};
    EXPECT_EQ(pruned_zeros(linear_of(values), &claim)->pattern, pattern);
  }
  for (const SparsePattern pattern : {SparsePattern{1, 8}, {2, 3}}) {  // a pattern that is broken, and one with another
                                                                       // group size
    const SparsityClaim claim{.pattern = pattern};
    EXPECT_TRUE(pruned_zeros(linear_of(values), &claim)->pattern.is_dense());
  }
}

TEST(PrunedZeros, AreNotThoseOfCodes) {
  QuantizedWeight weight;
  weight.num_out = 4;
  weight.num_in = 8;
  weight.bits = 4;
  weight.codes_OI.assign(32, 8);
  weight.scales_OG.assign(4, 1.0f);
  const SparsityClaim claim{.pattern = kTwoOfFour};
  EXPECT_FALSE(pruned_zeros({"linear", weight, {}}, nullptr));
  EXPECT_FALSE(pruned_zeros({"linear", weight, {}}, &claim));
}

}  // namespace
}  // namespace pare
