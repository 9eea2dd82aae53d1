#include "quant/llm_int8.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "quant/checked_tensor.h"

namespace pare::quant {
namespace {

constexpr int kZeroCode = 128;
// A row whose weights are all smaller counts as zeros, because 127 / absmax would overflow.
constexpr float kSmallestAbsmax = 0x1p-110f;

std::vector<float> checked_statistics(const at::Tensor& values_I, const std::string& name) {
  if (!values_I.defined() || values_I.dim() != 1 || values_I.numel() == 0 || values_I.scalar_type() != at::kFloat) {
    throw std::invalid_argument(name + ": expected a float32 vector with one element per input channel, found " +
                                (values_I.defined() ? shape_text(values_I) : "none"));
  }
  const at::Tensor contiguous = values_I.detach().contiguous();
  const float* values = contiguous.const_data_ptr<float>();
  for (int64_t i = 0; i < contiguous.numel(); ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0.0f) continue;
    std::ostringstream message;
    message << name << "[" << i << "] is " << values[i] << "; expected a finite value that is not negative";
    throw std::invalid_argument(message.str());
  }
  return {values, values + contiguous.numel()};
}

double median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (double(values[middle - 1]) + values[middle]);
}

std::vector<int32_t> columns_from(const std::vector<float>& absmax_I, double threshold) {
  std::vector<int32_t> columns;
  for (size_t i = 0; i < absmax_I.size(); ++i) {
    if (absmax_I[i] > 0.0f && absmax_I[i] >= threshold) columns.push_back(static_cast<int32_t>(i));
  }
  return columns;
}

std::string many_outliers_event(const std::vector<float>& absmax_I, const OutlierChoice& found) {
  const double median_absmax = median(absmax_I), largest = *std::max_element(absmax_I.begin(), absmax_I.end());
  const size_t num_proposed = columns_from(absmax_I, kProposedMultiple * median_absmax).size();
  std::ostringstream text;
  text.precision(3);
  text << found.columns.size() << " of " << absmax_I.size() << " input channels (" << std::round(100.0 * found.share)
       << " %) reach the absolute threshold " << found.threshold
       << " and stay in floating point: this layer's own scale is "
       << "larger (median channel " << median_absmax << ", largest " << largest << "); a threshold of "
       << kProposedMultiple << " times the median channel would choose " << num_proposed;
  return text.str();
}

void check_columns(const std::vector<int32_t>& columns, int64_t num_in) {
  for (size_t k = 0; k < columns.size(); ++k) {
    const int32_t lowest = k == 0 ? 0 : columns[k - 1] + 1;
    if (columns[k] >= lowest && columns[k] < num_in) continue;
    throw std::invalid_argument("outlier columns: expected ascending indices below " + std::to_string(num_in) +
                                ", found " + std::to_string(columns[k]) + " at position " + std::to_string(k));
  }
}

// Rounds the row to float16, as bitsandbytes sees it.
void round_to_f16(float* row, int64_t num_in, int64_t row_index) {
  for (int64_t i = 0; i < num_in; ++i) {
    const float rounded = runtime::round_to(row[i], runtime::DType::F16);
    if (!std::isfinite(rounded)) {
      std::ostringstream message;
      message << "weight[" << row_index << ", " << i << "] is " << row[i]
              << "; the bitsandbytes layout goes through float16 (largest 65504): use 'layout: pare'";
      throw std::invalid_argument(message.str());
    }
    row[i] = rounded;
  }
}

}  // namespace

OutlierChoice choose_outliers(const at::Tensor& absmax_I, const at::Tensor& mean_square_I,
                              const LlmInt8Options& options) {
  if (!(options.value > 0.0) || !std::isfinite(options.value)) {
    throw std::invalid_argument("outlier threshold: expected a positive number, found " +
                                std::to_string(options.value));
  }
  const std::vector<float> absmax = checked_statistics(absmax_I, "largest input");
  OutlierChoice found;
  found.threshold = options.value;
  if (options.measure == OutlierMeasure::median_absmax) found.threshold *= median(absmax);
  if (options.measure == OutlierMeasure::rms) {
    const std::vector<float> squares = checked_statistics(mean_square_I, "mean square of the input");
    if (squares.size() != absmax.size()) {
      throw std::invalid_argument("mean square of the input: expected " + std::to_string(absmax.size()) +
                                  " channels, found " + std::to_string(squares.size()));
    }
    found.threshold *= std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0) / squares.size());
  }
  found.columns = columns_from(absmax, found.threshold);
  found.share = static_cast<double>(found.columns.size()) / absmax.size();
  if (options.measure == OutlierMeasure::absolute && found.share >= kManyOutliers) {
    found.event = many_outliers_event(absmax, found);
  }
  return found;
}

LlmInt8Weight quantize_llm_int8(const at::Tensor& weight_OI, const std::vector<int32_t>& outlier_columns,
                                LlmInt8Layout layout) {
  const at::Tensor weight = checked_weight(weight_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  check_columns(outlier_columns, num_in);

  LlmInt8Weight result;
  result.weight = {.num_out = num_out,
                   .num_in = num_in,
                   .bits = 8,
                   .group_size = runtime::kPerChannel,
                   .symmetric = true,
                   .scale_dtype = runtime::DType::F32,
                   .codes_OI = std::vector<uint8_t>(num_out * num_in),
                   .scales_OG = std::vector<float>(num_out),
                   .zeros_OG = {},
                   .group_of_I = {}};
  result.absmax_O.resize(num_out);
  const int64_t num_outliers = static_cast<int64_t>(outlier_columns.size());
  float* outlier_weights = nullptr;
  if (layout == LlmInt8Layout::own) {
    result.columns = outlier_columns;
    result.outlier_weight_OK = at::empty({num_out, num_outliers}, at::kFloat);
    outlier_weights = result.outlier_weight_OK.mutable_data_ptr<float>();
  }
  const float* weights = weight.const_data_ptr<float>();
  std::vector<float> row_I(num_in);
  for (int64_t o = 0; o < num_out; ++o) {
    std::copy_n(weights + o * num_in, num_in, row_I.data());
    if (layout == LlmInt8Layout::bitsandbytes) round_to_f16(row_I.data(), num_in, o);
    for (int64_t k = 0; outlier_weights != nullptr && k < num_outliers; ++k) {
      float& value = row_I[outlier_columns[k]];
      outlier_weights[o * num_outliers + k] = value;
      value = 0.0f;
    }
    float absmax = 0.0f;
    for (const float value : row_I) absmax = std::max(absmax, std::fabs(value));
    if (absmax < kSmallestAbsmax) absmax = 0.0f;
    result.absmax_O[o] = absmax;
    result.weight.scales_OG[o] = absmax > 0.0f ? absmax / 127.0f : 1.0f;
    const float steps_per_unit = absmax > 0.0f ? 127.0f / absmax : 0.0f;
    uint8_t* codes_I = result.weight.codes_OI.data() + o * num_in;
    for (int64_t i = 0; i < num_in; ++i) {
      codes_I[i] = static_cast<uint8_t>(kZeroCode + static_cast<int>(std::nearbyint(row_I[i] * steps_per_unit)));
    }
  }
  return result;
}

}  // namespace pare::quant
