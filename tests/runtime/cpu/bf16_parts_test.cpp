// Rows and weights as sums of bfloat16 (bf16_kernels.h), and products of what stretches them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/cpu/kernels/bf16_kernels.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/format/dtype.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/isa.h"
#include "tests/runtime/cpu/plain_linear.h"

namespace pare {
using namespace runtime;
namespace {

using namespace plain;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

float bf16_at(const std::byte* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Finite floats of all magnitudes, normal ones alone: their parts may still be subnormal.
std::vector<float> floats_of_all_sizes(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values = {0.0f, -0.0f, kMax, -kMax, 1.0f, 1.0f + 0x1p-23f, 0x1.FFFFFEp0f, 0x1.01p0f, 0x1p-126f};
  while (static_cast<int64_t>(values.size()) < count) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnormal(value)) values.push_back(value);
  }
  values.resize(count);
  return values;
}

// Returns the parts of x[row, k] in a strip of num_rows rows.
std::vector<float> parts_of(const std::byte* strip, int64_t num_rows, int64_t row, int64_t k) {
  const int64_t tiles = num_rows > 16 ? 2 : 1;
  std::vector<float> parts;
  for (int64_t part = 0; part < kInputParts; ++part) {
    const int64_t tile = (k / 32 * kInputParts + part) * tiles + row / 16;
    parts.push_back(bf16_at(strip + tile * kBf16TileBytes + row % 16 * 64 + k % 32 * 2));
  }
  return parts;
}

TEST(Bf16Parts, PartsOfARowAddUpToItExactly) {
  if (!supports_isa(Isa::avx512)) GTEST_SKIP() << "the splitting needs AVX-512";
  for (int64_t num_rows : {1, 5, 16, 17, 31, 32}) {
    for (int64_t num_k : {4, 16, 20, 32, 44, 96}) {
      const std::vector<float> x = floats_of_all_sizes(num_rows * num_k, static_cast<uint32_t>(num_rows));
      const int64_t padded_k = (num_k + 31) / 32 * 32;
      const AlignedBytes strip = allocate_aligned(bf16_strip_bytes(num_rows, kInputParts) * padded_k);
      pack_bf16_strip(x.data(), num_k, num_rows, num_k, kInputParts, reinterpret_cast<uint8_t*>(strip.get()));
      for (int64_t r = 0; r < (num_rows > 16 ? 32 : 16); ++r) {
        for (int64_t k = 0; k < padded_k; ++k) {
          const float value = r < num_rows && k < num_k ? x[r * num_k + k] : 0.0f;
          const std::vector<float> parts = parts_of(strip.get(), num_rows, r, k);
          // Below, bfloat16 has no bits left: the smallest subnormal is 2^-133.
          const double lost = static_cast<double>(value) - parts[0] - parts[1] - parts[2];
          ASSERT_LE(std::abs(lost), 0x1p-134) << value << " row " << r << ", " << k;
          if (std::abs(value) >= 0x1p-100f) {
            ASSERT_EQ(lost, 0.0) << value;
          }
          if (std::abs(value) < 0x1.FEp127f) {  // others would round to infinity
            ASSERT_LE(std::abs(static_cast<double>(value) - parts[0]), 0x1p-8 * std::abs(value)) << value;
          }
        }
      }
    }
  }
}

TEST(Bf16Parts, WhatIsNotFiniteHasOnePart) {
  if (!supports_isa(Isa::avx512)) GTEST_SKIP() << "the splitting needs AVX-512";
  const float nan_of_low_bits = std::bit_cast<float>(0x7f800001u);
  std::vector<float> x(32, 1.5f);
  x[3] = kInfinity;
  x[4] = -kInfinity;
  x[20] = kNan;
  x[21] = nan_of_low_bits;
  const AlignedBytes strip = allocate_aligned(bf16_strip_bytes(1, kInputParts) * 32);
  pack_bf16_strip(x.data(), 32, 1, 32, kInputParts, reinterpret_cast<uint8_t*>(strip.get()));
  EXPECT_EQ(parts_of(strip.get(), 1, 0, 3), (std::vector<float>{kInfinity, 0.0f, 0.0f}));
  EXPECT_EQ(parts_of(strip.get(), 1, 0, 4), (std::vector<float>{-kInfinity, 0.0f, 0.0f}));
  EXPECT_EQ(parts_of(strip.get(), 1, 0, 5), (std::vector<float>{1.5f, 0.0f, 0.0f}));
  for (int64_t k : {20, 21}) {
    const std::vector<float> parts = parts_of(strip.get(), 1, 0, k);
    EXPECT_TRUE(std::isnan(parts[0]));
    EXPECT_EQ(parts[1], 0.0f);
    EXPECT_EQ(parts[2], 0.0f);
  }
}

// Two parts hold 16 bits: a code of 4 bits times a scale in float16, or any float16.
TEST(Bf16Parts, PartsOfWeightsAddUpToThemExactly) {
  if (!supports_isa(Isa::avx512)) GTEST_SKIP() << "the splitting needs AVX-512";
  std::mt19937 random(5);
  constexpr int64_t kStride = 32, kNumK = 64, kPartBytes = kNumK * kPanel * 2;
  for (const int num_parts : {1, 2, 3}) {
    std::vector<float> w(kNumK * kStride);
    for (float& value : w) {
      const int bits = num_parts == 1 ? 8 : num_parts == 2 ? 16 : 24;
      const auto mantissa = static_cast<float>(static_cast<int>(random() % (1u << bits)) - (1 << (bits - 1)));
      value = std::ldexp(mantissa, static_cast<int>(random() % 40) - 40);
    }
    const AlignedBytes tiles = allocate_aligned(num_parts * kPartBytes);
    split_bf16_weights(w.data(), kStride, kNumK, num_parts, reinterpret_cast<uint8_t*>(tiles.get()), kPartBytes);
    for (int64_t k = 0; k < kNumK; ++k) {
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        double sum = 0.0;
        for (int64_t part = 0; part < num_parts; ++part) {
          sum += bf16_at(tiles.get() + part * kPartBytes + k / 2 * 64 + lane * 4 + k % 2 * 2);
        }
        ASSERT_EQ(sum, static_cast<double>(w[k * kStride + lane])) << num_parts << " parts, " << k << ", " << lane;
      }
    }
  }
}

// The oracle is fp8_to_float. Packing refuses NaN.
TEST(Bf16Parts, CodesOfFp8AreTheirValues) {
  if (!supports_isa(Isa::avx512)) GTEST_SKIP() << "the expansion needs AVX-512";
  constexpr int64_t kNumK = 1024;  // 4 positions of 16 outputs a unit
  const AlignedBytes lines = allocate_aligned(kNumK * kPanel + kLineSlack),
                     tiles = allocate_aligned(kNumK * kPanel * 2);
  const auto code_at = [](int64_t k, int64_t lane) { return static_cast<uint8_t>(k / 4 + lane * 4 + k % 4); };
  for (int64_t k = 0; k < kNumK; ++k) {
    for (int64_t lane = 0; lane < kPanel; ++lane) lines[k / 4 * 64 + lane * 4 + k % 4] = std::byte{code_at(k, lane)};
  }
  PanelRun run{};
  run.lines = reinterpret_cast<const uint8_t*>(lines.get());
  run.num_groups = 1;
  run.group_len = kNumK;
  run.num_outs = kPanel;
  ASSERT_TRUE(expand_bf16_codes(WeightFormat::fp8, run, 0, kNumK, reinterpret_cast<uint8_t*>(tiles.get())));
  for (int64_t k = 0; k < kNumK; ++k) {
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const uint8_t code = code_at(k, lane);
      if ((code & 0x7F) == 0x7F) continue;
      const float value = bf16_at(tiles.get() + k / 2 * 64 + lane * 4 + k % 2 * 2);
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(fp8_to_float(code))) << int{code};
    }
  }
}

// The error is that of float32 sums, however far the inputs of a row lie apart.
TEST(Bf16Parts, ProductsOfInputsOfAllMagnitudesAreThoseOfFloat32) {
  if (!supports_isa(Isa::amx)) GTEST_SKIP() << "needs AMX, or its tiles as plain loops";
  std::mt19937 random(8);
  const int64_t num_in = 576, num_rows = 65;
  std::vector<float> x = random_x(num_rows, num_in, 9);
  for (float& value : x) value = std::ldexp(value, static_cast<int>(random() % 60) - 30);
  for (const Format& format : {Format{16, DType::BF16}, Format{16, DType::F16}, Format{32, DType::F32},
                               Format{4, DType::F16, 64}, Format{8, DType::F32, kPerChannel}}) {
    const OwnedWeights owned = random_weights(format, 49, num_in, true, 11);
    const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, num_rows);
    const auto packed = pack_linear(Isa::amx, std::span(&owned.weights, 1), 1);
    EXPECT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "") << format.name();
  }
}

TEST(Bf16Parts, ARowThatIsNotFiniteStaysSoAndHarmsNoOther) {
  if (!supports_isa(Isa::amx)) GTEST_SKIP() << "needs AMX, or its tiles as plain loops";
  for (const Format& format : {Format{16, DType::BF16}, Format{16, DType::F16}, Format{4, DType::F16, 64},
                               Format{4, DType::F16, 16}, Format{8, DType::BF16, kPerChannel}}) {
    const OwnedWeights owned = random_weights(format, 33, 64, false, 12);
    const auto packed = pack_linear(Isa::amx, std::span(&owned.weights, 1), 1);
    std::vector<float> x = random_x(70, 64, 13);
    const std::vector<float> before = multiply(*packed, x, 70);
    x[7 * 64 + 40] = kInfinity;
    x[20 * 64 + 41] = kNan;
    const std::vector<float> after = multiply(*packed, x, 70);
    for (int64_t r = 0; r < 70; ++r) {
      for (int64_t o = 0; o < 33; ++o) {
        const float found = after[r * 33 + o];
        if (r == 7 || r == 20) {
          EXPECT_FALSE(std::isfinite(found)) << format.name() << " row " << r << ", " << o;
        } else {
          EXPECT_EQ(found, before[r * 33 + o]) << format.name() << " row " << r << ", " << o;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pare
