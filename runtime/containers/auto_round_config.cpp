#include "runtime/containers/auto_round_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/config_values.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/containers/scale_blocks.h"
#include "runtime/format/stored_widths.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMethods[] = {"auto-round", "intel/auto-round"};
constexpr int64_t kMaxSteps = 200'000'000;  // of regular expressions, for one module

struct Packing {
  std::string_view name;
  std::string_view container;
};
constexpr Packing kPackings[] = {{"auto", kGptq},
                                 {"auto_round:auto_gptq", kGptq},
                                 {"auto_round:gptq", kGptq},
                                 {"auto_gptq", kGptq},
                                 {"gptq", kGptq},
                                 {"auto_round", kGptqV2},
                                 {"auto_round:gptqmodel", kGptqV2},
                                 {"auto_round:exllamav2", kGptqV2},
                                 {"auto_round:tritonv2", kGptqV2},
                                 {"auto_round:triton", kGptqV2},
                                 {"auto_round:auto_awq", kAwqGemm},
                                 {"auto_round:awq", kAwqGemm},
                                 {"auto_round:llm_compressor", kCompressedTensors},
                                 {"auto_round:fp8_static", kFp8Container},
                                 {"auto_round:fp8", kFp8Container},
                                 {"mlx", kMlx},
                                 {"auto_round:mlx", kMlx}};
// A "backend" may have one of these after such words.
constexpr std::string_view kKernels[] = {":exllamav2", ":tritonv2", ":triton", ":marlin", ":gemm", ":cuda"};

const Json& stated_packing(const Json& config) {
  return first_value(config, {"packing_format", "backend"});
}

// "fp" stands alone for E4M3.
bool is_fp8(const Json& data_type) {
  return data_type.is_string() && data_type.get<std::string>().starts_with("fp");
}

// Returns null for a packing that pare does not read. AutoRound states none for FP8 weights with inputs as they are.
const Packing* find_packing(const Json& config) {
  const Json& stated = stated_packing(config);
  const char* const fallback = is_fp8(value_or_null(config, "data_type")) ? "auto_round:fp8" : "auto";
  std::string name = stated.is_null() ? fallback : stated.is_string() ? stated.get<std::string>() : "";
  const auto known = [&] { return std::ranges::find(kPackings, name, &Packing::name); };
  for (const std::string_view kernel : kKernels) {
    if (known() == std::end(kPackings) && name.ends_with(kernel)) name.resize(name.size() - kernel.size());
  }
  return known() == std::end(kPackings) ? nullptr : known();
}

// A configuration states these of its modules, and an entry of extra_config in its place.
constexpr const char* kSchemeKeys[] = {"bits",       "group_size",      "sym",         "data_type",
                                       "act_bits",   "act_data_type",   "act_dynamic", "act_group_size",
                                       "super_bits", "super_group_size"};
Json stated_scheme(Json base, const Json& config) {
  for (const char* const key : kSchemeKeys) {
    if (const Json& value = value_or_null(config, key); !value.is_null()) base[key] = value;
  }
  return base;
}

[[noreturn]] void refuse(const std::string& where, const char* key, const std::string& expected, const Json& stated) {
  fail_config(where, std::string(key) + ": not supported by this runtime: expected " + expected +
                         found_text(value_or_null(stated, key)));
}

bool has_rounded_inputs(const Json& stated) {
  const Json& bits = value_or_null(stated, "act_bits");
  return !bits.is_null() && !(bits.is_number_unsigned() && bits.get<uint64_t>() >= kDenseBits);
}

void require_plain_inputs(const Json& stated, const std::string& where) {
  if (has_rounded_inputs(stated)) refuse(where, "act_bits", "16 (AutoRound's --act_bits 16)", stated);
}

bool starts_with(const Json& value, std::string_view start) {
  return value.is_string() && value.get<std::string>().starts_with(start);
}

void read_integers(const Json& stated, const std::string& where, PackScheme& scheme) {
  if (const Json& type = value_or_null(stated, "data_type"); !type.is_null() && !starts_with(type, "int")) {
    refuse(where, "data_type", "\"int\" in this packing", stated);
  }
  require_plain_inputs(stated, where);
  const Json& bits = stated.at("bits");
  const bool is_width = bits.is_number_unsigned() && bits.get<uint64_t>() <= 8 && is_stored_width(bits.get<int>());
  if (!is_width) refuse(where, "bits", stored_widths_text(), stated);
  scheme.bits = bits.get<int>();
  if (scheme.container == kAwqGemm && (scheme.bits < 4 || scheme.bits == 8)) {
    refuse(where, "bits", "4, 5, 6 or 7 in the packing of AWQ", stated);
  }
  if (const Json& size = value_or_null(stated, "group_size"); !size.is_null()) {
    const bool is_positive =
        size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= uint64_t{1} << 31;
    if (!is_positive && size != -1) fail_config(where, "group_size: expected a positive size or -1" + found_text(size));
    scheme.group_size = is_positive ? size.get<int64_t>() : kPerChannel;
  }
  if (const Json& symmetric = value_or_null(stated, "sym"); !symmetric.is_null()) {
    if (!symmetric.is_boolean()) fail_config(where, "sym: expected true or false" + found_text(symmetric));
    scheme.symmetric = symmetric.get<bool>();
  }
}

// FP4 in the tensors of compressed-tensors: "nv_fp", whose inputs are nvfp4 with a factor from calibration, or are not
// rounded; "mx_fp", whose inputs AutoRound rounds as well unless it is told not to.
void read_fp4(const Json& stated, const std::string& where, PackScheme& scheme) {
  const Json& type = value_or_null(stated, "data_type");
  const bool is_nvfp4 = starts_with(type, "nv_fp");
  if (!is_nvfp4 && !starts_with(type, "mx_fp"))
    refuse(where, "data_type", "\"nv_fp\" or \"mx_fp\" in this packing", stated);
  scheme.code = is_nvfp4 ? &kNvfp4Code : &kMxfp4Code;
  if (stated.at("bits") != 4) refuse(where, "bits", "4 for " + type.get<std::string>(), stated);
  scheme.bits = 4;
  scheme.group_size = scheme.code->block;
  if (const Json& size = value_or_null(stated, "group_size"); !size.is_null() && size != scheme.group_size) {
    refuse(where, "group_size", std::to_string(scheme.group_size) + " for " + type.get<std::string>(), stated);
  }
  if (value_or_null(stated, "sym") == false) refuse(where, "sym", "true for " + type.get<std::string>(), stated);
  if (!is_nvfp4) return require_plain_inputs(stated, where);
  if (!has_rounded_inputs(stated)) return;
  if (stated.at("act_bits") != 4) refuse(where, "act_bits", "4 or 16", stated);
  if (value_or_null(stated, "act_data_type") != "nv_fp4_with_static_gs") {
    refuse(where, "act_data_type", "\"nv_fp4_with_static_gs\", or act_bits of 16", stated);
  }
  scheme.input = {.type = InputType::nvfp4};
}

// E4M3 with scales of rows, of blocks or of a whole weight.
void read_fp8(const Json& stated, const std::string& where, PackScheme& scheme, ScaleBlock& block) {
  const Json& type = value_or_null(stated, "data_type");
  if (!is_fp8(type) || type.get<std::string>().find("e5m2") != std::string::npos) {
    refuse(where, "data_type", "\"fp\" (E4M3) in this packing", stated);
  }
  if (stated.at("bits") != 8) refuse(where, "bits", "8 for fp", stated);
  scheme.code = &kFp8Code;
  scheme.bits = 8;
  const Json& size = value_or_null(stated, "group_size");
  const bool has_blocks = size == Json::array({kFp8Block, kFp8Block});
  if (!size.is_null() && size != -1 && size != 0 && !has_blocks) {
    refuse(where, "group_size", "-1, 0 or [128, 128] for fp", stated);
  }
  scheme.group_size = kPerChannel;
  scheme.per_tensor = size == 0;
  block = has_blocks ? ScaleBlock{kFp8Block, kFp8Block} : ScaleBlock{};
  if (!has_rounded_inputs(stated)) return;
  if (stated.at("act_bits") != 8) refuse(where, "act_bits", "8 or 16", stated);
  if (const Json& inputs = value_or_null(stated, "act_data_type"); !inputs.is_null() && !is_fp8(inputs)) {
    refuse(where, "act_data_type", "\"fp\"", stated);
  }
  scheme.input = {.type = InputType::fp8};
  const Json& input_size = value_or_null(stated, "act_group_size");
  if (value_or_null(stated, "act_dynamic") == false) {
    if (!input_size.is_null() && input_size != 0) refuse(where, "act_group_size", "0 with act_dynamic false", stated);
    scheme.input.range = InputRange::static_;
  } else if (has_blocks) {
    if (input_size != kFp8Block) refuse(where, "act_group_size", "128 with blocks of weights", stated);
    scheme.input.range = InputRange::block;
  } else if (input_size != -1) {
    refuse(where, "act_group_size", "-1 with act_dynamic true", stated);
  }
}

AutoRoundConfig::Change read_change(const Json& stated, const std::string& where, std::string_view container) {
  AutoRoundConfig::Change change;
  const Json& bits = value_or_null(stated, "bits");
  if (bits.is_null()) fail_config(where, "bits: missing");
  change.is_quantized = !(bits.is_number_unsigned() && bits.get<uint64_t>() >= kDenseBits);
  change.scheme = {.group_size = 128, .container = std::string(container)};
  if (!change.is_quantized) return change;
  for (const char* const key : {"super_bits", "super_group_size"}) {
    if (!value_or_null(stated, key).is_null()) refuse(where, key, "null", stated);
  }
  if (container == kCompressedTensors) {
    read_fp4(stated, where, change.scheme);
  } else if (container == kFp8Container) {
    read_fp8(stated, where, change.scheme, change.block);
  } else {
    read_integers(stated, where, change.scheme);
  }
  return change;
}

// Python's re.search as what matches from the start of a name.
NamePattern searched(const std::string& pattern, const std::string& where) {
  try {
    const bool is_anchored = pattern.starts_with("^") && pattern.find('|') == std::string::npos;
    return NamePattern::parse(is_anchored ? pattern : ".*(" + pattern + ")");
  } catch (const std::invalid_argument& error) {
    fail_config(where, error.what());
  }
}

// Returns the suffix of a tensor that a module has only as codes.
std::string_view suffix_of_codes(std::string_view container, const FindTensor& find, const std::string& module) {
  if (container == kCompressedTensors) return kPackedSuffix;
  if (container != kFp8Container) return kGptqWeightSuffix;  // AWQ's has the same name
  return find(module + std::string(kFp8ScaleSuffix)) != nullptr ? kFp8ScaleSuffix : kFp8OldScaleSuffix;
}

}  // namespace

bool is_auto_round(std::string_view quant_method) {
  return std::ranges::find(kMethods, quant_method) != std::end(kMethods);
}

bool is_auto_round_config(const std::string& json) {
  const Json config = parse_config_text(json, "");
  if (!config.is_object()) return false;
  const Json& method = value_or_null(config, "quant_method");
  return method.is_string() && is_auto_round(method.get<std::string>());
}

std::string_view auto_round_container(const std::string& json) {
  const Json config = parse_config_text(json, "");
  const Packing* const packing = config.is_object() ? find_packing(config) : nullptr;
  return packing == nullptr ? kGptq : packing->container;
}

AutoRoundConfig AutoRoundConfig::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  const Packing* const packing = find_packing(config);
  if (packing == nullptr) {
    const Json& stated = stated_packing(config);
    fail_config(where,
                "packing_format: not supported by this runtime: expected auto_round:auto_gptq, auto_round, "
                "auto_round:gptqmodel, auto_round:auto_awq, auto_round:llm_compressor, auto_round:fp8_static or mlx" +
                    found_text(stated) +
                    ": save the model with AutoRound's --format auto_round, llm_compressor or auto_gptq");
  }
  for (const char* const key : {"rotation_config", "spinquant_config", "hadamard_config", "transform_config"}) {
    const Json& value = value_or_null(config, key);
    if (!value.empty())
      fail_config(where, std::string(key) + ": not supported by this runtime: expected none" + found_text(value));
  }
  if (const Json& format = value_or_null(config, "fmt"); !format.is_null() && format != "e4m3") {
    fail_config(where, "fmt: not supported by this runtime: expected \"e4m3\"" + found_text(format));
  }
  const Json stated = stated_scheme(Json::object(), config);
  AutoRoundConfig result;
  static_cast<Change&>(result) = read_change(stated, where, packing->container);
  if (!result.is_quantized) fail_config(where, "bits: expected codes" + found_text(config.at("bits")));
  const Json& extra = value_or_null(config, "extra_config");
  if (extra.is_null()) return result;
  if (!extra.is_object()) fail_config(where, "extra_config: expected an object" + found_text(extra));
  // AutoRound takes patterns in the order of the file, which a parsed object has lost.
  const nlohmann::ordered_json ordered = parse_ordered_json(json, where);
  for (const auto& [key, entry] : ordered.at("extra_config").items()) {
    const std::string place = where + "': extra_config '" + key.substr(0, 100);
    if (!entry.is_object()) fail_config(place, "expected an object" + found_text(entry));
    if (entry.empty()) continue;
    const Change change = read_change(stated_scheme(stated, entry), place, packing->container);
    // Every pattern that AutoRound writes has one of these characters, and no whole name has.
    if (key.find_first_of("*^$|()[]?+\\") == std::string::npos) {
      result.of_module.emplace(key, change);
    } else {
      result.of_pattern.emplace_back(searched(key, place), change);
    }
  }
  return result;
}

std::optional<PackScheme> AutoRoundConfig::scheme_of(const std::string& module, std::string_view class_name,
                                                     const FindTensor& find) const {
  if (class_name != "Linear") return std::nullopt;
  const Change* change = nullptr;
  if (const auto named = of_module.find(module); named != of_module.end()) change = &named->second;
  int64_t num_steps = 0;
  for (size_t i = 0; change == nullptr && i < of_pattern.size(); ++i) {
    if (of_pattern[i].first.matches(module, num_steps)) change = &of_pattern[i].second;
    if (num_steps <= kMaxSteps) continue;
    throw std::runtime_error("quantization_config: the regular expressions of extra_config take more than " +
                             std::to_string(kMaxSteps) + " steps for a layer: list the layers' names");
  }
  const Change& chosen = change != nullptr ? *change : *this;
  if (!has_quantized_tensor(find, module, suffix_of_codes(chosen.scheme.container, find, module),
                            !chosen.is_quantized)) {
    return std::nullopt;
  }
  PackScheme result = chosen.scheme;
  if (!chosen.block.is_none()) return scheme_with_block(result, chosen.block, find, module, kFp8WeightSuffix);
  if (result.container != kGptq && result.container != kGptqV2) return result;
  const TensorView* const groups = find(module + std::string(kGptqGroupsSuffix));
  const bool is_moved = groups != nullptr && groups->shape.size() == 1 &&
                        !moved_groups(find, groups->shape.front(), result.group_size, module).empty();
  if (is_moved) result.act_order = StoredActOrder::group;
  return result;
}

}  // namespace pare::runtime
