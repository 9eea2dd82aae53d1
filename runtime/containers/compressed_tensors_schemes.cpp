// Which schemes compressed-tensors holds, and what engines read of them.
#include <algorithm>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/fp8.h"
#include "runtime/format/stored_widths.h"

namespace pare::runtime {
namespace {

using Reasons = std::vector<std::string>;

constexpr const char* kRegrouped = "act_order group is not read; use static";
constexpr const char* kInputsAlone = "rounded inputs with dense weights are not read";

bool is_dynamic_token(const InputFormat& input) {
  return input.type == InputType::int8 && input.range == InputRange::token;
}

// Source: vLLM's compressed_tensors.py: _get_scheme_from_parts, _quantization_scheme_map_from_config.
Reasons unread_by_vllm(const PackScheme& scheme) {
  if (scheme.is_dense()) return {kInputsAlone};
  Reasons reasons;
  if (scheme.act_order == StoredActOrder::group) reasons.emplace_back(kRegrouped);
  const InputFormat& input = scheme.input;
  if (is_pack_quantized(scheme)) {
    if (!input.is_plain() && !(is_dynamic_token(input) && input.symmetric)) {
      reasons.emplace_back(
          "rounded inputs with packed weights are read only if they are symmetric and have a range per token");
    }
  } else if (is_int_quantized(scheme)) {
    if (input.is_plain()) reasons.emplace_back("codes in bytes without rounded inputs are not read");
    if (scheme.bits != 8) reasons.emplace_back("codes in bytes are read only with 8 bits");
    if (scheme.group_size != kPerChannel)
      reasons.emplace_back("groups of 8-bit weights with rounded inputs are not read");
    if (!scheme.symmetric) reasons.emplace_back("asymmetric 8-bit weights with rounded inputs are not read");
    if (input.range == InputRange::tensor && !input.is_plain()) {
      reasons.emplace_back(
          "int8 inputs with a dynamic range per tensor are not read; use a range per token or a static one");
    }
  }
  return reasons;
}

// vLLM's Marlin kernels, for GPUs without products of FP4, multiply inputs as they are
// (kernels/linear/nvfp4/marlin.py). Others round those of mxfp4 unasked (schemes/compressed_tensors_w4a4_mxfp4.py).
// FP8: compressed_tensors.py: _get_scheme_from_parts, for the GPUs; schemes/compressed_tensors_w8a8_fp8.py:
// activation_quant_key_mapping, for the range; utils/w8a8_utils.py: requantize_with_max_scale, for one scale.
Reasons read_otherwise_by_vllm(const PackScheme& scheme) {
  if (scheme.input.type == InputType::nvfp4) {
    return {"nvfp4 inputs: rounded only on GPUs that multiply FP4; elsewhere weights alone are"};
  }
  if (scheme.code == &kMxfp4Code) return {"inputs are rounded to mxfp4 as well on GPUs that multiply FP4"};
  Reasons reasons;
  if (scheme.code != &kFp8Code || scheme.input.is_plain()) return reasons;
  reasons.emplace_back(kFp8InputsOfVllm);
  if (scheme.input.range == InputRange::tensor) {
    reasons.emplace_back("fp8 inputs with a dynamic range per tensor: each token gets a range of its own");
  }
  if (scheme.per_tensor) reasons.emplace_back(kFp8FusedOfVllm);
  return reasons;
}

// Source: transformers 5.17, integrations/compressed_tensors.py: DecompressExperts. A run gives the experts of mxfp4
// bit by bit, and those of nvfp4 without their factor, thousands of times too large.
Reasons unread_experts_of_transformers(const PackScheme& scheme) {
  if (scheme.code == &kNvfp4Code)
    return {"the factor of nvfp4 weights is not read for experts: their numbers are wrong"};
  if (is_pack_quantized(scheme) || has_float_codes(scheme)) return {};
  return {std::string(kExpertFormats)};
}

// Source: the converter's conversion/base.py: dequant_model.
Reasons unread_by_converter(const PackScheme& scheme) {
  if (scheme.is_dense()) return {kInputsAlone};
  Reasons reasons;
  if (scheme.act_order == StoredActOrder::group) reasons.emplace_back(kRegrouped);
  if (scheme.input.has_stored_scale()) {
    reasons.emplace_back("the tensor with the stored range of inputs is not known there");
  }
  if (has_fp4_codes(scheme)) return {"codes of the kind " + std::string(scheme.code->name) + " are not read"};
  if (is_pack_quantized(scheme)) {
    if (scheme.group_size == kPerChannel)
      reasons.emplace_back("packed weights with one scale per channel are not read, only those in groups");
    if (32 % scheme.bits != 0) {
      reasons.emplace_back(std::to_string(scheme.bits) + "-bit codes are not read, because they lie across words");
    }
    return reasons;
  }
  if (scheme.per_tensor) reasons.emplace_back("one scale per tensor is not read, only one per channel");
  if (scheme.group_size != kPerChannel && scheme.block.is_none())
    reasons.emplace_back("groups of codes in bytes are not read");
  if (!scheme.symmetric) reasons.emplace_back("zero points with codes in bytes are not read");
  return reasons;
}

}  // namespace

std::span<const FloatFormat> float_formats() {
  static const FloatFormat kRows[] = {{&kFp8Code, "float-quantized", "", ""},
                                      {&kNvfp4Code, "nvfp4-pack-quantized", "tensor_group", "torch.float8_e4m3fn"},
                                      {&kMxfp4Code, "mxfp4-pack-quantized", "group", "torch.uint8"}};
  return kRows;
}

const FloatFormat* find_float_format(const WeightCode* code) {
  const std::span<const FloatFormat> rows = float_formats();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const FloatFormat& known) { return known.code == code; });
  return row == rows.end() ? nullptr : &*row;
}

std::string compressed_tensors_problem(const PackScheme& scheme) {
  constexpr const char* kNoPowers =
      "input activations: this container cannot say that their scales are powers of two: use the container fp8";
  const bool is_float = !scheme.is_integer();
  const bool is_packed = scheme.is_integer() && scheme.layout == CodeLayout::packed;
  const InputFormat& input = scheme.input;
  if (scheme.is_dense()) {
    if (scheme.bits != kDenseBits || scheme.group_size != kPerChannel || scheme.per_tensor || !scheme.symmetric ||
        scheme.act_order != StoredActOrder::none) {
      return "dense weights have neither bits nor groups nor zeros nor an order of columns";
    }
    if (input.is_plain()) return "dense weights without input activations are not quantized at all";
    if (input.type == InputType::fp8 && !input.symmetric) return "float input activations: expected symmetric";
    if (input.type == InputType::nvfp4) return "nvfp4 input activations: expected nvfp4 weights, found dense ones";
    if (input.power_of_two_scales) return kNoPowers;
    return input.has_outliers() ? "input activations: this container cannot hold outliers" : "";
  }
  if (is_float && find_float_format(scheme.code) == nullptr) {
    return "it holds no codes of the kind " + std::string(scheme.code->name);
  }
  if (!scheme.code->has_width(scheme.bits)) {
    return std::string(is_float ? "float weights: " : "") + "expected " + widths_text(*scheme.code) + " bits, found " +
           std::to_string(scheme.bits) + " bits";
  }
  if (scheme.group_size != kPerChannel && scheme.group_size <= 0) {
    return "expected a positive group size, found " + std::to_string(scheme.group_size);
  }
  const int64_t block = scheme.code->block;
  const bool has_scale_blocks = !scheme.block.is_none();
  if (has_scale_blocks && (scheme.code != &kFp8Code || scheme.per_tensor || scheme.group_size <= 0 ||
                           scheme.block.num_columns % scheme.group_size != 0)) {
    return "scales of blocks: expected fp8 weights, with groups that divide the blocks";
  }
  if (is_float &&
      ((scheme.group_size != (block == 0 ? kPerChannel : block) && !has_scale_blocks) || !scheme.symmetric)) {
    return "float weights: expected them symmetric, with " +
           (block == 0 ? "one scale per channel, tensor or block"
                       : "one scale for " + std::to_string(block) + " columns");
  }
  if (block != 0 && (scheme.per_tensor || scheme.act_order == StoredActOrder::group)) {
    return "float weights in blocks: expected neither one scale per tensor nor another order of columns";
  }
  const bool is_nvfp4 = input.type == InputType::nvfp4;
  if (is_nvfp4 && scheme.code != &kNvfp4Code) {
    return "nvfp4 input activations: expected nvfp4 weights, found " + code_name(scheme.code, scheme.bits);
  }
  if (is_nvfp4 && (input.range != InputRange::token || !input.symmetric)) {
    return "nvfp4 input activations: expected them symmetric, with the range of a token";
  }
  if (block != 0 && !input.is_plain() && !is_nvfp4) {
    return "float weights in blocks: expected inputs that are not rounded" +
           std::string(scheme.code == &kNvfp4Code ? ", or rounded to nvfp4" : "");
  }
  if (scheme.per_tensor && (is_packed || scheme.group_size != kPerChannel)) {
    return "one scale per tensor: expected int-quantized or float-quantized without groups";
  }
  if (!is_packed && scheme.act_order == StoredActOrder::group) {
    return "actorder \"group\": expected the format pack-quantized";
  }
  if (!input.is_plain() && !is_nvfp4 && (input.type == InputType::fp8) != is_float) {
    return "input activations: expected the type of the weights, int with int or float with float";
  }
  if (input.range == InputRange::block && input.type != InputType::fp8) {
    return "input activations in blocks: expected fp8";
  }
  if (input.power_of_two_scales) return kNoPowers;
  if (input.type == InputType::fp8 && !input.symmetric) return "float input activations: expected symmetric";
  if (input.has_outliers()) return "input activations: this container cannot hold outliers";
  return "";
}

std::vector<std::string> compressed_tensors_unread_by(Engine engine, const PackScheme& scheme) {
  switch (engine) {
    case Engine::transformers_experts:
      return unread_experts_of_transformers(scheme);
    case Engine::transformers:
    case Engine::transformers_encoders:
      if (scheme.act_order != StoredActOrder::group) return {};
      return {kRegrouped};
    case Engine::vllm:
      return unread_by_vllm(scheme);
    case Engine::llama_cpp:
      return unread_by_converter(scheme);
  }
  return {};
}

// compressed-tensors expands 4-bit floats to bfloat16, whatever the model's own type is. In a float32 model, linears
// and experts stop with an error then, as running it shows.
std::vector<std::string> compressed_tensors_read_only(Engine engine, const PackScheme& scheme) {
  if (is_transformers(engine) && has_fp4_codes(scheme)) return {"only with dtype=torch.bfloat16"};
  return engine == Engine::vllm ? read_otherwise_by_vllm(scheme) : Reasons();
}

}  // namespace pare::runtime
