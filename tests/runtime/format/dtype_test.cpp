#include "runtime/format/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

// Returns the value of a small float by its definition, IEEE 754 section 3.4, in double arithmetic (exact for both
// formats).
double decode(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

double decode_bf16(uint16_t bits) {
  return decode(bits, 8, 7);
}
double decode_f16(uint16_t bits) {
  return decode(bits, 5, 10);
}

TEST(DType, EveryBf16PatternHasItsValueAndReturns) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = bf16_to_float(bits);
    if (std::isnan(decode_bf16(bits))) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << pattern;
    } else {
      ASSERT_EQ(value, decode_bf16(bits)) << pattern;
      ASSERT_EQ(float_to_bf16(value), bits) << pattern;
    }
  }
}

TEST(DType, EveryF16PatternHasItsValueAndReturns) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = f16_to_float(bits);
    if (std::isnan(decode_f16(bits))) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << pattern;
    } else {
      ASSERT_EQ(value, decode_f16(bits)) << pattern;
      ASSERT_EQ(float_to_f16(value), bits) << pattern;
    }
  }
}

// Returns the nearest pattern, with ties to the even one, for finite results. It is one of the two neighbours of the
// value.
uint16_t nearest(double value, double (*decode_pattern)(uint16_t), uint16_t infinity) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  uint16_t low = 0, high = infinity;  // magnitudes grow with their patterns, so bisect for low <= |value| < low + 1
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (decode_pattern(middle) <= std::fabs(value) ? low : high) = middle;
  }
  // Above the largest finite value the format behaves as if its exponents continued (IEEE 754 section 4.3.1).
  const double above = high == infinity ? 2 * decode_pattern(low) - decode_pattern(low - 1) : decode_pattern(high);
  const double down = std::fabs(value) - decode_pattern(low), up = above - std::fabs(value);
  const bool take_high = up < down || (up == down && low % 2 == 1);
  return static_cast<uint16_t>(sign | (take_high ? high : low));
}

TEST(DType, RoundsToNearestEven) {
  std::mt19937 generator(3);
  std::vector<float> values = {0.0f,  -0.0f,         65504.0f,      65519.996f, 65520.0f,
                               6e-8f, 2.9802322e-8f, 2.9802326e-8f, 1e-40f};
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (std::isfinite(value)) values.push_back(value);
    // The values are halfway points of neighbouring patterns, and the floats beside them.
    const uint16_t pattern = static_cast<uint16_t>(generator() % 0x7b00);
    const float half = static_cast<float>((decode_f16(pattern) + decode_f16(pattern + 1)) / 2);
    values.insert(values.end(), {half, std::nextafterf(half, 0.0f), std::nextafterf(half, 1e30f)});
  }
  for (float value : values) {
    ASSERT_EQ(float_to_bf16(value), nearest(value, decode_bf16, 0x7f80)) << value;
    ASSERT_EQ(float_to_f16(value), nearest(value, decode_f16, 0x7c00)) << value;
  }
}

// Returns the value of an E4M3 pattern by its definition, OCP 8-bit Floating Point Specification 1.0, table 2.
double decode_fp8(int pattern) {
  const int exponent = pattern >> 3 & 15, mantissa = pattern & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return pattern & 0x80 ? -magnitude : magnitude;
}

TEST(DType, EveryFp8PatternHasItsValueAndReturns) {
  for (int pattern = 0; pattern < 256; ++pattern) {
    const float value = fp8_to_float(static_cast<uint8_t>(pattern));
    if ((pattern & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << pattern;
    } else {
      EXPECT_EQ(value, decode_fp8(pattern)) << pattern;
      EXPECT_EQ(std::signbit(value), pattern >= 128) << pattern;
    }
    EXPECT_EQ(float_to_fp8(value), pattern);
  }
}

// The values lie between neighbours, at their midpoints and one float beside them. Everything beyond the largest
// becomes the largest.
TEST(DType, Fp8RoundsToNearestEvenAndSaturates) {
  for (int pattern = 0; pattern < 0x7e; ++pattern) {
    const auto half = static_cast<float>((decode_fp8(pattern) + decode_fp8(pattern + 1)) / 2);  // exact
    const int even = pattern % 2 == 0 ? pattern : pattern + 1;
    EXPECT_EQ(float_to_fp8(half), even) << pattern;
    EXPECT_EQ(float_to_fp8(-half), even | 0x80) << pattern;
    EXPECT_EQ(float_to_fp8(std::nextafter(half, 0.0f)), pattern);
    EXPECT_EQ(float_to_fp8(std::nextafter(half, 1000.0f)), pattern + 1);
  }
  for (const float large : {448.0f, 449.0f, 464.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_to_fp8(large), 0x7e) << large;
    EXPECT_EQ(float_to_fp8(-large), 0xfe) << large;
  }
  EXPECT_EQ(float_to_fp8(1e-40f), 0);
  EXPECT_EQ(float_to_fp8(-std::numeric_limits<float>::quiet_NaN()), 0xff);
}

TEST(DType, EveryE8m0PatternIsAPowerOfTwoAndReturns) {
  for (int pattern = 0; pattern < 255; ++pattern) {
    const float value = e8m0_to_float(static_cast<uint8_t>(pattern));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, pattern - 127)) << pattern;
    EXPECT_EQ(float_to_e8m0(value), pattern);
    // Rounding takes the power below.
    EXPECT_EQ(float_to_e8m0(value * 1.999f), pattern) << pattern;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  EXPECT_EQ(float_to_e8m0(std::numeric_limits<float>::infinity()), 254);
  EXPECT_EQ(float_to_e8m0(0.0f), 0);
  EXPECT_EQ(float_to_e8m0(-0.0f), 0);
  EXPECT_EQ(float_to_e8m0(-1.0f), 255);
  EXPECT_EQ(float_to_e8m0(std::numeric_limits<float>::quiet_NaN()), 255);
}

TEST(DType, NanNeverBecomesInfinity) {
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u, 0x7f80ffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(nan)))) << bits;
  }
}

// Bulk conversion is compared with single conversions at awkward sizes, from an odd address, across the chunks of the
// threads.
TEST(DType, BulkConversionEqualsSingleConversion) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{31}, size_t{300001}}) {
    std::vector<float> values(count);
    std::mt19937 generator(static_cast<uint32_t>(count));
    for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(generator()) & 0xbfffffffu);
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      const size_t size = dtype_size_bytes(dtype);
      std::vector<std::byte> storage(count * size + 1);
      const std::span<std::byte> odd = std::span(storage).subspan(1);
      convert_from_float(dtype, values, odd);
      std::vector<float> back(count);
      convert_to_float(dtype, odd, back);
      for (size_t i = 0; i < count; ++i) {
        const float expected = round_to(values[i], dtype);
        ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected)) << dtype_name(dtype) << i;
      }
    }
  }
}

TEST(DType, DoublesAreRoundedToFloat) {
  const std::vector<double> values = {0.1, -1e300, 1.0 / 3.0};
  std::vector<float> out(3);
  convert_to_float(DType::F64, std::as_bytes(std::span(values)), out);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[2], 1.0f / 3.0f);
}

TEST(DType, NamesAndSizesAgree) {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I8, DType::U8, DType::I16, DType::I32,
                      DType::U32, DType::I64, DType::BOOL, DType::F8_E4M3, DType::F8_E8M0}) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_size_bytes(DType::BF16), 2u);
  EXPECT_EQ(dtype_size_bytes(DType::I64), 8u);
  EXPECT_EQ(dtype_size_bytes(DType::BOOL), 1u);
}

TEST(DType, RefusalsNameTheTypeAndTheSizes) {
  std::vector<float> floats(3);
  std::vector<std::byte> bytes(5);
  expect_error<std::invalid_argument>([] { parse_dtype("F8_E5M2"); }, {"F8_E5M2", "BF16"});
  expect_error<std::invalid_argument>([&] { convert_to_float(DType::BF16, bytes, floats); }, {"BF16", "6", "5"});
  expect_error<std::invalid_argument>([&] { convert_to_float(DType::I32, bytes, floats); }, {"I32", "BF16"});
  expect_error<std::invalid_argument>([&] { convert_from_float(DType::F64, floats, bytes); }, {"F64"});
  expect_error<std::invalid_argument>([] { round_to(1.0f, DType::I8); }, {"I8"});
}

}  // namespace
}  // namespace pare
