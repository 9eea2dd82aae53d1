// The rounding of inputs, compared with compressed-tensors and torch themselves (check_input_format.py) and with closed
// forms.
#include "runtime/format/input_format.h"
#include "runtime/format/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp8, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::isnan(value), (code & 0x7F) == 0x7F) << code;
    EXPECT_EQ(float_to_fp8(value), code);
  }
  EXPECT_EQ(fp8_to_float(0x7E), 448.0f);
  EXPECT_EQ(fp8_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(fp8_to_float(0x01), 0x1p-9f);
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = fp8_to_float(static_cast<uint8_t>(code)), high = fp8_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(float_to_fp8(middle), even);
    EXPECT_EQ(float_to_fp8(-middle), even | 0x80);
    EXPECT_EQ(float_to_fp8(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(float_to_fp8(std::nextafter(middle, 1e9f)), code + 1);
  }
}

TEST(Fp8, SaturatesAndKeepsNaN) {
  for (const float large : {448.1f, 464.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(float_to_fp8(large), 0x7E);
    EXPECT_EQ(float_to_fp8(-large), 0xFE);
  }
  EXPECT_EQ(float_to_fp8(kNaN) & 0x7F, 0x7F);
}

// round_to_fp8 computes the value of the nearest code in its own way.
TEST(Fp8, RoundingInPlaceIsTheTripThroughTheCode) {
  std::mt19937 random(1);
  std::vector<float> x = {0.0f, -0.0f, 0x1p-10f, 0x1.8p-10f, 0x1p-6f, 0x1.fffffep-7f, 448.0f, 1e9f, -kInfinity, 1e-42f};
  for (int i = 0; i < 100000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int i = 0; i < 100000; ++i) x.push_back(std::ldexp(static_cast<float>(random() % 4096), -14));
  for (const float scale : {1.0f, 0.37f}) {
    std::vector<float> rounded = x;
    round_to_fp8(rounded, {scale, 0});
    for (size_t i = 0; i < x.size(); ++i) {
      const float expected = fp8_to_float(float_to_fp8(x[i] / scale)) * scale;
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(rounded[i])) << x[i];
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(expected)) << x[i];
      }
    }
  }
}

TEST(InputFormat, SymmetricCodesOfWrittenOutNumbers) {
  const InputFormat format = {.type = InputType::int8};
  const std::vector<float> x = {127.5f, -127.5f, 0.5f, 1.5f, -2.5f, 0.0f};
  InputGrid grid = input_grid(format, input_extremes(x));
  EXPECT_EQ(grid.scale, 1.0f);
  std::vector<int8_t> codes(x.size());
  input_codes(x, grid, codes);
  EXPECT_EQ(codes, (std::vector<int8_t>{127, -128, 0, 2, -2, 0}));
}

TEST(InputFormat, AsymmetricCodesUseTheWholeRange) {
  const InputFormat format = {.type = InputType::int8, .symmetric = false};
  const std::vector<float> x = {0.0f, 255.0f, 100.0f};
  InputGrid grid = input_grid(format, input_extremes(x));
  EXPECT_EQ(grid.scale, 1.0f);
  EXPECT_EQ(grid.zero, -128);
  std::vector<int8_t> codes(x.size());
  input_codes(x, grid, codes);
  EXPECT_EQ(codes, (std::vector<int8_t>{-128, 127, -28}));
  // 0 is always on the grid, even when all values are far from it.
  EXPECT_EQ(input_grid(format, input_extremes(std::vector<float>{100.0f, 101.0f})).zero, -128);
  EXPECT_EQ(input_grid(format, input_extremes(std::vector<float>{-100.0f, -101.0f})).zero, 127);
}

TEST(InputFormat, ExtremesDoNotDependOnTheLength) {
  std::mt19937 random(3);
  for (size_t size = 1; size < 70; ++size) {
    std::vector<float> x(size);
    for (float& value : x) value = std::ldexp(static_cast<float>(random() % 1000), -5) - 15.0f;
    const InputExtremes extremes = input_extremes(x);
    EXPECT_EQ(extremes.low, std::min(0.0f, *std::min_element(x.begin(), x.end())));
    EXPECT_EQ(extremes.high, std::max(0.0f, *std::max_element(x.begin(), x.end())));
    x[random() % size] = kNaN;
    EXPECT_TRUE(std::isnan(input_extremes(x).low));
  }
}

TEST(InputFormat, NaNAndInfinityReachTheScale) {
  for (const bool symmetric : {true, false}) {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      const InputFormat format = {.type = InputType::int8, .symmetric = symmetric};
      std::vector<float> x(40, 1.0f);
      x[17] = bad;
      InputGrid grid = input_grid(format, input_extremes(x));
      std::vector<int8_t> codes(x.size(), 5);
      input_codes(x, grid, codes);
      EXPECT_TRUE(std::isnan(grid.scale));
      EXPECT_EQ(codes, std::vector<int8_t>(x.size(), 0));
    }
  }
  InputGrid fixed = {0.5f, 3};
  std::vector<int8_t> codes(2);
  input_codes(std::vector<float>{kInfinity, 1.0f}, fixed, codes);  // a fixed range saturates
  EXPECT_EQ(codes, (std::vector<int8_t>{127, 5}));
  input_codes(std::vector<float>{1.0f, kNaN}, fixed, codes);
  EXPECT_TRUE(std::isnan(fixed.scale));
}

TEST(InputFormat, OutlierColumnsStayAndDoNotWidenTheOthersGrid) {
  const InputFormat format = {.type = InputType::int8, .outliers = OutlierRule::absolute, .outlier_threshold = 6.0f};
  // There are two tokens. Column 1 exceeds the threshold only in the second one.
  std::vector<float> x = {1.27f, 5.0f, 0.004f, -2.54f, -6.0f, 0.024f};
  EXPECT_EQ(outlier_columns(format, x, 3), (std::vector<int32_t>{1}));
  std::vector<int8_t> codes(3);
  // The first row's absmax is 5, because its value in the outlier column lies below the threshold (as in bitsandbytes).
  InputGrid grid = outlier_row_codes(format, std::span(x).first(3), {1}, 6.0f, codes);
  EXPECT_EQ(codes, (std::vector<int8_t>{32, 0, 0}));
  EXPECT_FLOAT_EQ(grid.scale, 5.0f / 127);
  grid = outlier_row_codes(format, std::span(x).subspan(3), {1}, 6.0f, codes);
  EXPECT_EQ(codes, (std::vector<int8_t>{-127, 0, 1}));
  EXPECT_FLOAT_EQ(grid.scale, 0.02f);
  fake_quantize(format, x, 3);
  EXPECT_EQ(x[1], 5.0f);
  EXPECT_EQ(x[4], -6.0f);
  EXPECT_FLOAT_EQ(x[3], -2.54f);
  EXPECT_FLOAT_EQ(x[5], 0.02f);
}

TEST(InputFormat, AListOfColumnsIsPassedOver) {
  const InputFormat format = {.type = InputType::int8, .outliers = OutlierRule::columns, .outlier_columns = {0, 2}};
  std::vector<float> x = {100.0f, 1.27f, -50.0f, 0.02f};
  fake_quantize(format, x, 4);
  EXPECT_EQ(x[0], 100.0f);
  EXPECT_EQ(x[2], -50.0f);
  EXPECT_FLOAT_EQ(x[1], 1.27f);
  EXPECT_FLOAT_EQ(x[3], 0.02f);
}

// Computed by hand: the other values span [-0.5, 2.05], so a step is 0.01 and the zero is -78.
TEST(InputFormat, AsymmetricCodesBesideOutlierColumns) {
  const InputFormat format = {
      .type = InputType::int8, .symmetric = false, .outliers = OutlierRule::columns, .outlier_columns = {1}};
  std::vector<float> x = {-0.5f, 80.0f, 2.05f, 0.312f, 0.0f};
  std::vector<int8_t> codes(5);
  const InputGrid grid = outlier_row_codes(format, x, {1}, kInfinity, codes);
  EXPECT_FLOAT_EQ(grid.scale, 0.01f);
  EXPECT_EQ(grid.zero, -78);
  EXPECT_EQ(codes, (std::vector<int8_t>{-128, -78, 127, -47, -78}));
  fake_quantize(format, x, 5);
  EXPECT_EQ(x[1], 80.0f);
  EXPECT_FLOAT_EQ(x[0], -0.5f);
  EXPECT_FLOAT_EQ(x[3], 0.31f);
  EXPECT_EQ(x[4], 0.0f);
}

TEST(InputFormat, ARelativeThresholdFollowsTheScaleOfTheInput) {
  InputFormat format = {.type = InputType::int8, .outliers = OutlierRule::relative, .outlier_threshold = 3.0f};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(16 * 40);
  for (float& value : x) value = 0.5f * std::tanh(normal(random));
  for (size_t row = 0; row < 16; ++row) x[row * 40 + 7] = 20.0f;
  EXPECT_EQ(outlier_columns(format, x, 40), (std::vector<int32_t>{7}));
  for (float& value : x) value *= 1000.0f;
  EXPECT_EQ(outlier_columns(format, x, 40), (std::vector<int32_t>{7}));
  const std::vector<float> zeros(80, 0.0f);
  EXPECT_TRUE(outlier_columns(format, zeros, 40).empty());
}

// The values that E2M1 keeps, times 2: the others of a block of 16 are rounded to the nearest of them, ties to the even
// code.
TEST(Nvfp4, RoundsBlocksOfWrittenOutNumbers) {
  // The factor is 448 * 6 / 6, so that the first block, whose largest value is 6, has the scale 1.
  const InputFormat format = {.type = InputType::nvfp4, .scale = 448.0f};
  std::vector<float> x = {6.0f, 0.25f, 0.26f, 0.75f, 0.74f, 1.25f, 1.75f, 2.5f,
                          3.5f, 5.0f,  5.01f, -0.2f, -2.6f, 0.0f,  1.0f,  -6.0f};
  const std::vector<float> expected = {6.0f, 0.0f, 0.5f, 1.0f,  0.5f,  1.0f, 2.0f, 2.0f,
                                       4.0f, 4.0f, 6.0f, -0.0f, -3.0f, 0.0f, 1.0f, -6.0f};
  // The second has a 64th of these: its scale of 7 is exact in E4M3, and so is everything else.
  for (int i = 0; i < 16; ++i) x.push_back(x[static_cast<size_t>(i)] / 64.0f);
  fake_quantize(format, x, 32);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    EXPECT_EQ(x[16 + i], expected[i] / 64.0f) << i;
  }
}

TEST(Nvfp4, ABlockHasAScaleOfItsOwn) {
  const InputFormat format = {.type = InputType::nvfp4, .scale = 448.0f};
  std::vector<float> x(48, 1.0f);
  x[3] = 6.0f;
  x[20] = kNaN;
  x[40] = kInfinity;
  fake_quantize(format, x, 48);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(x[i], i == 3 ? 6.0f : 1.0f);
  for (size_t i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(x[i]));
  for (size_t i = 32; i < 48; ++i) EXPECT_EQ(x[i], i == 40 ? 6.0f : 1.0f);  // E4M3 ends at 448, which stands for 1
  // Blocks of zeros, and those too small for a scale, are zeros.
  x.assign(32, 0.0f);
  for (size_t i = 16; i < 32; ++i) x[i] = 1e-8f;
  fake_quantize(format, x, 32);
  EXPECT_EQ(x, std::vector<float>(32, 0.0f));
}

// The scale is absmax / 448: 1 in the first block, 2 in the last, which has 72 values. A NaN reaches its own block.
TEST(Fp8Blocks, ABlockHasAScaleOfItsOwn) {
  const InputFormat format = {.type = InputType::fp8, .range = InputRange::block};
  std::vector<float> x(328, 0.0f);
  x[0] = 448.0f, x[1] = 17.0f, x[2] = -19.0f, x[127] = 0x1p-10f;
  x[130] = kNaN;
  x[256] = -896.0f, x[257] = 34.0f, x[327] = 38.0f;
  fake_quantize(format, x, 328);
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 3), (std::vector<float>{448.0f, 16.0f, -20.0f}));  // ties to even
  EXPECT_EQ(x[127], 0.0f);
  for (size_t i = 128; i < 256; ++i) EXPECT_TRUE(std::isnan(x[i]));
  EXPECT_EQ(x[256], -896.0f);
  EXPECT_EQ(x[257], 32.0f);
  EXPECT_EQ(x[327], 40.0f);
}

// Returns what act_quant of DeepSeek-V3.2-Exp's inference/kernel.py keeps of a block, in plain loops of float64: a
// power of two is found by doubling, and a code by looking at all of them. Ties go to the even code.
std::vector<float> deepseek_block(std::span<const float> x) {
  double largest = 1e-4f;
  for (const float value : x) largest = std::max(largest, std::abs(static_cast<double>(value)));
  double scale = 0x1p-40;
  while (scale * 448.0 < largest) scale *= 2.0;
  std::vector<float> kept;
  for (const float value : x) {
    int nearest = 0;
    for (int code = 1; code <= 0x7E; ++code) {
      const auto distance = [&](int c) {
        return std::abs(std::abs(static_cast<double>(value)) / scale - fp8_to_float(static_cast<uint8_t>(c)));
      };
      const double gain = distance(nearest) - distance(code);
      if (gain > 0.0 || (gain == 0.0 && code % 2 == 0)) nearest = code;
    }
    const double magnitude = fp8_to_float(static_cast<uint8_t>(nearest)) * scale;
    kept.push_back(static_cast<float>(std::copysign(magnitude, static_cast<double>(value))));
  }
  return kept;
}

// Rows of all magnitudes, and rows whose largest value is 448 times a power of two, or one of its neighbours.
TEST(Fp8Blocks, WithPowersOfTwoAreDeepSeeks) {
  const InputFormat format = {.type = InputType::fp8, .range = InputRange::block, .power_of_two_scales = true};
  const int64_t width = 300;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x, expected;
  for (int exponent = -30; exponent < 30; ++exponent) {
    for (const float direction : {-kInfinity, 0.0f, kInfinity}) {
      std::vector<float> row(static_cast<size_t>(width));
      for (float& value : row) value = std::ldexp(normal(random), exponent);
      const float edge = std::ldexp(448.0f, exponent);
      row[5] = direction == 0.0f ? edge : std::nextafter(edge, direction);
      for (size_t i = 128; i < 256; ++i) row[i] *= 0x1p-7f;
      if (exponent == 3) std::fill(row.begin() + 128, row.begin() + 256, 0.0f);
      for (size_t first = 0; first < row.size(); first += 128) {
        const std::span<const float> rest = std::span(row).subspan(first);
        const std::vector<float> kept = deepseek_block(rest.first(std::min<size_t>(rest.size(), 128)));
        expected.insert(expected.end(), kept.begin(), kept.end());
      }
      x.insert(x.end(), row.begin(), row.end());
    }
  }
  fake_quantize(format, x, width);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], expected[i]) << "row " << i / 300 << ", column " << i % 300;
}

// With scales that are no powers of two, 450 and 3 would be on the grid of 450 / 448.
TEST(Fp8Blocks, APowerOfTwoIsRoundedUp) {
  const InputFormat format = {.type = InputType::fp8, .range = InputRange::block, .power_of_two_scales = true};
  std::vector<float> x = {450.0f, -3.0f, 0x1p-8f, 17.0f};  // the scale is 2, and its least step 2^-8
  fake_quantize(format, x, 4);
  EXPECT_EQ(x, (std::vector<float>{448.0f, -3.0f, 0x1p-8f, 16.0f}));
  x = {0.0f, 1e-9f, -0x1p-31f, 0x1p-32f};  // 10^-4 / 448 is between 2^-23 and 2^-22, and the step 2^-31
  fake_quantize(format, x, 4);
  EXPECT_EQ(x, (std::vector<float>{0.0f, 0x1p-30f, -0x1p-31f, 0.0f}));
  x = {1.0f, kNaN, kInfinity, 0.0f};
  fake_quantize(format, x, 4);
  for (const float value : x) EXPECT_TRUE(std::isnan(value));
}

TEST(InputFormat, RefusesWhatDoesNotGoTogether) {
  const auto refused = [](InputFormat format, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { validate(format, 8, "q_proj"); }, parts);
  };
  refused({.type = InputType::fp8, .symmetric = false}, {"q_proj", "fp8", "zero"});
  refused({.type = InputType::int8, .range = InputRange::static_}, {"q_proj", "scale", "0.0"});
  refused({.type = InputType::int8, .range = InputRange::static_, .scale = kInfinity}, {"scale", "inf"});
  refused({.type = InputType::int8, .range = InputRange::static_, .scale = 1.0f, .zero = 3}, {"symmetric", "3"});
  refused({.type = InputType::int8, .range = InputRange::static_, .symmetric = false, .scale = 1.0f, .zero = 128},
          {"[-128, 127]", "128"});
  refused({.type = InputType::int8, .outliers = OutlierRule::absolute}, {"threshold"});
  refused({.type = InputType::int8, .range = InputRange::tensor, .outliers = OutlierRule::columns}, {"per token"});
  refused({.type = InputType::int8, .outliers = OutlierRule::columns, .outlier_columns = {1, 1}}, {"ascending", "1"});
  refused({.type = InputType::int8, .outliers = OutlierRule::columns, .outlier_columns = {8}}, {"below 8", "8"});
  refused({.type = InputType::nvfp4, .scale = 1.0f}, {"q_proj", "blocks of 16", "8 inputs"});
  refused({.type = InputType::int8, .range = InputRange::block}, {"q_proj", "only fp8", "block"});
  refused({.type = InputType::fp8, .power_of_two_scales = true}, {"q_proj", "powers of two", "block", "token"});
  const auto refused_nvfp4 = [](InputFormat format, std::initializer_list<std::string> parts) {
    format.type = InputType::nvfp4;
    expect_error<std::invalid_argument>([&] { validate(format, 16, "q_proj"); }, parts);
  };
  refused_nvfp4({.symmetric = false, .scale = 1.0f}, {"nvfp4", "zero"});
  refused_nvfp4({.range = InputRange::static_, .scale = 1.0f}, {"range token", "static"});
  for (const float scale : {0.0f, -1.0f, 1e-40f, 2e38f, kInfinity, kNaN}) refused_nvfp4({.scale = scale}, {"1.2e-38"});
  refused_nvfp4({.scale = 1.0f, .outliers = OutlierRule::absolute, .outlier_threshold = 6.0f}, {"outlier", "int8"});
  std::vector<float> x(7);
  expect_error<std::invalid_argument>([&] { fake_quantize({.type = InputType::int8}, x, 4); }, {"7 values", "4"});
}

// --- compressed-tensors and torch ---

struct NamedFormat {
  std::string name;
  InputFormat format;
};

// check_input_format.py builds the package's arguments from the same names.
std::vector<NamedFormat> package_formats() {
  std::vector<NamedFormat> formats;
  for (const InputType type : {InputType::int8, InputType::fp8}) {
    for (const InputRange range : {InputRange::token, InputRange::tensor, InputRange::static_}) {
      for (const bool symmetric : {true, false}) {
        if (type == InputType::fp8 && !symmetric) continue;
        InputFormat format = {.type = type, .range = range, .symmetric = symmetric};
        if (range == InputRange::static_) format.scale = 0.037f;
        if (range == InputRange::static_ && !symmetric) format.zero = -19;
        formats.push_back({std::string(type == InputType::int8 ? "int" : "float") +
                               (range == InputRange::token    ? "_token"
                                : range == InputRange::tensor ? "_tensor"
                                                              : "_static") +
                               (symmetric ? "_symmetric" : "_asymmetric"),
                           format});
      }
    }
  }
  formats.push_back({"float_group_symmetric", {.type = InputType::fp8, .range = InputRange::block}});
  // With the least factor some blocks' scales are 0 in E4M3, and with the largest some are beyond its range.
  for (const auto& [name, factor] : {std::pair{"0.25", 0.25f}, {"50", 50.0f}, {"3000", 3000.0f}}) {
    formats.push_back({"nvfp4_" + std::string(name) + "_symmetric", {.type = InputType::nvfp4, .scale = factor}});
  }
  return formats;
}

TEST(InputFormat, CompressedTensorsGivesTheSameBits) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON must name a Python with the packages of tests/requirements.txt: "
                                "run `make test`, which sets it up";
  const int64_t num_rows = 24, width = 256;
  std::vector<float> x(static_cast<size_t>(num_rows * width));
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[r * width + i];
      value = normal(random) * std::ldexp(1.0f, static_cast<int>(r) - 12);
      if (r == 3) value = 0.0f;
      if (r == 4) value = std::abs(value);
      if (r == 5) value = -std::abs(value);
      if (r == 6) value = static_cast<float>(i) - 0.5f;                         // ties in places, with a scale of 1
      if (r == 7) value = i == 0 ? 127.5f : static_cast<float>(i % 40) + 0.5f;  // all ties
      if (r == 8) value = i == 0 ? 448.0f : std::ldexp(static_cast<float>(2 * i + 1), static_cast<int>(i % 9) - 11);
      if (r == 9) value = 1e-44f * static_cast<float>(i);
      if (r == 10) value = i % 16 == 0 ? 6.0f : static_cast<float>(i % 16) * (i % 32 < 16 ? 0.25f : -0.375f);  // ties
      if (r == 11) value = i % 3 == 0 ? -0.0f : i % 16 == 7 ? 24.0f : -1e-3f;
    }
  }
  TemporaryFolder folder;
  std::vector<NamedTensor> tensors = {{"x", DType::F32, {num_rows, width}, std::as_bytes(std::span(x))}};
  std::vector<std::vector<float>> results;
  const std::vector<NamedFormat> formats = package_formats();
  for (const NamedFormat& named : formats) {
    results.push_back(x);
    fake_quantize(named.format, results.back(), width);
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    tensors.push_back({formats[i].name, DType::F32, {num_rows, width}, std::as_bytes(std::span(results[i]))});
  }
  // Every fp8 code, and float32 values of every exponent with their codes.
  std::vector<float> all_codes, values;
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) all_codes.push_back(fp8_to_float(static_cast<uint8_t>(code)));
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::abs(value) <= 448.0f) values.push_back(value);  // torch does not saturate
    values.push_back(std::ldexp(static_cast<float>(static_cast<int>(random() % 8192) - 4096), -14));
  }
  for (const float value : values) codes.push_back(float_to_fp8(value));
  tensors.push_back({"fp8_codes", DType::F32, {256}, std::as_bytes(std::span(all_codes))});
  tensors.push_back({"fp8_in", DType::F32, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))});
  tensors.push_back({"fp8_out", DType::U8, {static_cast<int64_t>(codes.size())}, std::as_bytes(std::span(codes))});
  write_safetensors(folder.path() / "rounded.safetensors", tensors);
  const std::filesystem::path log = folder.path() / "log";
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/runtime/format/check_input_format.py' '" +
                              (folder.path() / "rounded.safetensors").string() + "' > '" + log.string() + "' 2>&1";
  std::ostringstream text;
  const int status = std::system(command.c_str());
  text << std::ifstream(log).rdbuf();
  EXPECT_EQ(status, 0) << text.str();
}

}  // namespace
}  // namespace pare
