#include "runtime/containers/auto_round_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/config_values.h"
#include "runtime/containers/gptq.h"
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
                                 {"auto_round:awq", kAwqGemm}};
// A "backend" may have one of these after such words.
constexpr std::string_view kKernels[] = {":exllamav2", ":tritonv2", ":triton", ":marlin", ":gemm", ":cuda"};

const Json& stated_packing(const Json& config) {
  return first_value(config, {"packing_format", "backend"});
}

// Returns null for a packing that pare does not read.
const Packing* find_packing(const Json& config) {
  const Json& stated = stated_packing(config);
  std::string name = stated.is_null() ? "auto" : stated.is_string() ? stated.get<std::string>() : "";
  const auto known = [&] { return std::ranges::find(kPackings, name, &Packing::name); };
  for (const std::string_view kernel : kKernels) {
    if (known() == std::end(kPackings) && name.ends_with(kernel)) name.resize(name.size() - kernel.size());
  }
  return known() == std::end(kPackings) ? nullptr : known();
}

// Reads the keys that an entry of extra_config may state too, and leaves what is not stated.
void read_change(const Json& config, const std::string& where, AutoRoundConfig::Change& change) {
  if (const Json& type = value_or_null(config, "data_type"); !type.is_null()) {
    if (!type.is_string() || !type.get<std::string>().starts_with("int")) {
      fail_config(where, "data_type: not supported by this runtime: expected \"int\"" + found_text(type));
    }
  }
  if (const Json& bits = value_or_null(config, "act_bits"); !bits.is_null()) {
    const bool is_plain = bits.is_number_unsigned() && bits.get<uint64_t>() >= kDenseBits;
    if (!is_plain) fail_config(where, "act_bits: not supported by this runtime: expected 16" + found_text(bits));
  }
  for (const char* const key : {"super_bits", "super_group_size"}) {
    const Json& value = value_or_null(config, key);
    if (!value.is_null())
      fail_config(where, std::string(key) + ": not supported by this runtime: expected null" + found_text(value));
  }
  if (const Json& bits = value_or_null(config, "bits"); !bits.is_null()) {
    const bool is_dense = bits.is_number_unsigned() && bits.get<uint64_t>() >= kDenseBits;
    if (!is_dense &&
        (!bits.is_number_unsigned() || bits.get<uint64_t>() > 8 || !kIntegerCode.has_width(bits.get<int>()))) {
      fail_config(where,
                  "bits: not supported by this runtime: expected " + widths_text(kIntegerCode) + found_text(bits));
    }
    change.is_quantized = !is_dense;
    if (!is_dense) change.scheme.bits = bits.get<int>();
  }
  if (const Json& size = value_or_null(config, "group_size"); !size.is_null()) {
    const bool is_positive =
        size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= uint64_t{1} << 31;
    if (!is_positive && size != -1) fail_config(where, "group_size: expected a positive size or -1" + found_text(size));
    change.scheme.group_size = is_positive ? size.get<int64_t>() : kPerChannel;
  }
  if (const Json& symmetric = value_or_null(config, "sym"); !symmetric.is_null()) {
    if (!symmetric.is_boolean()) fail_config(where, "sym: expected true or false" + found_text(symmetric));
    change.scheme.symmetric = symmetric.get<bool>();
  }
  if (change.is_quantized && change.scheme.container == kAwqGemm && change.scheme.bits != 4) {
    fail_config(where, "bits: not supported by this runtime: expected 4 in the packing of AWQ, found " +
                           std::to_string(change.scheme.bits));
  }
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
                "auto_round:gptqmodel or auto_round:auto_awq" +
                    found_text(stated) +
                    ": save the model with AutoRound's --format auto_round, llm_compressor or auto_gptq");
  }
  for (const char* const key : {"rotation_config", "spinquant_config", "hadamard_config", "transform_config"}) {
    const Json& value = value_or_null(config, key);
    if (!value.empty())
      fail_config(where, std::string(key) + ": not supported by this runtime: expected none" + found_text(value));
  }
  if (value_or_null(config, "bits").is_null()) fail_config(where, "bits: missing");
  AutoRoundConfig result;
  Change base;
  base.scheme = {.group_size = 128, .container = std::string(packing->container)};
  read_change(config, where, base);
  if (!base.is_quantized) fail_config(where, "bits: expected codes" + found_text(config.at("bits")));
  result.scheme = base.scheme;
  const Json& extra = value_or_null(config, "extra_config");
  if (extra.is_null()) return result;
  if (!extra.is_object()) fail_config(where, "extra_config: expected an object" + found_text(extra));
  // AutoRound takes patterns in the order of the file, which a parsed object has lost.
  const nlohmann::ordered_json ordered = parse_ordered_json(json, where);
  for (const auto& [key, stated] : ordered.at("extra_config").items()) {
    const std::string place = where + "': extra_config '" + key.substr(0, 100);
    if (!stated.is_object()) fail_config(place, "expected an object" + found_text(stated));
    if (stated.empty()) continue;
    Change change = base;
    read_change(stated, place, change);
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
  // The tensors of GPTQ and AWQ have the same name.
  if (!has_quantized_tensor(find, module, kGptqWeightSuffix, change != nullptr && !change->is_quantized)) {
    return std::nullopt;
  }
  PackScheme result = change != nullptr ? change->scheme : scheme;
  if (result.container == kAwqGemm) return result;
  const TensorView* const groups = find(module + std::string(kGptqGroupsSuffix));
  const bool is_moved = groups != nullptr && groups->shape.size() == 1 &&
                        !moved_groups(find, groups->shape.front(), result.group_size, module).empty();
  if (is_moved) result.act_order = StoredActOrder::group;
  return result;
}

}  // namespace pare::runtime
