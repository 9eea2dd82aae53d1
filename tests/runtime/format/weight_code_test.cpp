// The table of weight codes: its values against the formulas of their sources, and what a row of one's own may be.
#include "runtime/format/weight_code.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

TEST(WeightCode, E2m1IsSignExponentAndMantissa) {
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
    ASSERT_EQ(code->values.size(), 16u);
    for (int bits = 0; bits < 16; ++bits) {
      const int exponent = bits >> 1 & 3, mantissa = bits & 1;
      const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
      const float value = code->value(static_cast<uint8_t>(bits));
      EXPECT_EQ(std::abs(value), magnitude) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 8) << bits;
    }
    EXPECT_EQ(code->largest(), 6.0f);
    EXPECT_EQ(code->zero_code(4), 0);
  }
}

// Returns the x with P(N(0, 1) <= x) = probability, by halving.
double normal_quantile(double probability) {
  double low = -10.0, high = 10.0;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2.0;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return low;
}

// QLoRA, arXiv 2305.14314, section 3 and appendix E: seven quantiles below 0, 0 and eight above, divided by the
// largest. The outermost probability is the paper's: halfway between 1 - 1/32 and 1 - 1/30.
TEST(WeightCode, Nf4HoldsQuantilesOfANormalDistribution) {
  const double outermost = 1.0 - 0.5 * (1.0 / 32.0 + 1.0 / 30.0);
  std::vector<double> expected;
  for (int i = 0; i < 7; ++i) expected.push_back(-normal_quantile(outermost + (0.5 - outermost) * i / 7.0));
  expected.push_back(0.0);
  for (int i = 7; i >= 0; --i) expected.push_back(normal_quantile(outermost + (0.5 - outermost) * i / 8.0));
  ASSERT_EQ(expected.size(), kNf4Code.values.size());
  const double largest = expected.back();
  // The source computed them in float32.
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(kNf4Code.values[i], expected[i] / largest, 2e-7) << i;
  EXPECT_EQ(kNf4Code.zero_code(4), 7);
}

TEST(WeightCode, RowsAreFoundByName) {
  for (const WeightCode* code : weight_codes()) EXPECT_EQ(find_weight_code(code->name), code);
  EXPECT_EQ(find_weight_code("int4"), nullptr);
  EXPECT_EQ(widths_text(kIntegerCode), "2, 3, 4 or 8");
  EXPECT_EQ(code_name(&kIntegerCode, 3), "w3");
  EXPECT_EQ(code_name(&kNf4Code, 4), "wnf4");
  EXPECT_EQ(code_name(nullptr, 16), "w16");
}

TEST(WeightCode, WhatKernelsDoNotMultiplyIsRefused) {
  static constexpr std::array kTwoBits = {2}, kFiveBits = {5};
  static constexpr std::array<float, 4> kValues = {-1.0f, 0.0f, 0.5f, 1.0f}, kWithoutZero = {-1.0f, 0.1f, 0.5f, 1.0f};
  static constexpr std::array<float, 4> kInfinite = {-1.0f, 0.0f, 0.5f, std::numeric_limits<float>::infinity()};
  static std::vector<float> many(32);
  static const WeightCode kGood{.name = "test", .widths = kTwoBits, .values = kValues};
  const auto refused = [](WeightCode code, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { register_weight_code(code); }, parts);
  };
  WeightCode code = kGood;
  code.name = "nf4";
  refused(code, {"'nf4'", "already"});
  code = kGood;
  code.numbers = CodeNumbers::integers;
  refused(code, {"'test'", "table"});
  code = kGood;
  code.widths = kFiveBits;
  code.values = many;
  refused(code, {"'test'", "1 to 4 bits"});
  code = kGood;
  code.values = std::span(kValues).first(3);
  refused(code, {"expected 4 values, found 3"});
  code = kGood;
  code.values = kWithoutZero;
  refused(code, {"a 0"});
  code.values = kInfinite;
  refused(code, {"finite"});
  code = kGood;
  code.scale_dtype = DType::I8;
  refused(code, {"F8_E8M0", "found I8"});
  EXPECT_EQ(find_weight_code("test"), nullptr);
}

}  // namespace
}  // namespace pare
