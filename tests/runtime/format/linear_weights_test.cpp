#include "runtime/format/linear_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

QuantizedWeight random_weight(int64_t num_out, int64_t num_in, int bits, int64_t group_size, bool symmetric,
                              bool act_order) {
  std::mt19937 generator(static_cast<uint32_t>(bits + num_in));
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = bits;
  weight.group_size = group_size;
  weight.symmetric = symmetric;
  weight.scale_dtype = DType::F32;
  const int64_t num_groups = weight.num_groups();
  for (int64_t i = 0; i < num_out * num_in; ++i) {
    weight.codes_OI.push_back(static_cast<uint8_t>(generator() & ((1u << bits) - 1)));
  }
  for (int64_t i = 0; i < num_out * num_groups; ++i) {
    weight.scales_OG.push_back(std::ldexp(static_cast<float>(generator() % 65536 + 1), -20));
    if (!symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(generator() & ((1u << bits) - 1)));
  }
  for (int64_t i = 0; act_order && i < num_in; ++i) {
    weight.group_of_I.push_back(static_cast<int32_t>((i * 7 + 3) % num_groups));
  }
  return weight;
}

// Returns the header's formula for one element, in exact double arithmetic, rounded once. A product of a float and an
// integer below 2^9 is exact in double.
float expected_element(const QuantizedWeight& weight, int64_t row, int64_t column) {
  const int64_t num_groups = weight.group_size == kPerChannel ? 1 : weight.num_in / weight.group_size;
  int64_t group = weight.group_size == kPerChannel ? 0 : column / weight.group_size;
  if (!weight.group_of_I.empty()) group = weight.group_of_I[column];
  const int zero = weight.symmetric ? (1 << weight.bits) / 2 : weight.zeros_OG[row * num_groups + group];
  const double scale = weight.scales_OG[row * num_groups + group];
  return static_cast<float>(scale * (static_cast<int>(weight.codes_OI[row * weight.num_in + column]) - zero));
}

TEST(LinearWeights, DequantizeIsTheFormulaRoundedOnce) {
  for (int bits : {2, 3, 4, 8}) {
    for (int64_t group_size : {kPerChannel, int64_t{32}, int64_t{64}}) {
      for (bool symmetric : {true, false}) {
        for (bool act_order : {false, true}) {
          // 700 rows of 192 are enough to be split between threads.
          const QuantizedWeight weight = random_weight(700, 192, bits, group_size, symmetric, act_order);
          validate(weight, "w");
          const std::vector<float> dense = dequantize(weight);
          for (int64_t row = 0; row < weight.num_out; ++row) {
            for (int64_t column = 0; column < weight.num_in; ++column) {
              ASSERT_EQ(dense[row * weight.num_in + column], expected_element(weight, row, column));
            }
          }
          std::vector<float> rows(3 * 192);
          dequantize_rows(weight, 697, 3, rows);
          ASSERT_TRUE(std::equal(rows.begin(), rows.end(), dense.end() - 3 * 192));
        }
      }
    }
  }
}

// A weight's rows are the same however it is stored. All the dense types hold these values exactly.
TEST(LinearWeights, RowsOfDenseAndQuantizedWeights) {
  QuantizedWeight weight = random_weight(5, 32, 4, kPerChannel, true, false);
  for (float& scale : weight.scales_OG) scale = 0.25f;
  const std::vector<float> all = dequantize(weight);
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    std::vector<std::byte> bytes(all.size() * dtype_size_bytes(dtype));
    convert_from_float(dtype, all, bytes);
    const LinearWeights dense{"q_proj", DenseWeight{5, 32, dtype, bytes}, {}};
    for (const LinearWeights& linear : {dense, LinearWeights{"q_proj", weight, {}}}) {
      std::vector<float> rows(2 * 32);
      weight_rows(linear, 3, 2, rows);
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all.end() - 2 * 32)) << dtype_name(dtype);
      expect_error<std::invalid_argument>([&] { weight_rows(linear, 4, 2, rows); }, {"rows 4 to 6 of 5"});
      expect_error<std::invalid_argument>([&] { weight_rows(linear, 0, 1, rows); }, {"64 floats"});
    }
    const LinearWeights cut{"q_proj", DenseWeight{5, 32, dtype, std::span(bytes).first(bytes.size() - 1)}, {}};
    std::vector<float> row(32);
    expect_error<std::invalid_argument>([&] { weight_rows(cut, 0, 1, row); }, {"'q_proj'", "bytes"});
  }
}

TEST(LinearWeights, RowsOutsideTheWeightAreRefused) {
  const QuantizedWeight weight = random_weight(4, 32, 4, kPerChannel, true, false);
  std::vector<float> out(64);
  expect_error<std::invalid_argument>([&] { dequantize_rows(weight, 3, 2, out); }, {"rows 3 to 5 of 4"});
  expect_error<std::invalid_argument>([&] { dequantize_rows(weight, -1, 2, out); }, {"rows -1"});
  expect_error<std::invalid_argument>([&] { dequantize_rows(weight, 0, 1, out); }, {"64 floats"});
}

TEST(LinearWeights, ValidateNamesTheFirstOffendingElement) {
  const QuantizedWeight good = random_weight(4, 64, 3, 32, false, true);
  const auto expect_invalid = [&good](const std::function<void(QuantizedWeight&)>& damage, std::string part) {
    QuantizedWeight weight = good;
    damage(weight);
    expect_error<std::runtime_error>([&] { validate(weight, "layer.q"); }, {"layer.q", part});
  };
  EXPECT_NO_THROW(validate(good, "layer.q"));
  expect_invalid([](auto& w) { w.bits = 5; }, "found 5");
  expect_invalid([](auto& w) { w.num_out = 0; }, "[0, 64]");
  expect_invalid([](auto& w) { w.num_in = int64_t{1} << 62; }, "impossible shape");
  expect_invalid([](auto& w) { w.group_size = 48; }, "48 does not divide");
  expect_invalid([](auto& w) { w.group_size = 0; }, "group size 0");
  expect_invalid([](auto& w) { w.scale_dtype = DType::I8; }, "I8");
  expect_invalid([](auto& w) { w.codes_OI.pop_back(); }, "256 codes, found 255");
  expect_invalid([](auto& w) { w.codes_OI[64 * 2 + 5] = 8; }, "code 8 at [2, 5]");
  expect_invalid([](auto& w) { w.scales_OG.push_back(1); }, "8 scales, found 9");
  expect_invalid([](auto& w) { w.scales_OG[3] = -std::numeric_limits<float>::infinity(); }, "[1, 1]");
  expect_invalid([](auto& w) { w.scales_OG[7] = std::numeric_limits<float>::quiet_NaN(); }, "[3, 1]");
  expect_invalid([](auto& w) { w.scales_OG[0] = std::numeric_limits<float>::infinity(); }, "[0, 0]");
  expect_invalid([](auto& w) { w.zeros_OG.clear(); }, "8 zeros, found 0");
  expect_invalid([](auto& w) { w.zeros_OG[5] = 9; }, "zero 9 at [2, 1]");
  expect_invalid([](auto& w) { w.symmetric = true; }, "0 zeros, found 8");
  expect_invalid([](auto& w) { w.group_of_I.pop_back(); }, "64 group indices, found 63");
  expect_invalid([](auto& w) { w.group_of_I[9] = 2; }, "column 9 names group 2");
  expect_invalid([](auto& w) { w.group_of_I[9] = -1; }, "column 9 names group -1");
}

TEST(LinearWeights, PatternsHaveNames) {
  EXPECT_EQ(pattern_name(kTwoOfFour), "2:4");
  EXPECT_EQ(pattern_name({}), "none");
  for (const SparsePattern pattern :
       {kTwoOfFour, SparsePattern{4, 8}, SparsePattern{1, 1}, SparsePattern{1024, 1024}}) {
    EXPECT_EQ(pattern_of_name(pattern_name(pattern)), pattern);
  }
  for (const char* bad : {"", "none", "2", "2:", ":4", "2:4 ", " 2:4", "02:4", "+2:4", "-2:4", "5:4", "0:4", "2:1025",
                          "2:4:8", "2/4", "99999999999999999999:4"}) {
    EXPECT_EQ(pattern_of_name(bad), std::nullopt) << bad;
  }
}

// A weight that is not kept has the code of its zero and stands for 0 exactly. One kept value too many is found, and
// its place is named.
TEST(LinearWeights, APromisedPatternIsCheckedInTheCodes) {
  for (const SparsePattern pattern : {kTwoOfFour, SparsePattern{1, 3}, SparsePattern{4, 8}, SparsePattern{6, 6}}) {
    for (const int64_t group_size : {kPerChannel, int64_t{2}, int64_t{16}}) {
      for (const bool symmetric : {true, false}) {
        for (const bool act_order : {false, true}) {
          QuantizedWeight weight = random_weight(3, 48, 4, group_size, symmetric, act_order);
          for (int64_t row = 0; row < 3; ++row) {
            for (int64_t i = 0; i < 48; ++i) {
              uint8_t& code = weight.codes_OI[static_cast<size_t>(row * 48 + i)];
              const auto zero = static_cast<uint8_t>(weight.zero(row, weight.group(i)));
              const bool is_kept = (i + row) % pattern.group < pattern.num_kept;
              code = !is_kept ? zero : code == zero ? (code + 1) % 16 : code;
            }
          }
          weight.pattern = pattern;
          EXPECT_NO_THROW(validate(weight, "w"));
          const std::vector<float> dense = dequantize(weight);
          int64_t num_zeros = 0;
          for (int64_t row = 0; row < 3; ++row) {
            for (int64_t i = 0; i < 48; ++i) {
              const float value = dense[static_cast<size_t>(row * 48 + i)];
              EXPECT_EQ(value == 0.0f, (i + row) % pattern.group >= pattern.num_kept);
              num_zeros += value == 0.0f;
            }
          }
          const ZeroCount count = count_zeros({"w", weight, {}}, pattern);
          EXPECT_EQ(count.num_zeros, num_zeros);
          EXPECT_EQ(count.num_violations, 0);
          if (pattern.num_kept == pattern.group) continue;
          // This is the first pruned column in row 1, second group.
          int64_t column = pattern.group;
          while ((column + 1) % pattern.group < pattern.num_kept) ++column;
          uint8_t& code = weight.codes_OI[static_cast<size_t>(48 + column)];
          code = (code + 1) % 16;
          const std::string place = "[1, " + std::to_string(pattern.group) + "]";
          expect_error<std::runtime_error>([&] { validate(weight, "w"); },
                                           {"'w'", place, "more than " + std::to_string(pattern.num_kept)});
          const ZeroCount broken = count_zeros({"w", weight, {}}, pattern);
          EXPECT_EQ(broken.num_violations, 1);
          EXPECT_EQ(broken.row, 1);
          EXPECT_EQ(broken.column, pattern.group);
          EXPECT_EQ(broken.num_zeros, num_zeros - 1);
          EXPECT_EQ(count_zeros({"w", weight, {}}, {}).num_violations, 0);
        }
      }
    }
  }
  QuantizedWeight weight = random_weight(3, 46, 4, kPerChannel, true, false);
  for (const auto& [pattern, part] : {std::pair{kTwoOfFour, "2:4 do not divide the input width 46"},
                                      {SparsePattern{3, 2}, "found 3:2"},
                                      {SparsePattern{0, 2}, "found 0:2"},
                                      {SparsePattern{2, 0}, "found 2:0"}}) {
    weight.pattern = pattern;
    expect_error<std::runtime_error>([&] { validate(weight, "w"); }, {"'w'", part});
    expect_error<std::invalid_argument>([&] { count_zeros({"w", weight, {}}, weight.pattern); }, {"'w'", part});
  }
}

TEST(LinearWeights, FP8CodesHaveTwoZeros) {
  QuantizedWeight weight;
  weight.num_out = 1;
  weight.num_in = 4;
  weight.code = &kFp8Code;
  weight.bits = 8;
  weight.codes_OI = {0x00, 0x38, 0x80, 0xb8};
  weight.scales_OG = {0.5f};
  weight.pattern = kTwoOfFour;
  EXPECT_NO_THROW(validate(weight, "m"));
  EXPECT_EQ(count_zeros({"m", weight, {}}, kTwoOfFour).num_zeros, 2);
  weight.codes_OI[2] = 0x81;
  expect_error<std::runtime_error>([&] { validate(weight, "m"); }, {"'m'", "[0, 0]"});
}

TEST(LinearWeights, APromisedPatternIsCheckedInDenseValues) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    std::vector<float> values = {0.0f, 1.0f, -0.0f, 2.0f, 0.0f, 0.0f, 0.0f, 0x1p-14f,
                                 3.0f, 0.0f, 4.0f,  0.0f, 0.0f, 5.0f, 0.0f, -1.0f};
    std::vector<std::byte> bytes(values.size() * dtype_size_bytes(dtype));
    convert_from_float(dtype, values, bytes);
    DenseWeight weight{.num_out = 2, .num_in = 8, .dtype = dtype, .data = bytes, .pattern = kTwoOfFour};
    EXPECT_NO_THROW(validate(weight, "d"));
    EXPECT_EQ(count_zeros({"d", weight, {}}, kTwoOfFour).num_zeros, 9);
    values[9] = 0x1p-24f;  // the smallest value of F16
    convert_from_float(dtype, values, bytes);
    expect_error<std::runtime_error>([&] { validate(weight, "d"); }, {"'d'", "[1, 0]", "2:4"});
    EXPECT_EQ(count_zeros({"d", weight, {}}, kTwoOfFour).num_violations, 1);
    weight.pattern = {};
    EXPECT_NO_THROW(validate(weight, "d"));
    weight.pattern = {2, 3};
    expect_error<std::runtime_error>([&] { validate(weight, "d"); }, {"'d'", "2:3 do not divide"});
    weight.data = weight.data.first(weight.data.size() - 1);
    expect_error<std::runtime_error>([&] { validate(weight, "d"); }, {"'d'", "[2, 8]", "bytes"});
    weight.dtype = DType::I8;
    expect_error<std::runtime_error>([&] { validate(weight, "d"); }, {"'d'", "I8"});
  }
}

// Outlier columns replace those of W, zeros included.
TEST(LinearWeights, ZerosAreThoseOfWhatIsMultiplied) {
  QuantizedWeight weight = random_weight(2, 4, 8, kPerChannel, true, false);
  weight.codes_OI = {128, 128, 5, 6, 128, 128, 7, 8};
  LinearWeights linear{"w", weight, {}};
  linear.input = {.type = InputType::int8, .outliers = OutlierRule::columns, .outlier_columns = {0, 2}};
  linear.outlier_weight_OJ = {1.5f, 2.5f, 0.0f, 0.0f};
  const ZeroCount count = count_zeros(linear, kTwoOfFour);
  EXPECT_EQ(count.num_zeros, 1 + 3);
  EXPECT_EQ(count.num_violations, 1);
  EXPECT_EQ(count.row, 0);
}

TEST(LinearWeights, Float8IsValueTimesScaleRoundedOnce) {
  QuantizedWeight weight;
  weight.num_out = 2;
  weight.num_in = 3;
  weight.code = &kFp8Code;
  weight.bits = 8;
  weight.codes_OI = {0x38, 0xb8, 0x7e, 0x01, 0x00, 0x40};
  weight.scales_OG = {0.1f, 3.0f};
  EXPECT_NO_THROW(validate(weight, "m"));
  const float tiny = 0x1p-9f;  // 0x38 is 1, 0x7e 448, 0x40 2
  EXPECT_EQ(dequantize(weight), (std::vector<float>{0.1f, -0.1f, 0.1f * 448.0f, 3.0f * tiny, 0.0f, 6.0f}));
  std::vector<float> row(3);
  dequantize_rows(weight, 1, 1, row);
  EXPECT_EQ(row[2], 6.0f);
  expect_error<std::invalid_argument>([&] { dequantize_rows(weight, 2, 1, row); }, {"rows 2 to 3 of 2"});
  weight.codes_OI[4] = 0xff;
  expect_error<std::runtime_error>([&] { validate(weight, "m"); }, {"'m'", "[1, 1]", "NaN"});
  weight.codes_OI[4] = 0;
  weight.scales_OG[1] = -1.0f;
  expect_error<std::runtime_error>([&] { validate(weight, "m"); }, {"'m'", "scale", "[1, 0]"});
  weight.scales_OG.pop_back();
  expect_error<std::runtime_error>([&] { validate(weight, "m"); }, {"'m'", "expected 2 scales, found 1"});
}

// AutoRound and llama.cpp write scales of integers with either sign.
TEST(LinearWeights, ScalesOfIntegersMayBeNegative) {
  QuantizedWeight weight;
  weight.num_out = 1;
  weight.num_in = 4;
  weight.bits = 4;
  weight.group_size = 2;
  weight.codes_OI = {0, 9, 0, 15};
  weight.scales_OG = {-0.5f, 0.25f};
  EXPECT_NO_THROW(validate(weight, "m"));
  EXPECT_EQ(dequantize(weight), (std::vector<float>{4.0f, -0.5f, -2.0f, 1.75f}));
}

// Rows of the result, however they are stored, are the rows that were asked for.
TEST(LinearWeightsRows, AreTakenInOrder) {
  const std::vector<int32_t> order = {2, 0, 3, 1};
  QuantizedWeight grouped = random_weight(4, 16, 4, 8, false, true);
  DenseWeight dense{.num_out = 4, .num_in = 3, .dtype = DType::F32, .data = {}};
  std::vector<float> values(12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dense.data = std::as_bytes(std::span<const float>(values));
  for (const LinearWeights& linear : {LinearWeights{.name = "m", .weight = grouped, .bias_O = {1, 2, 3, 4}},
                                      LinearWeights{.name = "m", .weight = dense, .bias_O = {}}}) {
    const LinearWeights ordered = rows_in_order(linear, order);
    const auto width = static_cast<size_t>(linear.num_in());
    for (int64_t o = 0; o < 4; ++o) {
      std::vector<float> found(width), expected(width);
      weight_rows(ordered, o, 1, found);
      weight_rows(linear, order[static_cast<size_t>(o)], 1, expected);
      EXPECT_EQ(found, expected) << o;
      if (!linear.bias_O.empty()) {
        EXPECT_EQ(ordered.bias_O[static_cast<size_t>(o)],
                  linear.bias_O[static_cast<size_t>(order[static_cast<size_t>(o)])]);
      }
    }
  }
  expect_error<std::invalid_argument>(
      [&] { rows_in_order({.name = "m", .weight = grouped, .bias_O = {}}, std::vector<int32_t>{0}); },
      {"'m'", "4 rows", "an order of 1"});
}

}  // namespace
}  // namespace pare
