#include "runtime/containers/scale_tensors.h"

#include <algorithm>
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

bool has_global_scale(const InputFormat& input) {
  return input.type == InputType::nvfp4;
}

void check_input_scale(const InputFormat& input, const std::string& module) {
  const float scale = input.scale;
  if (!has_global_scale(input)) {
    if (std::isfinite(scale) && scale > 0.0f) return;
    fail(module, kInputScaleSuffix, "expected a positive finite number, found " + std::to_string(scale));
  }
  if (std::isnormal(scale) && scale > 0.0f && std::isnormal(1.0f / scale)) return;  // as validate() asks
  fail(module, kInputGlobalScaleSuffix, "expected a number from 1.2e-38 to 8.5e+37, found " + std::to_string(scale));
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

void require_magnitudes(std::span<const float> scales_O, const std::string& module, std::string_view suffix) {
  const auto negative = std::ranges::find_if(scales_O, [](float scale) { return scale < 0.0f; });
  if (negative == scales_O.end()) return;
  fail(module, suffix,
       "expected numbers of at least 0, found " + std::to_string(*negative) + " in row " +
           std::to_string(negative - scales_O.begin()) + ": the file is damaged; fetch it again");
}

int64_t input_tensor_bytes(const InputFormat& input, DType scale_dtype) {
  if (!input.has_stored_scale()) return 0;
  return static_cast<int64_t>(dtype_size_bytes(input_scale_dtype(input, scale_dtype))) + (input.symmetric ? 0 : 1);
}

void append_input_tensors(const StoredLinear& linear, const std::string& module, std::vector<OwnedTensor>& tensors) {
  const InputFormat& input = linear.input;
  if (!input.has_stored_scale()) return;
  check_input_scale(input, module);
  tensors.push_back(pack_scales({&input.scale, 1}, input_scale_dtype(input, linear.input_scale_dtype), {1}, module,
                                has_global_scale(input) ? kInputGlobalScaleSuffix : kInputScaleSuffix));
  if (input.symmetric) return;
  const auto zero = static_cast<int8_t>(input.zero);
  if (zero != input.zero) {
    throw std::invalid_argument("module '" + module + "': expected an input zero in [-128, 127], found " +
                                std::to_string(input.zero) + "; the weight and its scheme must agree");
  }
  tensors.push_back(make_tensor<int8_t>(tensor_name(module, kInputZeroPointSuffix), DType::I8, {1}, {&zero, 1}));
}

void check_input_tensors(const InputTensors& tensors, const InputFormat& input, const std::string& module) {
  const bool is_global = has_global_scale(input);
  if (is_global) {
    require_tensor(tensors.global_scale, tensor_name(module, kInputGlobalScaleSuffix), DType::F32, {1});
  } else {
    require_absent(tensors.global_scale, module, kInputGlobalScaleSuffix, "no nvfp4 input activations");
  }
  if (input.has_stored_scale() && !is_global) {
    check_scale_tensor(tensors.scale, {1}, module, kInputScaleSuffix);
  } else {
    require_absent(tensors.scale, module, kInputScaleSuffix, "no static input activations");
  }
  if (input.has_stored_scale() && !input.symmetric) {
    require_tensor(tensors.zero_point, tensor_name(module, kInputZeroPointSuffix), DType::I8, {1});
  } else {
    require_absent(tensors.zero_point, module, kInputZeroPointSuffix, "no static asymmetric input activations");
  }
}

void read_input_tensors(const InputTensors& tensors, const std::string& module, StoredLinear& linear) {
  if (!linear.input.has_stored_scale()) return;
  const TensorView& scale = has_global_scale(linear.input) ? *tensors.global_scale : *tensors.scale;
  linear.input_scale_dtype = scale.dtype;
  linear.input.scale = unpack_scales(scale)[0];
  check_input_scale(linear.input, module);
  if (!linear.input.symmetric) linear.input.zero = static_cast<int8_t>(code_bytes(*tensors.zero_point)[0]);
}

}  // namespace pare::runtime
