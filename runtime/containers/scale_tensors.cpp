#include "runtime/containers/scale_tensors.h"

#include <cmath>
#include <stdexcept>

namespace pare::runtime {
namespace {

std::string tensor_name(const std::string& module, std::string_view suffix) {
  return module + std::string(suffix);
}

[[noreturn]] void fail(const std::string& module, std::string_view suffix, const std::string& what) {
  throw std::runtime_error("tensor '" + tensor_name(module, suffix) + "': " + what);
}

void check_input_scale(float scale, const std::string& module) {
  if (std::isfinite(scale) && scale > 0.0f) return;
  fail(module, kInputScaleSuffix, "expected a positive finite number, found " + std::to_string(scale));
}

}  // namespace

void require_absent(const TensorView* tensor, const std::string& module, std::string_view suffix, const char* because) {
  if (tensor != nullptr) fail(module, suffix, std::string("unexpected: quantization_config says ") + because);
}

DType file_dtype(DType scale_dtype) {
  return scale_dtype == DType::F8_E8M0 ? DType::U8 : scale_dtype;
}

OwnedTensor pack_scales(std::span<const float> scales, DType dtype, std::vector<int64_t> shape,
                        const std::string& module, std::string_view suffix) {
  for (float scale : scales) {
    if (round_to(scale, dtype) == scale) continue;
    throw std::invalid_argument("quantized weight '" + module + "': the scale " + std::to_string(scale) +
                                " is not exactly representable in " + std::string(dtype_name(dtype)) +
                                "; scales must be rounded to their type before codes are chosen");
  }
  std::vector<std::byte> bytes(scales.size() * dtype_size_bytes(dtype));
  convert_from_float(dtype, scales, bytes);
  return {tensor_name(module, suffix), file_dtype(dtype), std::move(shape), std::move(bytes)};
}

void check_scale_tensor(const TensorView* tensor, const std::vector<int64_t>& shape, const std::string& module,
                        std::string_view suffix, const WeightCode* code) {
  if (code != nullptr && code->scale_dtype) {
    require_tensor(tensor, tensor_name(module, suffix), file_dtype(*code->scale_dtype), shape);
    return;
  }
  if (tensor != nullptr && !is_float_dtype(tensor->dtype)) {
    fail(module, suffix, "expected BF16, F16 or F32, found " + std::string(dtype_name(tensor->dtype)));
  }
  require_tensor(tensor, tensor_name(module, suffix), tensor == nullptr ? DType::BF16 : tensor->dtype, shape);
}

std::vector<float> unpack_scales(const TensorView& tensor) {
  return unpack_scales(tensor, tensor.dtype);
}

std::vector<float> unpack_scales(const TensorView& tensor, DType scale_dtype) {
  std::vector<float> scales_OG(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(scale_dtype, tensor.data, scales_OG);
  return scales_OG;
}

bool has_input_scale(const InputFormat& input) {
  return !input.is_plain() && input.range == InputRange::static_;
}

int64_t input_tensor_bytes(const InputFormat& input, DType scale_dtype) {
  if (!has_input_scale(input)) return 0;
  return static_cast<int64_t>(dtype_size_bytes(scale_dtype)) + (input.symmetric ? 0 : 1);
}

void append_input_tensors(const StoredLinear& linear, const std::string& module, std::vector<OwnedTensor>& tensors) {
  const InputFormat& input = linear.input;
  if (!has_input_scale(input)) return;
  check_input_scale(input.scale, module);
  tensors.push_back(pack_scales({&input.scale, 1}, linear.input_scale_dtype, {1}, module, kInputScaleSuffix));
  if (input.symmetric) return;
  const auto zero = static_cast<int8_t>(input.zero);
  if (zero != input.zero) {
    throw std::invalid_argument("module '" + module + "': expected an input zero in [-128, 127], found " +
                                std::to_string(input.zero) + "; the weight and its scheme must agree");
  }
  tensors.push_back(make_tensor<int8_t>(tensor_name(module, kInputZeroPointSuffix), DType::I8, {1}, {&zero, 1}));
}

void check_input_tensors(const TensorView* scale, const TensorView* zero_point, const InputFormat& input,
                         const std::string& module) {
  if (has_input_scale(input)) {
    check_scale_tensor(scale, {1}, module, kInputScaleSuffix);
  } else {
    require_absent(scale, module, kInputScaleSuffix, "no static input activations");
  }
  if (has_input_scale(input) && !input.symmetric) {
    require_tensor(zero_point, tensor_name(module, kInputZeroPointSuffix), DType::I8, {1});
  } else {
    require_absent(zero_point, module, kInputZeroPointSuffix, "no static asymmetric input activations");
  }
}

void read_input_tensors(const TensorView* scale, const TensorView* zero_point, const std::string& module,
                        StoredLinear& linear) {
  if (!has_input_scale(linear.input)) return;
  linear.input_scale_dtype = scale->dtype;
  linear.input.scale = unpack_scales(*scale)[0];
  check_input_scale(linear.input.scale, module);
  if (!linear.input.symmetric) linear.input.zero = static_cast<int8_t>(code_bytes(*zero_point)[0]);
}

}  // namespace pare::runtime
