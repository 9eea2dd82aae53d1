// Rows rounded to 8 bits, compared bit for bit with plain loops: every operation has one rounding. The oracle for FP8
// is the nearest of all 253 finite E4M3 values, found by looking at each.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/int8_rows.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kLengths[] = {1, 7, 8, 9, 15, 16, 17, 31, 64, 100, 576, 1000};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = float_isas();
  std::erase_if(isas, [](Isa isa) { return !supports_isa(isa); });
  return isas;
}

std::vector<float> random_row(int64_t n, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> row(n);
  for (float& value : row) value = normal(random);
  return row;
}

int64_t stride_of(int64_t n) {
  return (n + 63) / 64 * 64;
}

TEST(Int8Rows, CodesEqualTheFormula) {
  for (const Isa isa : supported_isas()) {
    const Int8RowKernels& kernels = int8_row_kernels(isa);
    for (const int64_t n : kLengths) {
      std::vector<float> x = random_row(n, 3.0f, 5);
      if (n > 4) x[1] = 0.5f * 0.03125f, x[2] = -1.5f * 0.03125f, x[3] = 1e30f, x[4] = -kInfinity;  // ties, far values
      for (const float zero : {0.0f, 17.0f, -128.0f, 127.0f}) {
        std::vector<int8_t> codes(stride_of(n) + 1, 0x55);
        ASSERT_TRUE(kernels.codes(x.data(), n, 0.03125f, zero, codes.data(), stride_of(n)));
        for (int64_t i = 0; i < n; ++i) {
          const float expected = std::rint(std::clamp(x[i] / 0.03125f + zero, -128.0f, 127.0f));
          ASSERT_EQ(static_cast<float>(codes[i]), expected) << isa_name(isa) << " n " << n << " i " << i;
        }
        EXPECT_TRUE(std::all_of(codes.begin() + n, codes.end() - 1, [](int8_t code) { return code == 0; }));
        EXPECT_EQ(codes.back(), 0x55) << "a write behind the row";
      }
      std::vector<int8_t> codes(stride_of(n) + 1, 0x55);
      kernels.codes_by_factor(x.data(), n, 20.0f, codes.data(), stride_of(n));
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(static_cast<float>(codes[i]), std::clamp(std::rint(x[i] * 20.0f), -127.0f, 127.0f));
      }
      EXPECT_EQ(codes.back(), 0x55) << "a write behind the row";
    }
  }
}

TEST(Int8Rows, NaNAnywhereIsReported) {
  for (const Isa isa : supported_isas()) {
    const Int8RowKernels& kernels = int8_row_kernels(isa);
    for (const int64_t n : {1, 17, 40}) {
      for (int64_t bad = 0; bad < n; ++bad) {
        std::vector<float> x = random_row(n, 1.0f, 2);
        x[bad] = kNaN;
        std::vector<int8_t> codes(stride_of(n), 0x55);
        EXPECT_FALSE(kernels.codes(x.data(), n, 0.1f, 0.0f, codes.data(), stride_of(n)));
        EXPECT_TRUE(std::all_of(codes.begin(), codes.end(), [](int8_t code) { return code == 0; }));
        float low = 0.0f, high = 0.0f;
        kernels.extremes(x.data(), n, &low, &high);
        EXPECT_TRUE(std::isnan(low) && std::isnan(high)) << isa_name(isa) << " n " << n << " at " << bad;
      }
    }
    std::vector<int8_t> codes(64);
    const float one = 1.0f;
    EXPECT_FALSE(kernels.codes(&one, 1, kNaN, 0.0f, codes.data(), 64)) << "a scale that is no number";
  }
}

TEST(Int8Rows, ExtremesIncludeZeroAndInfinities) {
  for (const Isa isa : supported_isas()) {
    const Int8RowKernels& kernels = int8_row_kernels(isa);
    for (const int64_t n : kLengths) {
      for (const float shift : {-50.0f, 0.0f, 50.0f, kInfinity}) {
        std::vector<float> x = random_row(n, 3.0f, static_cast<uint32_t>(n));
        for (float& value : x) value += shift;
        float low = kNaN, high = kNaN;
        kernels.extremes(x.data(), n, &low, &high);
        EXPECT_EQ(low, std::min(0.0f, *std::min_element(x.begin(), x.end())));
        EXPECT_EQ(high, std::max(0.0f, *std::max_element(x.begin(), x.end())));
      }
    }
  }
}

TEST(Int8Rows, MagnitudesRiseAndNaNChangesNothing) {
  for (const Isa isa : supported_isas()) {
    for (const int64_t n : kLengths) {
      std::vector<float> x = random_row(n, 3.0f, 7), largest(static_cast<size_t>(n + 1), 2.0f);
      x[n / 2] = kNaN;
      int8_row_kernels(isa).raise_to_magnitudes(x.data(), n, largest.data());
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(largest[i], i == n / 2 ? 2.0f : std::max(2.0f, std::abs(x[i])));
      EXPECT_EQ(largest.back(), 2.0f) << "a write behind the row";
    }
  }
}

// Returns all finite magnitudes in order. The index is the code, so its parity decides ties.
std::vector<double> fp8_magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 0x7F; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

double nearest_fp8(double x, const std::vector<double>& magnitudes) {
  const double magnitude = std::min(std::abs(x), 448.0);
  size_t best = 0;
  for (size_t code = 1; code < magnitudes.size(); ++code) {
    const double error = std::abs(magnitudes[code] - magnitude), best_error = std::abs(magnitudes[best] - magnitude);
    if (error < best_error || (error == best_error && code % 2 == 0)) best = code;
  }
  return std::copysign(magnitudes[best], x);
}

TEST(Int8Rows, Fp8IsTheNearestValueWithTiesToEven) {
  const std::vector<double> magnitudes = fp8_magnitudes();
  std::vector<float> x = random_row(500, 100.0f, 3);
  for (const float small : random_row(300, 0.02f, 4)) x.push_back(small);
  for (size_t code = 0; code + 1 < magnitudes.size(); ++code) {  // every value, every tie, and just beside it
    const auto tie = static_cast<float>((magnitudes[code] + magnitudes[code + 1]) / 2);
    for (const float value :
         {static_cast<float>(magnitudes[code]), tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1000.0f)}) {
      x.push_back(value);
      x.push_back(-value);
    }
  }
  for (const float value : {448.0f, 464.0f, 1e30f, kInfinity, 1e-40f, 0.0f}) x.push_back(value), x.push_back(-value);
  for (const Isa isa : supported_isas()) {
    const Int8RowKernels& kernels = int8_row_kernels(isa);
    for (const float scale : {1.0f, 0.25f, 0.37f}) {
      std::vector<float> y(x.size() + 1, 7.0f);
      kernels.round_to_fp8(x.data(), static_cast<int64_t>(x.size()), scale, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = static_cast<float>(nearest_fp8(x[i] / scale, magnitudes)) * scale;
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected))
            << isa_name(isa) << " x " << x[i] << " scale " << scale << " gives " << y[i] << " not " << expected;
      }
      EXPECT_EQ(y.back(), 7.0f) << "a write behind the row";
    }
    float nan = kNaN;
    kernels.round_to_fp8(&nan, 1, 1.0f, &nan);
    EXPECT_TRUE(std::isnan(nan));
  }
}

// The magnitudes of E2M1, whose index is the code.
constexpr double kE2m1[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

double nearest_e2m1(double x) {
  const double magnitude = std::min(std::abs(x), 6.0);
  size_t best = 0;
  for (size_t code = 1; code < std::size(kE2m1); ++code) {
    const double error = std::abs(kE2m1[code] - magnitude), best_error = std::abs(kE2m1[best] - magnitude);
    if (error < best_error || (error == best_error && code % 2 == 0)) best = code;
  }
  return std::copysign(kE2m1[best], x);
}

TEST(Int8Rows, Nvfp4IsTheNearestValueOnTheScaleOfItsBlock) {
  const std::vector<double> magnitudes = fp8_magnitudes();
  std::vector<float> x;
  for (int block = 0; block < 60; ++block) {
    const std::vector<float> values = random_row(16, std::ldexp(1.0f, block % 30 - 15), static_cast<uint32_t>(block));
    x.insert(x.end(), values.begin(), values.end());
  }
  for (int block = 0; block < 4; ++block) {  // ties, and values just beside them; the block's scale is 1 or 0.5
    for (int i = 0; i < 16; ++i) {
      const auto tie = static_cast<float>((kE2m1[i % 7] + kE2m1[i % 7 + 1]) / 2);
      const float beside = block % 2 == 0 ? std::nextafter(tie, 0.0f) : std::nextafter(tie, 10.0f);
      x.push_back((i == 15 ? -6.0f : i < 7 ? tie : beside) * (block < 2 ? 1.0f : 0.5f));
    }
  }
  for (int i = 0; i < 16; ++i) x.push_back(i % 2 == 0 ? 0.0f : -0.0f);
  for (int i = 0; i < 16; ++i) x.push_back(i == 5 ? kInfinity : 1.0f);
  for (const Isa isa : supported_isas()) {
    const Int8RowKernels& kernels = int8_row_kernels(isa);
    for (const float factor : {448.0f, 0.5f, 77.0f}) {
      std::vector<float> y(x.size() + 1, 7.0f);
      kernels.round_to_nvfp4(x.data(), static_cast<int64_t>(x.size()), factor, y.data());
      std::vector<float> in_place = x;
      kernels.round_to_nvfp4(in_place.data(), static_cast<int64_t>(x.size()), factor, in_place.data());
      for (size_t first = 0; first < x.size(); first += 16) {
        float largest = 0.0f;
        for (size_t i = first; i < first + 16; ++i) largest = std::max(largest, std::abs(x[i]));
        auto scale = static_cast<float>(nearest_fp8(factor * (largest / 6.0f), magnitudes));
        scale = (scale == 0.0f ? 0.125f : scale) / factor;
        for (size_t i = first; i < first + 16; ++i) {
          const float scaled = x[i] / scale + 0.0f, expected = static_cast<float>(nearest_e2m1(scaled)) * scale;
          ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected))
              << isa_name(isa) << " x[" << i << "] " << x[i] << " factor " << factor << " gives " << y[i] << " not "
              << expected;
          ASSERT_EQ(std::bit_cast<uint32_t>(in_place[i]), std::bit_cast<uint32_t>(expected)) << "in place";
        }
      }
      EXPECT_EQ(y.back(), 7.0f) << "a write behind the row";
    }
    for (size_t bad = 0; bad < 16; ++bad) {
      std::vector<float> blocks(48, 1.0f);
      blocks[16 + bad] = kNaN;
      kernels.round_to_nvfp4(blocks.data(), 48, 448.0f, blocks.data());
      for (size_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(blocks[i]), i / 16 == 1) << isa_name(isa) << " at " << bad;
    }
  }
}

}  // namespace
}  // namespace pare
