#include "runtime/blocks/gguf_encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/blocks/gguf_grids.h"
#include "runtime/blocks/gguf_parts.h"
#include "runtime/format/dtype.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

constexpr GgufType kRounded[] = {GgufType::Q4_0, GgufType::Q4_1,   GgufType::Q5_0, GgufType::Q5_1,
                                 GgufType::Q8_0, GgufType::IQ4_NL, GgufType::Q2_K, GgufType::Q3_K,
                                 GgufType::Q4_K, GgufType::Q5_K,   GgufType::Q6_K};

GgufBlock block_of(GgufType type) {
  return gguf_block(static_cast<uint32_t>(type));
}

std::vector<float> encoded(GgufType type, const std::vector<float>& x, const std::vector<float>& importance = {}) {
  const GgufBlock block = block_of(type);
  std::vector<std::byte> blocks(x.size() / static_cast<size_t>(block.num_elements) *
                                static_cast<size_t>(block.size_bytes));
  encode_gguf_row(type, x, importance, blocks);
  std::vector<float> y(x.size());
  decode_gguf_blocks(type, blocks, y);
  return y;
}

double error_of(const std::vector<float>& x, const std::vector<float>& y, const std::vector<float>& w = {}) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += (w.empty() ? 1.0 : w[i]) * (x[i] - y[i]) * (x[i] - y[i]);
  return sum;
}

std::vector<float> normal(size_t size, uint32_t seed, float mean = 0.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(mean, 0.05f);
  std::vector<float> x(size);
  for (float& value : x) value = distribution(random);
  return x;
}

// The least error of a block with levels that are times a scale, over a fine grid of scales, in plain loops.
double least_error(const float* x, const float* w, const std::vector<int>& levels) {
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  const int extreme = std::max(std::abs(levels.front()), std::abs(levels.back()));
  double least = 1e30;
  for (int step = -2000; step <= 2000; ++step) {
    const float d =
        f16_to_float(float_to_f16(2.0f * largest / static_cast<float>(extreme) * static_cast<float>(step) / 2000.0f));
    double error = 0.0;
    for (int i = 0; i < 32; ++i) {
      double best = 1e30;
      for (const int level : levels) {
        const double rest = x[i] - d * static_cast<float>(level);
        best = std::min(best, rest * rest);
      }
      error += w[i] * best;
    }
    least = std::min(least, error);
  }
  return least;
}

std::vector<int> range(int least, int most) {
  std::vector<int> levels;
  for (int level = least; level <= most; ++level) levels.push_back(level);
  return levels;
}

// The search starts at a few scales only. Most blocks come to the best scale of all.
TEST(GgufEncode, ComesCloseToTheBestScale) {
  const std::vector<int> iq4(kIq4Levels.begin(), kIq4Levels.end());
  const std::pair<GgufType, std::vector<int>> kinds[] = {
      {GgufType::Q4_0, range(-8, 7)}, {GgufType::Q5_0, range(-16, 15)}, {GgufType::IQ4_NL, iq4}};
  for (const auto& [type, levels] : kinds) {
    for (const bool is_weighted : {false, true}) {
      const std::vector<float> x = normal(32 * 40, 1);
      std::vector<float> w(x.size(), 1.0f);
      if (is_weighted) {
        for (size_t i = 0; i < w.size(); ++i) w[i] = std::exp(40.0f * normal(w.size(), 2)[i]);
      }
      double least = 0.0;
      for (size_t b = 0; b < x.size(); b += 32) least += least_error(&x[b], &w[b], levels);
      const double found = error_of(x, encoded(type, x, is_weighted ? w : std::vector<float>()), w);
      EXPECT_LT(found, 1.03 * least) << block_of(type).name << is_weighted;
      EXPECT_GT(found, 0.97 * least) << block_of(type).name << is_weighted;
    }
  }
}

// What llama.cpp does without importance: the largest magnitude, or the range, becomes the end of the codes.
std::vector<float> by_extremes(GgufType type, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t b = 0; b < x.size(); b += 32) {
    const auto [low, high] = std::minmax_element(&x[b], &x[b] + 32);
    const bool has_minimum = type == GgufType::Q4_1 || type == GgufType::Q5_1;
    const int half = type == GgufType::Q4_0 || type == GgufType::Q4_1 ? 8 : 16;
    const float extreme = std::abs(*low) > std::abs(*high) ? *low : *high;
    const int most = 2 * half - 1;
    const float d = has_minimum ? (*high - *low) / static_cast<float>(most) : extreme / static_cast<float>(-half);
    for (size_t i = b; i < b + 32; ++i) {
      const float start = has_minimum ? *low : -d * static_cast<float>(half);
      const float code = std::clamp(std::round((x[i] - start) / d), 0.0f, static_cast<float>(most));
      y[i] = start + d * code;
    }
  }
  return y;
}

TEST(GgufEncode, IsNearerThanRoundingByExtremes) {
  for (const float mean : {0.0f, 0.03f}) {
    const std::vector<float> x = normal(256 * 16, 3, mean);
    for (const GgufType type : {GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1}) {
      EXPECT_LT(error_of(x, encoded(type, x)), 0.95 * error_of(x, by_extremes(type, x))) << block_of(type).name;
    }
  }
}

// More bits are nearer. 2^b even steps over +-2.6 sigma, which few of 32 exceed, are off by 5.2 / 2^b / sqrt(12).
TEST(GgufEncode, MoreBitsAreNearer) {
  const std::vector<float> x = normal(256 * 16, 4);
  double energy = 0.0;
  for (const float value : x) energy += value * value;
  const std::pair<GgufType, int> rising[] = {{GgufType::Q2_K, 2}, {GgufType::Q3_K, 3}, {GgufType::Q4_K, 4},
                                             {GgufType::Q5_K, 5}, {GgufType::Q6_K, 6}, {GgufType::Q8_0, 8}};
  double before = 1.0;
  for (const auto& [type, bits] : rising) {
    const double relative = std::sqrt(error_of(x, encoded(type, x)) / energy);
    EXPECT_LT(relative, 0.62 * before) << block_of(type).name;
    EXPECT_LT(relative, 5.2 / std::pow(2.0, bits) / std::sqrt(12.0)) << block_of(type).name;
    before = relative;
  }
}

// Weights that matter more are nearer, and the weighted error falls.
TEST(GgufEncode, FollowsImportance) {
  const std::vector<float> x = normal(256 * 8, 5);
  std::vector<float> w(x.size(), 1.0f);
  for (size_t i = 0; i < w.size(); i += 4) w[i] = 100.0f;
  for (const GgufType type : kRounded) {
    if (type == GgufType::Q8_0) continue;  // there is nothing to choose
    const double plain = error_of(x, encoded(type, x), w), weighted = error_of(x, encoded(type, x, w), w);
    EXPECT_LT(weighted, 0.95 * plain) << block_of(type).name;
  }
}

// What a block can hold it holds, whatever the importance; zeros stay zeros; nothing is NaN.
TEST(GgufEncode, HoldsWhatItCanHold) {
  for (const GgufType type : kRounded) {
    const auto size = static_cast<size_t>(block_of(type).num_elements);
    const std::vector<float> zeros(size, 0.0f);
    EXPECT_EQ(encoded(type, zeros), zeros) << block_of(type).name;
    EXPECT_EQ(encoded(type, zeros, zeros), zeros) << block_of(type).name;
    // A block's scales have 11 digits, and a superblock's parts 6 or fewer beside them.
    std::vector<float> one = zeros;
    one[7] = -2.0f;
    const std::vector<float> found = encoded(type, one);
    EXPECT_NEAR(found[7], -2.0f, type == GgufType::IQ4_NL ? 0.01f : 0x1p-10f) << block_of(type).name;
    // IQ4_NL has no 0: its level next to it is 1 / 127 of the largest.
    EXPECT_NEAR(found[8], 0.0f, type == GgufType::IQ4_NL ? 2.0f / 113.0f : 0.002f) << block_of(type).name;
    for (const float tiny : {1e-7f, 1e-20f}) {
      for (const float value : encoded(type, std::vector<float>(size, tiny), zeros)) {
        EXPECT_LE(std::abs(value), 2e-7f) << block_of(type).name;
      }
    }
  }
  // A grid with all of its ends.
  std::vector<float> grid(32);
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = 0.375f * static_cast<float>(static_cast<int>(i % 16) - 8);
  for (const GgufType type : {GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0}) {
    EXPECT_EQ(encoded(type, grid), grid) << block_of(type).name;
  }
}

// Blocks as other programs write them: parts from code 0 on, which leave out up to two codes, and the largest scale and
// minimum of a superblock stored as the largest whole number.
std::vector<float> made_of_blocks(GgufType type, int num_blocks, std::mt19937& random) {
  const GgufGrid& grid = *find_gguf_grid(type);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint32_t>(end)); };
  std::vector<std::byte> blocks(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_of(type).size_bytes));
  for (int b = 0; b < num_blocks; ++b) {
    GgufParts parts;
    parts.scale = f16_to_float(float_to_f16(0.0001f + 0.00001f * static_cast<float>(below(20))));
    parts.minimum = f16_to_float(float_to_f16(0.001f + 0.0001f * static_cast<float>(below(5))));
    const auto num_parts = static_cast<size_t>(grid.num_groups());
    for (size_t p = 0; p < num_parts; ++p) {
      parts.scales[p] = grid.most_scale * (10 + below(6)) / 16;
      parts.minima[p] = grid.most_scale * (6 + below(10)) / 16;
    }
    parts.scales[static_cast<size_t>(below(grid.num_groups()))] = grid.most_scale;
    parts.minima[static_cast<size_t>(below(grid.num_groups()))] = grid.most_scale;
    for (size_t p = 0; p < num_parts; ++p) {
      const int num_codes = grid.num_levels() - below(std::min(3, grid.num_levels() - 2));
      const auto group = static_cast<size_t>(grid.group);
      for (size_t i = 0; i < group; ++i) {
        parts.codes[p * group + i] = static_cast<uint8_t>(i == 0 ? 0 : i == 1 ? num_codes - 1 : below(num_codes));
      }
    }
    const auto bytes = static_cast<size_t>(block_of(type).size_bytes);
    put_together(grid, parts, std::span(blocks).subspan(static_cast<size_t>(b) * bytes, bytes));
  }
  std::vector<float> x(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_of(type).num_elements));
  decode_gguf_blocks(type, blocks, x);
  return x;
}

// Many checkpoints were once files of blocks. Rounded to the same type, their weights are found again, but for what
// float32 rounds. A wrong lattice would miss by a ten-thousandth of the signal in a part alone.
TEST(GgufEncode, FindsTheBlocksThatWeightsCameFrom) {
  std::mt19937 random(21);
  for (const GgufType type : kRounded) {
    const bool has_minima = find_gguf_grid(type)->is_super() && find_gguf_grid(type)->has_minimum;
    const auto size = static_cast<size_t>(block_of(type).num_elements);
    const std::vector<float> x = has_minima ? made_of_blocks(type, 400, random) : encoded(type, normal(400 * size, 21));
    const std::vector<float> y = encoded(type, x);
    int num_found = 0;
    for (size_t begin = 0; begin < x.size(); begin += size) {
      double error = 0.0, signal = 0.0;
      for (size_t i = begin; i < begin + size; ++i) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        signal += x[i] * x[i];
      }
      num_found += error <= 1e-10 * signal ? 1 : 0;
    }
    EXPECT_GE(num_found, 392) << block_of(type).name;
  }
}

TEST(GgufEncode, FloatsAreRoundedToNearestEven) {
  const std::vector<float> x = {1.0f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, -0.0f};
  EXPECT_EQ(encoded(GgufType::F32, x), x);
  EXPECT_EQ(encoded(GgufType::F16, x), (std::vector<float>{1.0f, 1.0f, 1.0f + 0x1p-9f, -0.0f}));
  EXPECT_EQ(encoded(GgufType::BF16, {1.0f + 0x1p-8f})[0], 1.0f);
}

TEST(GgufEncode, RefusesOtherSizesAndTypes) {
  std::vector<std::byte> bytes(18);
  const std::vector<float> x(32);
  expect_error<std::invalid_argument>([&] { encode_gguf_row(GgufType::IQ2_S, x, {}, bytes); }, {"IQ2_S"});
  expect_error<std::invalid_argument>([&] { encode_gguf_row(GgufType::Q5_0, x, {}, bytes); }, {"32 elements", "Q5_0"});
  expect_error<std::invalid_argument>([&] { encode_gguf_row(GgufType::Q4_0, std::vector<float>(31), {}, bytes); },
                                      {"31 elements", "Q4_0"});
  expect_error<std::invalid_argument>([&] { encode_gguf_row(GgufType::Q4_0, x, std::vector<float>(16), bytes); },
                                      {"16 importances"});
}

}  // namespace
}  // namespace pare
