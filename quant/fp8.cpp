#include "quant/fp8.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/grid.h"
#include "runtime/format/dtype.h"

namespace pare::quant {
namespace {

float absmax(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

float scale_for(float largest, runtime::DType dtype, int64_t row) {
  if (largest == 0.0f) return 1.0f;
  const float scale = std::max(runtime::round_to(largest / runtime::kLargestFp8, dtype), smallest_scale(dtype));
  if (!std::isfinite(scale)) {
    throw std::invalid_argument("fp8: row " + std::to_string(row) + " reaches " + std::to_string(largest) +
                                ": its scale does not fit " + std::string(runtime::dtype_name(dtype)));
  }
  return scale;
}

}  // namespace

runtime::QuantizedWeight quantize_fp8(const at::Tensor& weight_OI, bool per_tensor, runtime::DType scale_dtype) {
  const at::Tensor checked_OI = checked_weight(weight_OI);
  runtime::QuantizedWeight weight;
  weight.num_out = checked_OI.size(0);
  weight.num_in = checked_OI.size(1);
  weight.code = &runtime::kFp8Code;
  weight.bits = 8;
  weight.scale_dtype = scale_dtype;
  const std::span<const float> values(checked_OI.const_data_ptr<float>(), static_cast<size_t>(checked_OI.numel()));
  const auto width = static_cast<size_t>(weight.num_in);
  weight.codes_OI.resize(values.size());
  for (int64_t row = 0; row < weight.num_out; ++row) {
    const std::span<const float> row_I = values.subspan(static_cast<size_t>(row) * width, width);
    const float scale = per_tensor && row > 0 ? weight.scales_OG.front()
                                              : scale_for(absmax(per_tensor ? values : row_I), scale_dtype, row);
    weight.scales_OG.push_back(scale);
    std::transform(row_I.begin(), row_I.end(), weight.codes_OI.begin() + row * weight.num_in,
                   [&](float value) { return runtime::float_to_fp8(value / scale); });
  }
  return weight;
}

}  // namespace pare::quant
