#include "runtime/containers/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/auto_round_config.h"
#include "runtime/containers/config_values.h"
#include "runtime/containers/scale_blocks.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/name_pattern.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr const char* kMethod = "fp8";
constexpr const char* kPowers = "ue8m0";  // scales of weights and of inputs
constexpr int64_t kMaxBlock = int64_t{1} << 20;
constexpr std::array kSuffixes = {kFp8WeightSuffix, kFp8ScaleSuffix, kFp8OldScaleSuffix, kFp8InputSuffix,
                                  kFp8OldInputSuffix};

// Returns the tensor with the module's name and the first of the suffixes that is there, and that suffix. None: null
// and the first one.
struct Part {
  const TensorView* tensor = nullptr;
  std::string name;
};
Part first_part(const FindTensor& find, const std::string& module, std::initializer_list<std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes) {
    const std::string name = module + std::string(suffix);
    if (const TensorView* const tensor = find(name); tensor != nullptr) return {tensor, name};
  }
  return {nullptr, module + std::string(*suffixes.begin())};
}

Part scale_part(const FindTensor& find, const std::string& module) {
  return first_part(find, module, {kFp8ScaleSuffix, kFp8OldScaleSuffix});
}
Part input_part(const FindTensor& find, const std::string& module) {
  return first_part(find, module, {kFp8InputSuffix, kFp8OldInputSuffix});
}

[[noreturn]] void fail(const std::string& tensor, const std::string& what) {
  throw std::runtime_error("tensor '" + tensor + "': " + what);
}

// Checks that a scale is there, in one of the types of floats.
void check_float(const Part& part, const std::vector<int64_t>& shape, bool may_be_power) {
  const bool is_float = part.tensor == nullptr || is_float_dtype(part.tensor->dtype) ||
                        (may_be_power && part.tensor->dtype == DType::F8_E8M0);
  if (!is_float) {
    fail(part.name, std::string("expected BF16, F16") + (may_be_power ? ", F32 or F8_E8M0" : " or F32") + ", found " +
                        std::string(dtype_name(part.tensor->dtype)));
  }
  require_tensor(part.tensor, part.name, part.tensor == nullptr ? DType::F32 : part.tensor->dtype, shape);
}

// Checks the same of a single number, which files hold as [] or [1].
void check_one_float(const Part& part) {
  const bool is_scalar = part.tensor != nullptr && part.tensor->shape.empty();
  check_float(part, is_scalar ? std::vector<int64_t>{} : std::vector<int64_t>{1}, /*may_be_power=*/false);
}

float one_float(const Part& part) {
  return unpack_scales(*part.tensor).front();
}

ScaleBlock read_block(const Json& size, const std::string& where) {
  if (size.is_null()) return {};
  const auto is_side = [](const Json& side) {
    return side.is_number_unsigned() && side.get<uint64_t>() > 0 && side.get<uint64_t>() <= uint64_t{kMaxBlock};
  };
  if (!size.is_array() || size.size() != 2 || !is_side(size[0]) || !is_side(size[1])) {
    fail_config(where,
                "weight_block_size: expected two positive sizes or null, found " + json_text(size).substr(0, 100));
  }
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

}  // namespace

Fp8Config Fp8Config::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  const Json method = first_value(config, {"quant_method"});
  if (method != kMethod) fail_config(where, "quant_method: expected \"fp8\"" + found_text(method));
  const auto require = [&](const char* key, std::initializer_list<const char*> values) {
    const Json& value = value_or_null(config, key);
    if (value.is_null() || std::ranges::any_of(values, [&](const char* known) { return value == known; })) return;
    fail_config(where, std::string(key) + ": not supported by this runtime: expected " +
                           (values.size() == 0 ? "null" : "\"" + std::string(*values.begin()) + "\"") +
                           found_text(value));
  };
  require("fmt", {"e4m3", "float8_e4m3fn", "e4m3fn"});
  require("scale_fmt", {"float", kPowers});
  if (value_or_null(config, "modules_to_convert") != Json::array()) require("modules_to_convert", {});
  require("kv_cache_scheme", {});
  Fp8Config result;
  result.block = read_block(value_or_null(config, "weight_block_size"), where);
  const bool has_blocks = !result.block.is_none();
  const Json& inputs = value_or_null(config, "activation_scheme");
  const bool is_static = inputs == "static";
  if (!inputs.is_null() && inputs != "dynamic" && !is_static) {
    fail_config(where, "activation_scheme: expected \"dynamic\" or \"static\"" + found_text(inputs));
  }
  if (is_static && has_blocks) {
    fail_config(where, "activation_scheme: not supported by this runtime: expected \"dynamic\" with weight_block_size" +
                           found_text(inputs));
  }
  result.scheme = {.code = &kFp8Code, .bits = 8, .container = std::string(kFp8Container), .per_tensor = !has_blocks};
  result.scheme.input = {.type = InputType::fp8,
                         .range = is_static    ? InputRange::static_
                                  : has_blocks ? InputRange::block
                                               : InputRange::token};
  if (has_blocks && result.block.num_columns != kFp8Block) {
    fail_config(where, "weight_block_size: not supported by this runtime: expected blocks of " +
                           std::to_string(kFp8Block) + " columns, in which inputs are rounded too, found " +
                           std::to_string(result.block.num_columns));
  }
  const Json& scales = value_or_null(config, "scale_fmt");
  if (scales == kPowers && !has_blocks) {
    fail_config(where, "scale_fmt: not supported by this runtime: expected \"float\" without weight_block_size" +
                           found_text(scales));
  }
  result.scheme.input.power_of_two_scales = scales == kPowers;
  for (const char* const key : {"modules_to_not_convert", "ignored_layers"}) {
    const Json& names = value_or_null(config, key);
    if (!names.is_null() && !names.is_array())
      fail_config(where, std::string(key) + ": expected an array" + found_text(names));
    for (const Json& name : names) {
      if (!name.is_string()) fail_config(where, std::string(key) + ": expected strings" + found_text(name));
      result.unconverted.insert(name.get<std::string>());
    }
  }
  return result;
}

std::optional<PackScheme> Fp8Config::scheme_of(const std::string& module, std::string_view class_name,
                                               const FindTensor& find) const {
  if (class_name != "Linear") return std::nullopt;
  const TensorView* const weight = find(module + std::string(kFp8WeightSuffix));
  const Part scale = scale_part(find, module);
  const bool has_codes = weight != nullptr && !is_float_dtype(weight->dtype);
  if (!has_codes && scale.tensor == nullptr) return std::nullopt;
  const std::string& tensor = scale.tensor != nullptr ? scale.name : module + std::string(kFp8WeightSuffix);
  if (is_in_modules(module, unconverted)) {
    fail(tensor,
         "unexpected: the quantization_config of config.json lists this module among those that are not "
         "quantized");
  }
  return block.is_none() ? scheme : scheme_with_block(scheme, block, find, module, kFp8WeightSuffix);
}

// --- the row of the table ---

namespace {

class Fp8Container final : public ContainerFormat {
 public:
  std::string_view name() const override { return kFp8Container; }
  std::string_view method() const override { return kMethod; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  bool is_for_recipes() const override { return false; }  // no pass makes its scales
  // transformers 5.17 (quantizer_finegrained_fp8.py) and vLLM (quantization/fp8.py) are where the format comes from.
  // llama.cpp: conversion/base.py, dequant_simple of the same method.
  std::vector<std::string> unread_by(Engine, const PackScheme&) const override { return {}; }
  // Under which names each looks for scales is a rule of runtime/export/engine_verdicts.cpp. vLLM 0.33: fp8.py takes
  // its Marlin kernels where a GPU does not multiply FP8, and process_fp8_weight_tensor_strategy gives fused layers
  // one scale.
  std::vector<std::string> read_only(Engine engine, const PackScheme& scheme) const override {
    if (is_transformers(engine)) return {"on CPUs and older GPUs it decodes weights to bfloat16 and rounds no input"};
    if (engine != Engine::vllm) return {};
    std::vector<std::string> restrictions = {std::string(kFp8InputsOfVllm)};
    if (scheme.per_tensor) restrictions.emplace_back(kFp8FusedOfVllm);
    return restrictions;
  }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kFp8Container;
    wanted.layout = CodeLayout::packed;
    return wanted;
  }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override;
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override;
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    return is_auto_round(quant_method) ? auto_round_container(json) == kFp8Container : quant_method == kMethod;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    if (is_auto_round_config(json)) return std::make_unique<AutoRoundConfig>(AutoRoundConfig::parse(json, where));
    return std::make_unique<Fp8Config>(Fp8Config::parse(json, where));
  }

 private:
  std::string why_not(const PackScheme& scheme) const override;
  std::string why_not_together(std::span<const StoredModule> modules) const override;
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const StoredExtent& extent) const override {
    const std::vector<int64_t> blocks = block_shape(scheme.block, num_out, num_in);
    return num_out * num_in + blocks[0] * blocks[1] * static_cast<int64_t>(dtype_size_bytes(extent.scale_dtype));
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override;
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override;
};

std::string Fp8Container::why_not(const PackScheme& scheme) const {
  const std::string start = "the container fp8 cannot hold it: ";
  const std::string advice = ": use the container compressed-tensors";
  if (scheme.code != &kFp8Code || scheme.bits != 8) {
    return start + "expected fp8 codes, found " + code_name(scheme.code, scheme.bits) + advice;
  }
  if (scheme.block.is_none()) {
    return start + "expected scales of blocks of rows and columns, as published files have them, found other scales" +
           advice;
  }
  if (scheme.block.num_columns != kFp8Block || scheme.block.num_rows < 0 || kFp8Block % scheme.group_size != 0) {
    return start + "expected blocks of " + std::to_string(kFp8Block) + " columns, found " +
           std::to_string(scheme.block.num_columns) + advice;
  }
  if (scheme.act_order == StoredActOrder::group || !scheme.symmetric || scheme.per_tensor) {
    return start + "expected symmetric weights whose columns are in their places, with scales of blocks" + advice;
  }
  if (scheme.input.type == InputType::fp8 && scheme.input.range == InputRange::block) return "";
  return start + "expected inputs that are rounded to fp8 in blocks, found " + input_format_name(scheme.input) + advice;
}

std::string Fp8Container::why_not_together(std::span<const StoredModule> modules) const {
  // Groups follow from each layer's width.
  std::vector<StoredModule> alike(modules.begin(), modules.end());
  for (StoredModule& module : alike) module.scheme.group_size = module.scheme.block.num_columns;
  return difference_of(alike, "the configuration of fp8 has one block size for all linears");
}

void Fp8Container::check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                         const std::string& module) const {
  const Part weight = first_part(find, module, {kFp8WeightSuffix}), scale = scale_part(find, module);
  if (num_out <= 0 || num_in <= 0 || !checked_product(std::vector{num_out, num_in})) {
    throw std::runtime_error("module '" + module + "': impossible shape " + shape_text(std::vector{num_out, num_in}));
  }
  if (weight.tensor != nullptr && is_float_dtype(weight.tensor->dtype)) {
    fail(scale.name, "unexpected: '" + weight.name + "' is " + std::string(dtype_name(weight.tensor->dtype)) +
                         ", which needs no scale: the checkpoint is mixed up");
  }
  require_tensor(weight.tensor, weight.name, DType::F8_E4M3, {num_out, num_in});
  if (scheme.per_tensor) {
    check_one_float(scale);
  } else if (scheme.block.is_none()) {
    const bool is_matrix = scale.tensor != nullptr && scale.tensor->shape.size() == 2;
    check_float(scale, is_matrix ? std::vector<int64_t>{num_out, 1} : std::vector<int64_t>{num_out},
                /*may_be_power=*/false);
  } else {
    check_float(scale, block_shape(scheme.block, num_out, num_in), /*may_be_power=*/true);
  }
  const Part input = input_part(find, module);
  if (scheme.input.has_stored_scale()) {
    check_one_float(input);
  } else if (input.tensor != nullptr) {
    fail(input.name, "unexpected: quantization_config says activation_scheme: dynamic");
  }
}

StoredLinear Fp8Container::load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                const std::string& module) const {
  check(find, scheme, num_out, num_in, module);
  const TensorView& scale = *scale_part(find, module).tensor;
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.code = &kFp8Code;
  weight.bits = 8;
  weight.group_size = scheme.group_size;
  // BF16 holds every power of two of F8_E8M0.
  weight.scale_dtype = scale.dtype == DType::F8_E8M0 ? DType::BF16 : scale.dtype;
  const std::span<const uint8_t> codes = code_bytes(*find(module + std::string(kFp8WeightSuffix)));
  weight.codes_OI.assign(codes.begin(), codes.end());
  const std::vector<float> scales = unpack_scales(scale);
  weight.scales_OG = scheme.per_tensor        ? std::vector<float>(static_cast<size_t>(num_out), scales.front())
                     : scheme.block.is_none() ? scales
                                              : spread_block_scales(scales, scheme.block, num_out, num_in);
  validate(weight, module);
  StoredLinear linear{.weight = std::move(weight), .input = scheme.input};
  if (!scheme.input.has_stored_scale()) return linear;
  const Part input = input_part(find, module);
  linear.input_scale_dtype = input.tensor->dtype;
  linear.input.scale = one_float(input);
  if (!std::isfinite(linear.input.scale) || linear.input.scale <= 0.0f) {
    fail(input.name, "expected a positive finite number, found " + std::to_string(linear.input.scale));
  }
  return linear;
}

std::vector<OwnedTensor> Fp8Container::pack(const StoredLinear& linear, const PackScheme& scheme,
                                            const std::string& module) const {
  const QuantizedWeight& weight = linear.weight;
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint8_t>(module + std::string(kFp8WeightSuffix), DType::F8_E4M3,
                                         {weight.num_out, weight.num_in}, weight.codes_OI));
  tensors.push_back(pack_scales(gather_block_scales(weight, scheme.block, module), weight.scale_dtype,
                                block_shape(scheme.block, weight.num_out, weight.num_in), module, kFp8ScaleSuffix));
  return tensors;
}

std::string Fp8Container::write_config(std::span<const StoredModule> modules,
                                       std::span<const std::string> ignore) const {
  const ScaleBlock& block = modules.front().scheme.block;
  nlohmann::ordered_json config;
  config["quant_method"] = kMethod;
  config["activation_scheme"] = "dynamic";
  config["fmt"] = "e4m3";
  if (modules.front().scheme.input.power_of_two_scales) config["scale_fmt"] = kPowers;
  config["weight_block_size"] = {block.num_rows, block.num_columns};
  if (!ignore.empty()) config["modules_to_not_convert"] = std::vector<std::string>(ignore.begin(), ignore.end());
  return json_text(config, 2);
}

}  // namespace

const ContainerFormat& fp8_container() {
  static const Fp8Container container;
  return container;
}

}  // namespace pare::runtime
