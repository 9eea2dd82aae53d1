#include "quant/llm_int8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

at::Tensor vector_of(const std::vector<float>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

using Columns = std::vector<int32_t>;

TEST(LlmInt8, AbsoluteThresholdIncludesItsValue) {
  const at::Tensor absmax = vector_of({5.9f, 6.0f, 1.0f, 60.0f, 0.5f, 0.1f, 0.2f, 0.3f, 0.4f});
  const OutlierChoice found = choose_outliers(absmax, {}, {});
  EXPECT_EQ(found.columns, (Columns{1, 3}));
  EXPECT_EQ(found.threshold, 6.0);
  EXPECT_DOUBLE_EQ(found.share, 2.0 / 9.0);
  EXPECT_EQ(found.event, "");
}

TEST(LlmInt8, RelativeThresholdsFollowTheLayer) {
  const at::Tensor absmax = vector_of({40, 10, 20, 1000, 30, 200}), squares = vector_of({4, 1, 2, 90, 3, 50});
  // The median of six values is (30 + 40) / 2, and the root mean square is sqrt(150 / 6) = 5.
  const OutlierChoice by_absmax = choose_outliers(absmax, {}, {OutlierMeasure::median_absmax, 5.0, {}});
  EXPECT_EQ(by_absmax.threshold, 175.0);
  EXPECT_EQ(by_absmax.columns, (Columns{3, 5}));
  const OutlierChoice by_rms = choose_outliers(absmax, squares, {OutlierMeasure::rms, 42.0, {}});
  EXPECT_EQ(by_rms.threshold, 210.0);
  EXPECT_EQ(by_rms.columns, (Columns{3}));
  EXPECT_EQ(choose_outliers(vector_of({1, 2, 9}), {}, {OutlierMeasure::median_absmax, 4.5, {}}).columns, (Columns{2}));
}

TEST(LlmInt8, RelativeMeasuresDoNotSeeTheLayersUnits) {
  const at::Tensor absmax = random_weight(1, 200, 1).abs().flatten(), squares = absmax.square().mul(0.1);
  for (const OutlierMeasure measure : {OutlierMeasure::median_absmax, OutlierMeasure::rms}) {
    const Columns columns = choose_outliers(absmax, squares, {measure, 2.0, {}}).columns;
    EXPECT_FALSE(columns.empty());
    EXPECT_EQ(choose_outliers(absmax.mul(1024.0), squares.mul(1048576.0), {measure, 2.0, {}}).columns, columns);
  }
}

TEST(LlmInt8, DeadChannelsAreNeverOutliers) {
  const at::Tensor absmax = vector_of({0, 0, 0, 3});  // the median is 0, and so is the threshold
  EXPECT_EQ(choose_outliers(absmax, {}, {OutlierMeasure::median_absmax, 20.0, {}}).columns, (Columns{3}));
}

// The values are like those of SmolLM2's down projections: inputs up to 3570, of which 96 % exceed 6.0.
TEST(LlmInt8, SaysWhereTheAbsoluteThresholdMissesTheScale) {
  std::vector<float> values(100, 25.0f);
  for (int i = 0; i < 4; ++i) values[i] = 1.0f;
  values[50] = 3570.0f;
  const OutlierChoice found = choose_outliers(vector_of(values), {}, {});
  EXPECT_EQ(found.columns.size(), 96u);
  for (const char* part :
       {"96 of 100", "96 %", "threshold 6", "median channel 25", "largest 3.57e+03", "20 times", "would choose 1"}) {
    EXPECT_NE(found.event.find(part), std::string::npos) << part << " in: " << found.event;
  }
  EXPECT_EQ(choose_outliers(vector_of(values), {}, {OutlierMeasure::median_absmax, 0.5, {}}).event, "");
  EXPECT_EQ(choose_outliers(vector_of({9, 1, 1, 1, 1}), {}, {}).event, "");
  EXPECT_NE(choose_outliers(vector_of({9, 1, 1, 1}), {}, {}).event, "");
}

struct Oracle {
  double absmax;
  std::vector<int> codes;
};

// Rounds one row as the paper does: absmax / 127 over the columns that are not left out.
Oracle oracle_row(const float* row, int64_t num_in, const Columns& left_out, bool through_f16) {
  Oracle result{0.0, std::vector<int>(num_in, 0)};
  const auto is_in = [&](int64_t i) { return !std::binary_search(left_out.begin(), left_out.end(), i); };
  const auto value = [&](int64_t i) { return through_f16 ? round_to(row[i], DType::F16) : row[i]; };
  for (int64_t i = 0; i < num_in; ++i) {
    if (is_in(i)) result.absmax = std::max(result.absmax, std::fabs(double(value(i))));
  }
  for (int64_t i = 0; i < num_in; ++i) {
    if (is_in(i)) result.codes[i] = static_cast<int>(std::nearbyint(value(i) * 127.0 / result.absmax));
  }
  return result;
}

TEST(LlmInt8, RowsFollowTheFormulaInBothLayouts) {
  const int64_t num_out = 12, num_in = 70;
  const at::Tensor weight = random_weight(num_out, num_in, 3);
  const Columns outliers{0, 17, 69};
  for (const LlmInt8Layout layout : {LlmInt8Layout::own, LlmInt8Layout::bitsandbytes}) {
    const bool is_own = layout == LlmInt8Layout::own;
    const LlmInt8Weight result = quantize_llm_int8(weight, outliers, layout);
    EXPECT_NO_THROW(validate(result.weight, "w"));
    for (int64_t o = 0; o < num_out; ++o) {
      const Oracle expected = oracle_row(floats(weight) + o * num_in, num_in, is_own ? outliers : Columns{}, !is_own);
      EXPECT_EQ(result.absmax_O[o], expected.absmax);
      EXPECT_EQ(result.weight.scales_OG[o], float(expected.absmax) / 127.0f);
      for (int64_t i = 0; i < num_in; ++i) {
        EXPECT_EQ(result.weight.codes_OI[o * num_in + i] - 128, expected.codes[i]);
      }
    }
  }
}

// The expected values were made by bitsandbytes 0.50.2, functional.int8_vectorwise_quant on the CPU, from float16.
TEST(LlmInt8, EqualsBitsandbytes) {
  at::Tensor weight = at::empty({4, 8}, at::kFloat);
  float* values = weight.mutable_data_ptr<float>();
  for (int o = 0; o < 4; ++o) {
    for (int i = 0; i < 8; ++i) {
      const double value = ((o * 37 + i * 91) % 257 - 128) / 1000.0;
      values[o * 8 + i] = static_cast<float>(i == 3 && o != 1 ? value * 41.0 : value);
    }
  }
  const LlmInt8Weight result = quantize_llm_int8(weight, {3}, LlmInt8Layout::bitsandbytes);
  const int codes[4][8] = {{-4, -1, 1, -127, -1, 2, -3, 0},
                           {-108, 0, 108, -89, 19, 127, -70, 38},
                           {-4, 3, 10, -127, 4, -9, -2, 6},
                           {-20, 89, -110, -49, 108, -91, 18, 127}};
  const float absmax[4] = {4.59375f, 0.10699462890625f, 1.5576171875f, 0.10601806640625f};
  for (int o = 0; o < 4; ++o) {
    EXPECT_EQ(result.absmax_O[o], absmax[o]);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(result.weight.codes_OI[o * 8 + i] - 128, codes[o][i]) << o << ", " << i;
  }
  EXPECT_TRUE(result.columns.empty());
  EXPECT_FALSE(result.outlier_weight_OK.defined());
}

// Each int8 weight is off by at most half a step of its row, and outlier columns are exact.
TEST(LlmInt8, OwnLayoutKeepsOutlierColumnsExactly) {
  const int64_t num_out = 9, num_in = 64;
  at::Tensor weight = random_weight(num_out, num_in, 4);
  weight.select(1, 11).mul_(100.0);
  const Columns outliers{11, 40};
  const LlmInt8Weight result = quantize_llm_int8(weight, outliers, LlmInt8Layout::own);
  EXPECT_EQ(result.columns, outliers);
  const std::vector<float> rounded = dequantize(result.weight);
  for (int64_t o = 0; o < num_out; ++o) {
    const double step = result.weight.scales_OG[o];
    EXPECT_LT(result.absmax_O[o], 0.3);  // this is six standard deviations, so column 11 was not seen
    for (int64_t i = 0; i < num_in; ++i) {
      const float exact = floats(weight)[o * num_in + i], kept = rounded[o * num_in + i];
      if (i == 11 || i == 40) {
        EXPECT_EQ(kept, 0.0f);
        EXPECT_EQ(floats(result.outlier_weight_OK)[o * 2 + (i == 40)], exact);
      } else {
        EXPECT_LE(std::fabs(double(kept) - exact), 0.5 * step * (1.0 + 1e-5));
      }
    }
  }
  EXPECT_GT(quantize_llm_int8(weight, outliers, LlmInt8Layout::bitsandbytes).absmax_O[0], 1.0f);
}

TEST(LlmInt8, EmptyAndTinyRowsBecomeZeros) {
  at::Tensor weight = at::zeros({3, 4}, at::kFloat);
  weight.select(0, 1).fill_(1e-40);
  weight.select(0, 2).select(0, 2).fill_(7.0);  // the row has only an outlier column
  const LlmInt8Weight result = quantize_llm_int8(weight, {2}, LlmInt8Layout::own);
  for (const float absmax : result.absmax_O) EXPECT_EQ(absmax, 0.0f);
  for (const float scale : result.weight.scales_OG) EXPECT_EQ(scale, 1.0f);
  for (const uint8_t code : result.weight.codes_OI) EXPECT_EQ(code, 128);
  EXPECT_EQ(floats(result.outlier_weight_OK)[2], 7.0f);
}

TEST(LlmInt8, WithoutOutliersTheOwnLayoutHasAnEmptyPart) {
  const LlmInt8Weight result = quantize_llm_int8(random_weight(3, 4, 5), {}, LlmInt8Layout::own);
  EXPECT_EQ(result.outlier_weight_OK.sizes(), (std::vector<int64_t>{3, 0}));
}

TEST(LlmInt8, RefusesWhatItCannotUse) {
  const at::Tensor good = at::ones({4}, at::kFloat);
  EXPECT_THROW(choose_outliers(good, {}, {OutlierMeasure::absolute, 0.0, {}}), std::invalid_argument);
  EXPECT_THROW(choose_outliers(good, {}, {OutlierMeasure::absolute, NAN, {}}), std::invalid_argument);
  EXPECT_THROW(choose_outliers(good, {}, {OutlierMeasure::rms, 6.0, {}}), std::invalid_argument);
  EXPECT_THROW(choose_outliers(good, at::ones({5}, at::kFloat), {OutlierMeasure::rms, 6.0, {}}), std::invalid_argument);
  EXPECT_THROW(choose_outliers({}, {}, {}), std::invalid_argument);
  EXPECT_THROW(choose_outliers(vector_of({1, -1}), {}, {}), std::invalid_argument);
  EXPECT_THROW(choose_outliers(vector_of({1, INFINITY}), {}, {}), std::invalid_argument);
  const at::Tensor weight = random_weight(3, 4, 6);
  for (const Columns& columns : {Columns{4}, Columns{-1}, Columns{2, 1}, Columns{1, 1}}) {
    EXPECT_THROW(quantize_llm_int8(weight, columns, LlmInt8Layout::own), std::invalid_argument);
  }
  const at::Tensor large = at::full({1, 4}, 1e6f);
  EXPECT_THROW(quantize_llm_int8(large, {}, LlmInt8Layout::bitsandbytes), std::invalid_argument);
  EXPECT_NO_THROW(quantize_llm_int8(large, {}, LlmInt8Layout::own));
}

}  // namespace
}  // namespace pare
