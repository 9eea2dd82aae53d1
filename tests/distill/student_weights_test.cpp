#include "distill/student_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/expect_error.h"

namespace pare {
using namespace distill;
namespace {

using Layers = std::vector<int64_t>;

at::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
  float* values = matrix.data_ptr<float>();
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    values[i] = static_cast<float>(static_cast<double>(seed >> 40) / (1 << 24) - 0.5);
  }
  return matrix;
}

// DistilBERT's published code takes 0, 2, 4, 7, 9, 11 of 12.
TEST(StudentLayers, EvenlySpacedOnesHaveAClosedForm) {
  EXPECT_EQ(evenly_spaced_layers(12, 6), (Layers{0, 2, 4, 7, 9, 11}));
  EXPECT_EQ(evenly_spaced_layers(30, 10), (Layers{0, 3, 6, 10, 13, 16, 19, 23, 26, 29}));
  EXPECT_EQ(evenly_spaced_layers(5, 2), (Layers{0, 4}));
  EXPECT_EQ(evenly_spaced_layers(7, 1), (Layers{0}));
  EXPECT_EQ(first_layers(5, 2), (Layers{0, 1}));
  for (int64_t num_layers = 1; num_layers < 40; ++num_layers) {
    for (int64_t num_kept = 2; num_kept <= num_layers; ++num_kept) {
      const Layers kept = evenly_spaced_layers(num_layers, num_kept);
      EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end(), std::greater_equal<>()), kept.end());
      for (int64_t i = 0; i < num_kept; ++i) {
        const double place = static_cast<double>(i * (num_layers - 1)) / static_cast<double>(num_kept - 1);
        EXPECT_EQ(kept[static_cast<size_t>(i)], static_cast<int64_t>(std::floor(place + 0.5)));
      }
    }
  }
}

TEST(StudentLayers, TheLargestEffectsStayAndTiesGoToTheLowerIndex) {
  EXPECT_EQ(layers_of_largest_effect(std::vector{0.5, 0.1, 0.7, 0.1, 0.0}, 3), (Layers{0, 1, 2}));
}

TEST(StudentLayers, RunsAreOfTheNearestKeptLayer) {
  using Runs = std::vector<Layers>;
  EXPECT_EQ(runs_of_layers(7, Layers{0, 3, 6}), (Runs{{0, 1}, {2, 3, 4}, {5, 6}}));
  EXPECT_EQ(runs_of_layers(5, Layers{0, 2}), (Runs{{0, 1}, {2, 3, 4}}));  // 1 is a tie
  EXPECT_EQ(runs_of_layers(4, Layers{1}), (Runs{{0, 1, 2, 3}}));
}

TEST(StudentLayers, WhatIsNoChoiceIsRefused) {
  expect_error<std::invalid_argument>([] { evenly_spaced_layers(5, 0); },
                                      {"layers", "1 to the teacher's 5", "found 0"});
  expect_error<std::invalid_argument>([] { first_layers(5, 6); }, {"layers", "5", "found 6"});
  expect_error<std::invalid_argument>(
      [] {
        layers_of_largest_effect(std::vector{0.0, std::numeric_limits<double>::quiet_NaN()}, 1);
      },
      {"score of 1", "not finite"});
  for (const Layers& kept : {Layers{}, Layers{1, 1}, Layers{2, 1}, Layers{-1}, Layers{0, 5}}) {
    expect_error<std::invalid_argument>([&] { runs_of_layers(5, kept); }, {"kept layers", "0 to 4"});
  }
}

TEST(StudentChannels, GroupsPartitionTheChannels) {
  EXPECT_EQ(contiguous_groups(7, 3), (ChannelGroups{{0, 1}, {2, 3}, {4, 5, 6}}));
  EXPECT_EQ(all_channels(2), (ChannelGroups{{0}, {1}}));
  EXPECT_EQ(most_important(std::vector{1.0, 3.0, 2.0, 3.0}, 2), (ChannelGroups{{1}, {3}}));
  EXPECT_EQ(channels_of_heads({{0, 2}, {1}}, 2), (ChannelGroups{{0, 4}, {1, 5}, {2}, {3}}));
  expect_error<std::invalid_argument>([] { contiguous_groups(3, 4); }, {"channels", "3", "found 4"});
}

TEST(StudentChannels, KeptHeadsKeepTheirKvHead) {
  // The sums of the groups are 5, 9 and 6.
  const HeadGroups kept = keep_heads(std::vector{4.0, 1.0, 4.0, 5.0, 0.0, 6.0}, {6, 3}, {2, 2});
  EXPECT_EQ(kept.kv_heads, (ChannelGroups{{1}, {2}}));
  EXPECT_EQ(kept.heads, (ChannelGroups{{3}, {5}}));
  const HeadGroups all = keep_heads(std::vector(6, 1.0), {6, 3}, {6, 3});
  EXPECT_EQ(all.heads, all_channels(6));
  EXPECT_EQ(all.kv_heads, all_channels(3));
}

TEST(StudentChannels, MergedHeadsGoByTheirPlaceOrAreNeighbours) {
  const HeadGroups aligned = merge_heads({8, 4}, {4, 2});
  EXPECT_EQ(aligned.kv_heads, (ChannelGroups{{0, 1}, {2, 3}}));
  EXPECT_EQ(aligned.heads, (ChannelGroups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  const HeadGroups pooled = merge_heads({8, 4}, {8, 2});
  EXPECT_EQ(pooled.kv_heads, (ChannelGroups{{0, 1}, {2, 3}}));
  EXPECT_EQ(pooled.heads, all_channels(8));
  EXPECT_EQ(merge_heads({8, 2}, {4, 2}).heads, (ChannelGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(StudentChannels, HeadsThatDoNotFitAreRefused) {
  expect_error<std::invalid_argument>(
      [] {
        merge_heads({8, 4}, {3, 2});
      },
      {"multiple of the kv heads", "3 heads and 2"});
  expect_error<std::invalid_argument>([] { merge_heads({8, 4}, {16, 4}); }, {"no more of either", "16 heads"});
  expect_error<std::invalid_argument>([] { merge_heads({12, 6}, {12, 4}); }, {"divide the teacher's 6"});
  expect_error<std::invalid_argument>(
      [] {
        keep_heads(std::vector(8, 1.0), {8, 4}, {8, 2});
      },
      {"4 heads for a kv head", "the teacher's 2", "averaging"});
  expect_error<std::invalid_argument>(
      [] {
        keep_heads(std::vector(7, 1.0), {8, 4}, {4, 2});
      },
      {"expected 8", "found 7"});
}

// Compares with the product of explicit matrices: P [rows, O], Q [I, columns].
TEST(StudentWeightMap, IsAProductFromBothSides) {
  const at::Tensor weight_OI = random_matrix(6, 8, 1);
  const ChannelMap rows = mean_of_groups({{0, 4}, {2}, {1, 3, 5}});
  const std::vector<float> gain = {1.0f, -2.0f, 0.5f, 3.0f, 0.0f, 0.0f, 1.0f, 7.0f};
  const ChannelGroups groups = {{0, 1}, {4, 5}, {2, 3, 6}, {7}};
  const ChannelMap columns = sum_of_gained(groups, gain);
  const at::Tensor found = map_matrix(weight_OI, rows, columns);
  ASSERT_EQ(found.sizes(), (std::vector<int64_t>{3, 4}));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 4; ++c) {
      double expected = 0.0;
      for (const ChannelMap::Term& row : rows.terms[r]) {
        for (const ChannelMap::Term& column : columns.terms[c]) {
          expected += row.factor * column.factor * weight_OI[row.channel][column.channel].item<double>();
        }
      }
      // The result is rounded to float32 once, from sums of at most nine terms below 2.
      EXPECT_NEAR(found[static_cast<int64_t>(r)][static_cast<int64_t>(c)].item<double>(), expected, 1e-6);
    }
  }
  // The merged gain times the merged columns is the sum of the gained columns.
  const std::vector<float> merged = merged_gains(groups, gain);
  EXPECT_FLOAT_EQ(merged[0], std::sqrt(2.5f));
  EXPECT_EQ(merged[1], 0.0f);
  EXPECT_EQ(merged[3], 7.0f);
  for (size_t c = 0; c < 4; ++c) {
    for (const ChannelMap::Term& term : columns.terms[c]) {
      if (merged[c] == 0.0f) {
        EXPECT_EQ(term.factor, 1.0);
        continue;
      }
      EXPECT_NEAR(term.factor * merged[c], gain[static_cast<size_t>(term.channel)], 1e-6);
    }
  }
}

TEST(StudentWeightMap, OneChannelIsACopyBitByBit) {
  at::Tensor weight_OI = random_matrix(3, 4, 2);
  weight_OI[1][2] = -0.0;
  const at::Tensor same = map_matrix(weight_OI, mean_of_groups(all_channels(3)), sum_of_groups(all_channels(4)));
  EXPECT_EQ(std::memcmp(same.const_data_ptr<float>(), weight_OI.const_data_ptr<float>(), 12 * sizeof(float)), 0);
  const at::Tensor row = weight_OI[1];
  EXPECT_TRUE(map_vector(row, mean_of_groups(all_channels(4))).equal(row));
}

TEST(StudentWeightMap, MeansOfTensorsAreMeans) {
  const at::Tensor a = random_matrix(2, 3, 3), b = random_matrix(2, 3, 4), c = random_matrix(2, 3, 5);
  const at::Tensor mean = mean_of_tensors(std::vector{a, b, c});
  for (int64_t i = 0; i < 6; ++i) {
    const auto at_i = [i](const at::Tensor& t) { return static_cast<double>(t.const_data_ptr<float>()[i]); };
    EXPECT_EQ(mean.const_data_ptr<float>()[i], static_cast<float>((at_i(a) + at_i(b) + at_i(c)) / 3.0));
  }
  EXPECT_TRUE(mean_of_tensors(std::vector{a, a}).equal(a));
}

TEST(StudentWeightMap, EnergiesAreSumsOfSquares) {
  const at::Tensor weight_OI = at::tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}).view({2, 3});
  EXPECT_EQ(row_energies(weight_OI), (std::vector<double>{14.0, 77.0}));
  EXPECT_EQ(column_energies(weight_OI), (std::vector<double>{17.0, 29.0, 45.0}));
}

TEST(StudentWeightMap, WhatDoesNotFitIsRefused) {
  const at::Tensor weight_OI = random_matrix(2, 3, 6);
  const ChannelMap rows = sum_of_groups(all_channels(2)), columns = sum_of_groups(all_channels(3));
  expect_error<std::invalid_argument>([&] { map_matrix(weight_OI, columns, columns); }, {"rows", "0 to 1", "found 2"});
  expect_error<std::invalid_argument>(
      [&] {
        map_matrix(weight_OI, rows, sum_of_groups({{0, 3}}));
      },
      {"columns", "0 to 2", "found 3"});
  expect_error<std::invalid_argument>([&] { map_vector(weight_OI, rows); }, {"float32 [channels]"});
  expect_error<std::invalid_argument>([] { mean_of_tensors({}); }, {"expected at least one"});
  expect_error<std::invalid_argument>(
      [&] {
        mean_of_tensors(std::vector{weight_OI, weight_OI.t()});
      },
      {"[2, 3]", "[3, 2]"});
}

}  // namespace
}  // namespace pare
