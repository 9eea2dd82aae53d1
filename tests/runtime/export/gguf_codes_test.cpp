#include "runtime/export/gguf_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "runtime/export/gguf_matrix.h"
#include "runtime/format/stored_widths.h"

namespace pare {
using namespace runtime;
namespace {

// A weight [3, 64] of random codes. Scales have `digits` bits behind the leading one.
LinearWeights random_codes(int bits, bool symmetric, int64_t group_size, int digits, int zero = -1) {
  std::mt19937 random(static_cast<uint32_t>(bits * 100 + digits));
  QuantizedWeight weight;
  weight.num_out = 3;
  weight.num_in = 64;
  weight.bits = bits;
  weight.group_size = group_size;
  weight.symmetric = symmetric;
  weight.scale_dtype = DType::F32;
  for (int i = 0; i < 3 * 64; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(random() % (1u << bits)));
  for (int64_t i = 0; i < 3 * weight.num_groups(); ++i) {
    const auto whole = static_cast<float>((1u << digits) | (random() & ((1u << digits) - 1)));
    weight.scales_OG.push_back(std::ldexp(whole, -digits - 7));
    if (!symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(zero >= 0 ? zero : random() % (1u << bits)));
  }
  return {.name = "w", .weight = weight, .bias_O = {}};
}

// Decodes what was written, row by row.
std::vector<float> decoded(const LinearWeights& linear, GgufType type) {
  const GgufTranscoder codes(linear, type);
  EXPECT_TRUE(codes.holds_codes());
  const GgufBlock block = gguf_block(static_cast<uint32_t>(type));
  std::vector<float> all;
  for (int64_t o = 0; o < linear.num_out(); ++o) {
    std::vector<std::byte> blocks(static_cast<size_t>(linear.num_in() / block.num_elements * block.size_bytes));
    codes.write_row(o, blocks);
    std::vector<float> row(static_cast<size_t>(linear.num_in()));
    decode_gguf_blocks(type, blocks, row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

bool holds(const LinearWeights& linear, GgufType type) {
  return GgufTranscoder(linear, type).holds_codes();
}

// float16 has 10 bits behind the leading one: such scales pass, and the decoder computes the same products.
TEST(GgufCodes, SymmetricCodesPassBitByBit) {
  for (const auto& [bits, type] : {std::pair{4, GgufType::Q4_0},
                                   {3, GgufType::Q4_0},
                                   {2, GgufType::Q4_0},
                                   {4, GgufType::Q5_0},
                                   {8, GgufType::Q8_0},
                                   {4, GgufType::Q8_0}}) {
    for (const int64_t group_size : {int64_t{32}, int64_t{64}, kPerChannel}) {
      const LinearWeights linear = random_codes(bits, true, group_size, 10);
      const std::vector<float> expected = dequantize(std::get<QuantizedWeight>(linear.weight));
      EXPECT_EQ(decoded(linear, type), expected) << bits;
      EXPECT_TRUE(is_held_exactly(linear, type));
    }
  }
  EXPECT_FALSE(holds(random_codes(8, true, 32, 10), GgufType::Q5_0));
  EXPECT_FALSE(is_held_exactly(random_codes(4, true, 32, 12), GgufType::Q4_0));  // scales of 12 bits
}

// Codes that were read from 5 bits have 8, and no more values than before.
TEST(GgufCodes, CodesOfFewBitsMayHaveMore) {
  for (const bool is_symmetric : {true, false}) {
    LinearWeights linear = random_codes(4, is_symmetric, 32, 10);
    auto& weight = std::get<QuantizedWeight>(linear.weight);
    const std::vector<float> expected = dequantize(weight);
    widen_codes(weight, 8);
    ASSERT_EQ(weight.bits, 8);
    EXPECT_EQ(dequantize(weight), expected);
    for (const GgufType type : is_symmetric ? std::vector{GgufType::Q4_0, GgufType::Q5_0}
                                            : std::vector{GgufType::Q4_1, GgufType::Q5_1, GgufType::Q5_0}) {
      ASSERT_TRUE(holds(linear, type));
      if (is_symmetric) {
        EXPECT_EQ(decoded(linear, type), expected);
      }
    }
    weight.codes_OI[5] = 200;
    EXPECT_FALSE(holds(linear, is_symmetric ? GgufType::Q5_0 : GgufType::Q5_1));
  }
}

// A block of the wider type holds code - zero: with 4 bits from -15 to 15.
TEST(GgufCodes, AsymmetricCodesPassAsDifferences) {
  const LinearWeights linear = random_codes(4, false, 32, 10);
  EXPECT_EQ(decoded(linear, GgufType::Q5_0), dequantize(std::get<QuantizedWeight>(linear.weight)));
  EXPECT_FALSE(holds(linear, GgufType::Q4_0));
  EXPECT_TRUE(holds(random_codes(4, false, 32, 10, 8), GgufType::Q4_0));
  EXPECT_FALSE(holds(random_codes(8, false, 32, 10, 0), GgufType::Q8_0));
}

// zero * scale has 4 bits more than the scale: exact where the scale has 7 or fewer, as those in bfloat16.
TEST(GgufCodes, MinimaOfScalesInBfloat16AreExact) {
  const LinearWeights narrow = random_codes(4, false, 32, 6), wide = random_codes(4, false, 32, 10, 11);
  EXPECT_EQ(decoded(narrow, GgufType::Q4_1), dequantize(std::get<QuantizedWeight>(narrow.weight)));
  EXPECT_EQ(decoded(narrow, GgufType::Q5_1), dequantize(std::get<QuantizedWeight>(narrow.weight)));
  EXPECT_TRUE(is_held_exactly(narrow, GgufType::Q4_1));
  // Else the codes pass, and the minimum is off by half of its last of 11 digits.
  EXPECT_FALSE(is_held_exactly(wide, GgufType::Q4_1));
  const std::vector<float> expected = dequantize(std::get<QuantizedWeight>(wide.weight));
  const std::vector<float> found = decoded(wide, GgufType::Q4_1);
  const auto& scales = std::get<QuantizedWeight>(wide.weight).scales_OG;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 11.0f * scales[i / 32] * 0x1p-11f) << i;
  }
}

TEST(GgufCodes, Mxfp4Passes) {
  std::mt19937 random(1);
  QuantizedWeight weight;
  weight.num_out = 2;
  weight.num_in = 64;
  weight.code = &kMxfp4Code;
  weight.bits = 4;
  weight.group_size = 32;
  weight.scale_dtype = DType::F8_E8M0;
  for (int i = 0; i < 2 * 64; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(random() % 16));
  for (const int exponent : {-3, 5, -20, 0}) weight.scales_OG.push_back(std::ldexp(1.0f, exponent));
  const LinearWeights linear{.name = "w", .weight = weight, .bias_O = {}};
  EXPECT_EQ(decoded(linear, GgufType::MXFP4), dequantize(weight));
  EXPECT_TRUE(is_held_exactly(linear, GgufType::MXFP4));
  EXPECT_FALSE(holds(linear, GgufType::Q4_0));
  // The same numbers in floating point still are such codes; one more bit of one of them, and they are not.
  std::vector<float> values = dequantize(weight);
  const auto dense = [&] {
    return LinearWeights{
        .name = "w",
        .weight =
            DenseWeight{.num_out = 2, .num_in = 64, .dtype = DType::F32, .data = std::as_bytes(std::span(values))},
        .bias_O = {}};
  };
  EXPECT_EQ(decoded(dense(), GgufType::MXFP4), values);
  values[5] = std::nextafter(values[5], 1e30f);
  EXPECT_FALSE(holds(dense(), GgufType::MXFP4));
}

// Columns of a block must share a scale, and lie in the codes.
TEST(GgufCodes, RefusesGroupsThatBlocksCut) {
  LinearWeights linear = random_codes(4, true, 16, 10);
  EXPECT_FALSE(holds(linear, GgufType::Q4_0));
  linear = random_codes(4, true, 32, 10);
  auto& weight = std::get<QuantizedWeight>(linear.weight);
  weight.group_of_I.resize(64);
  for (size_t i = 0; i < 64; ++i) weight.group_of_I[i] = static_cast<int32_t>(1 - i / 32);
  EXPECT_EQ(decoded(linear, GgufType::Q4_0), dequantize(weight));  // moved as a whole
  std::swap(weight.group_of_I[0], weight.group_of_I[63]);
  EXPECT_FALSE(holds(linear, GgufType::Q4_0));
  linear = random_codes(4, true, 32, 10);
  linear.input.outlier_columns = {3};
  linear.outlier_weight_OJ = {1.0f, 2.0f, 3.0f};
  EXPECT_FALSE(holds(linear, GgufType::Q4_0));
}

}  // namespace
}  // namespace pare
