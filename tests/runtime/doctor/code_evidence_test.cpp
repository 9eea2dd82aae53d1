// What codes tell: statistics of cells beside plain counting, and what they say of codes that are made here.
#include "runtime/doctor/code_evidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kOut = 32, kIn = 128, kGroups = 8;

struct Codes {
  std::vector<uint8_t> codes_OI, zeros_GO;
  std::vector<float> scales_GO, weight_OI;
  std::vector<int32_t> group_of_I;
};

// Rounds normally distributed weights in groups, with the range's scales.
Codes make_codes(int bits, bool symmetric, bool moves_columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Codes made;
  made.group_of_I = groups_in_place(kIn, kGroups);
  if (moves_columns) std::shuffle(made.group_of_I.begin(), made.group_of_I.end(), random);
  for (int64_t i = 0; i < kOut * kIn; ++i) made.weight_OI.push_back(normal(random));
  made.codes_OI.resize(made.weight_OI.size());
  made.scales_GO.resize(kGroups * kOut);
  made.zeros_GO.resize(kGroups * kOut);
  const int largest = (1 << bits) - 1;
  for (int64_t row = 0; row < kOut; ++row) {
    for (int64_t group = 0; group < kGroups; ++group) {
      float low = 0.0f, high = 0.0f;
      for (int64_t column = 0; column < kIn; ++column) {
        if (made.group_of_I[column] != group) continue;
        low = std::min(low, made.weight_OI[row * kIn + column]);
        high = std::max(high, made.weight_OI[row * kIn + column]);
      }
      if (symmetric) low = -(high = std::max(high, -low));
      const float scale = (high - low) / static_cast<float>(largest);
      const int zero = symmetric ? 1 << (bits - 1) : static_cast<int>(std::lrint(-low / scale));
      made.scales_GO[group * kOut + row] = scale;
      made.zeros_GO[group * kOut + row] = static_cast<uint8_t>(zero);
      for (int64_t column = 0; column < kIn; ++column) {
        if (made.group_of_I[column] != group) continue;
        const int code = zero + static_cast<int>(std::lrint(made.weight_OI[row * kIn + column] / scale));
        made.codes_OI[row * kIn + column] = static_cast<uint8_t>(std::clamp(code, 0, largest));
      }
    }
  }
  return made;
}

CellStatistics cells_of(const Codes& codes, const std::vector<int32_t>& group_of_I, int bits) {
  return cell_statistics(codes.codes_OI, kOut, group_of_I, kGroups, bits);
}

std::vector<int64_t> rows_as_they_are() {
  std::vector<int64_t> rows(kOut);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

TEST(CodeEvidence, CellsAreCounted) {
  // One row of six codes of 4 bits, in groups of 0 2 4 and of 1 3 5.
  const std::vector<uint8_t> codes = {3, 15, 5, 8, 7, 4};
  const std::vector<int32_t> groups = {0, 1, 0, 1, 0, 1};
  const CellStatistics cells = cell_statistics(codes, 1, groups, 2, 4);
  EXPECT_EQ(cells.columns_G, (std::vector<int64_t>{3, 3}));
  EXPECT_FLOAT_EQ(cells.mean_OG[0], 5.0f);
  EXPECT_FLOAT_EQ(cells.deviation_OG[0], std::sqrt(8.0f / 3.0f));
  EXPECT_EQ(cells.reaches_OG, (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(cells.num_ends_O, std::vector<int64_t>{1});
  // One of six codes is at an end: a group of three has it in half of all orders.
  const Reach reach = reach_of(cells);
  EXPECT_EQ(reach.num_cells, 2.0);
  EXPECT_EQ(reach.num_reached, 1.0);
  EXPECT_NEAR(reach.num_if_shuffled, 1.0, 1e-12);
}

// The expectation by chance is the mean over shuffles.
TEST(CodeEvidence, ChanceIsWhatShufflesGive) {
  const Codes codes = make_codes(4, true, false, 1);
  const Reach reach = reach_of(cells_of(codes, codes.group_of_I, 4));
  EXPECT_EQ(reach.num_reached, reach.num_cells);
  std::mt19937 random(2);
  double sum = 0.0;
  constexpr int kShuffles = 200;
  for (int n = 0; n < kShuffles; ++n) {
    std::vector<int32_t> groups = codes.group_of_I;
    std::shuffle(groups.begin(), groups.end(), random);
    sum += reach_of(cells_of(codes, groups, 4)).num_reached;
  }
  // A cell's chance has a variance of at most 1/4. Cells of one shuffle depend on each other, at worst entirely within
  // a row: 8 times the variance of independent ones.
  const double error = std::sqrt(0.25 * reach.num_cells * kGroups / kShuffles);
  EXPECT_NEAR(sum / kShuffles, reach.num_if_shuffled, 4.0 * error);
}

TEST(CodeEvidence, EndsTellTheGroups) {
  for (const int bits : {3, 4, 8}) {
    Reach right, wrong;
    for (unsigned seed = 0; seed < 8; ++seed) {
      const Codes codes = make_codes(bits, seed % 2 == 0, true, seed);
      right.add(reach_of(cells_of(codes, codes.group_of_I, bits)));
      wrong.add(reach_of(cells_of(codes, groups_in_place(kIn, kGroups), bits)));
    }
    EXPECT_TRUE(right.shows_groups()) << bits;
    EXPECT_FALSE(right.shows_chance()) << bits;
    EXPECT_FALSE(wrong.shows_groups()) << bits;
    EXPECT_TRUE(wrong.shows_chance()) << bits << ' ' << wrong.share() << ' ' << wrong.share_if_shuffled();
  }
  EXPECT_FALSE(Reach{}.shows_groups());
  EXPECT_FALSE(Reach{}.shows_chance());
}

TEST(CodeEvidence, RowsTellTheZeros) {
  const Codes codes = make_codes(4, false, false, 5);
  const CellStatistics cells = cells_of(codes, codes.group_of_I, 4);
  const RowMeans right = row_means(cells, codes.scales_GO, codes.zeros_GO);
  // The oracle decodes the weights.
  const std::vector<float> weight = decoded(codes.codes_OI, kOut, codes.group_of_I, codes.scales_GO, codes.zeros_GO);
  double sum = 0.0;
  for (int64_t row = 0; row < kOut; ++row) {
    double mean = 0.0, square = 0.0;
    for (int64_t i = 0; i < kIn; ++i) mean += weight[row * kIn + i] / static_cast<double>(kIn);
    for (int64_t i = 0; i < kIn; ++i) square += std::pow(weight[row * kIn + i] - mean, 2) / static_cast<double>(kIn);
    sum += mean / std::sqrt(square);
  }
  EXPECT_NEAR(right.mean(), sum / kOut, 1e-5);
  // A mean of 128 normal values has a standard deviation of 1 / sqrt(128), and rows are independent.
  EXPECT_NEAR(right.standard_error(), 1.0 / std::sqrt(static_cast<double>(kIn * kOut)), 0.4 / std::sqrt(kIn * kOut));
  EXPECT_LT(std::abs(right.mean()), 4.0 * right.standard_error());
  std::vector<uint8_t> wrong_zeros = codes.zeros_GO;
  for (uint8_t& zero : wrong_zeros) ++zero;
  EXPECT_LT(row_means(cells, codes.scales_GO, wrong_zeros).mean(), -0.2);
}

TEST(CodeEvidence, ScalesTellTheRows) {
  const Codes codes = make_codes(4, true, false, 9);
  const CellStatistics cells = cells_of(codes, codes.group_of_I, 4);
  const Correlation right = scale_correlation(cells, codes.scales_GO, rows_as_they_are());
  std::vector<int64_t> neighbours = rows_as_they_are();
  for (int64_t& row : neighbours) row ^= 1;
  const Correlation wrong = scale_correlation(cells, codes.scales_GO, neighbours);
  EXPECT_LT(right.value(), -0.4);
  EXPECT_LT(std::abs(wrong.value()), 4.0 * wrong.standard_error());
  EXPECT_EQ(right.num_cells, kOut * kGroups);
  // One group has no neighbour to be compared with.
  const CellStatistics one = cell_statistics(codes.codes_OI, kOut, std::vector<int32_t>(kIn, 0), 1, 4);
  EXPECT_EQ(scale_correlation(one, std::vector<float>(kOut, 1.0f), rows_as_they_are()).value(), 0.0);
}

TEST(CodeEvidence, ZerosOfOthersLieFartherAway) {
  const Codes codes = make_codes(4, false, false, 11);
  const CellStatistics cells = cells_of(codes, codes.group_of_I, 4);
  std::vector<int64_t> neighbours = rows_as_they_are();
  for (int64_t& row : neighbours) row ^= 1;
  EXPECT_LT(distance_from_zeros(cells, codes.zeros_GO, rows_as_they_are()),
            0.8 * distance_from_zeros(cells, codes.zeros_GO, neighbours));
}

TEST(CodeEvidence, GroupsAreDescribed) {
  EXPECT_FALSE(group_index({}, 4, 2).is_there);
  const GroupIndex place = group_index(std::vector<int32_t>{0, 0, 1, 1}, 4, 2);
  EXPECT_TRUE(place.is_there);
  EXPECT_EQ(place.num_moved + place.num_outside + place.num_uneven, 0);
  const GroupIndex moved = group_index(std::vector<int32_t>{1, 0, 0, 1}, 4, 2);
  EXPECT_EQ(moved.num_moved, 2);
  EXPECT_EQ(moved.num_uneven, 0);
  const GroupIndex ill = group_index(std::vector<int32_t>{1, 1, -1, 1}, 4, 2);
  EXPECT_EQ(ill.num_outside, 1);
  EXPECT_EQ(ill.num_uneven, 2);
  EXPECT_EQ(ill.largest, 3);
  EXPECT_TRUE(group_index(std::vector<int32_t>(4, 0), 4, 2).is_all_zero);
  EXPECT_FALSE(group_index(std::vector<int32_t>(4, 0), 4, 1).is_all_zero);
}

TEST(CodeEvidence, DifferencesAreRelative) {
  EXPECT_EQ(relative_difference(std::vector<float>{3.0f, 4.0f}, std::vector<float>{3.0f, 4.0f}), 0.0);
  EXPECT_DOUBLE_EQ(relative_difference(std::vector<float>{3.0f, 5.0f}, std::vector<float>{3.0f, 4.0f}), 0.2);
}

}  // namespace
}  // namespace pare
