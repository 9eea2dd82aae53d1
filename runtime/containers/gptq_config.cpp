// Reads and writes the quantization_config of GPTQ files. Source of the keys: AutoGPTQ (quantization/config.py) and
// GPTQModel 7.7 (quantization/config.py); optimum 2.3 (gptq/quantizer.py) for the modules that it replaces.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/containers/config_values.h"
#include "runtime/containers/gptq.h"
#include "runtime/system/json_text.h"
#include "runtime/system/version.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kFirstFormat = "gptq", kSecondFormat = "gptq_v2";
constexpr std::string_view kExcept = "-:", kOnly = "+:";
// A file lists rules for thousands of experts, each of which is tried for each module.
constexpr int64_t kMaxSteps = 200'000'000;

bool read_flag(const Json& config, const char* name, bool fallback, const std::string& where) {
  const Json value = first_value(config, {name});
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) fail_config(where, std::string(name) + ": expected true or false" + found_text(value));
  return value.get<bool>();
}

// Reads the keys that a rule may state too, and leaves what is not stated.
void read_scheme(const Json& config, const std::string& where, PackScheme& scheme) {
  if (const Json bits = first_value(config, {"bits", "w_bit"}); !bits.is_null()) {
    if (!bits.is_number_unsigned() || bits.get<uint64_t>() > 8 || !kIntegerCode.has_width(bits.get<int>())) {
      fail_config(where,
                  "bits: not supported by this runtime: expected " + widths_text(kIntegerCode) + found_text(bits));
    }
    scheme.bits = bits.get<int>();
  }
  if (const Json size = first_value(config, {"group_size", "q_group_size"}); !size.is_null()) {
    const bool is_positive =
        size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= uint64_t{1} << 31;
    if (!is_positive && size != -1) fail_config(where, "group_size: expected a positive size or -1" + found_text(size));
    scheme.group_size = is_positive ? size.get<int64_t>() : kPerChannel;
  }
  scheme.symmetric = read_flag(config, "sym", scheme.symmetric, where);
  const bool is_ordered = read_flag(config, "desc_act", scheme.act_order == StoredActOrder::group, where);
  scheme.act_order = is_ordered ? StoredActOrder::group : StoredActOrder::none;
}

// Python writes regular expressions with escaped dots; a rule of ours matches one name and no longer one.
std::string rule_of(const std::string& module, std::string_view prefix) {
  std::string pattern(prefix);
  pattern += '^';
  for (const char c : module) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

PackScheme most_common(std::span<const StoredModule> modules) {
  std::vector<std::pair<PackScheme, int64_t>> counts;
  for (const StoredModule& module : modules) {
    auto entry = std::ranges::find_if(counts, [&](const auto& known) { return known.first == module.scheme; });
    if (entry == counts.end()) entry = counts.insert(counts.end(), {module.scheme, 0});
    ++entry->second;
  }
  return std::ranges::max_element(counts, {}, [](const auto& known) { return known.second; })->first;
}

void write_scheme(const PackScheme& scheme, OrderedJson& json) {
  json["bits"] = scheme.bits;
  json["group_size"] = scheme.group_size == kPerChannel ? int64_t{-1} : scheme.group_size;
  json["desc_act"] = scheme.act_order == StoredActOrder::group;
  json["sym"] = scheme.symmetric;
}

// Returns the name of a module in its block, "mlp.down_proj", or "" if it is in none.
std::string name_in_block(const std::string& module) {
  size_t start = 0;
  while (start < module.size()) {
    const size_t end = std::min(module.find('.', start), module.size());
    const std::string part = module.substr(start, end - start);
    if (!part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) {
      return end < module.size() ? module.substr(end + 1) : "";
    }
    start = end + 1;
  }
  return "";
}

// Returns the modules that optimum shall replace: names in the block where all of that name are quantized, whole names
// otherwise. It looks for modules whose names end so.
std::vector<std::string> replaced_modules(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  std::set<std::string> in_part;
  for (const std::string& name : ignore) in_part.insert(name_in_block(name));
  std::vector<std::string> names;
  std::set<std::string> listed;
  for (const StoredModule& module : modules) {
    const std::string in_block = name_in_block(module.name);
    if (in_block.empty()) continue;
    const std::string& name = in_part.contains(in_block) ? module.name : in_block;
    if (listed.insert(name).second) names.push_back(name);
  }
  return names;
}

}  // namespace

bool is_gptq_v2(const std::string& json) {
  const Json config = parse_config_text(json, "");
  return config.is_object() && first_value(config, {"checkpoint_format", "format"}) == kSecondFormat;
}

std::string gptq_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore,
                             std::string_view container) {
  const PackScheme base = most_common(modules);
  const std::string_view format = container == kGptqV2 ? kSecondFormat : kFirstFormat;
  OrderedJson config;
  config["quant_method"] = "gptq";
  write_scheme(base, config);
  config["lm_head"] =
      std::ranges::any_of(modules, [](const StoredModule& module) { return name_in_block(module.name).empty(); });
  config["checkpoint_format"] = format;
  config["format"] = format;
  config["pack_dtype"] = "int32";
  config["damp_percent"] = 0.1;  // transformers refuses a file without one; nothing that loads uses it
  config["true_sequential"] = true;
  OrderedJson dynamic = OrderedJson::object();
  for (const std::string& name : ignore) dynamic[rule_of(name, kExcept)] = OrderedJson::object();
  for (const StoredModule& module : modules) {
    if (module.scheme == base) continue;
    write_scheme(module.scheme, dynamic[rule_of(module.name, kOnly)]);
  }
  if (!dynamic.empty()) config["dynamic"] = std::move(dynamic);
  const bool leaves_some_out =
      std::ranges::any_of(ignore, [](const std::string& name) { return !name_in_block(name).empty(); });
  if (leaves_some_out) config["modules_in_block_to_quantize"] = OrderedJson::array({replaced_modules(modules, ignore)});
  config["meta"]["quantizer"] = OrderedJson::array({"pare:" + std::string(version())});
  return json_text(config, 2);
}

GptqConfig GptqConfig::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  const Json format = first_value(config, {"checkpoint_format", "format"});
  if (!format.is_null() && format != kFirstFormat && format != kSecondFormat) {
    fail_config(where, "checkpoint_format: not supported by this runtime: expected \"gptq\" or \"gptq_v2\"" +
                           found_text(format));
  }
  if (read_flag(config, "is_marlin_format", false, where)) {
    fail_config(where, "is_marlin_format: not supported by this runtime: expected false, found true");
  }
  const Json words = first_value(config, {"pack_dtype"});
  if (!words.is_null() && words != "int32" && words != "torch.int32") {
    fail_config(where, "pack_dtype: not supported by this runtime: expected \"int32\"" + found_text(words));
  }
  if (first_value(config, {"bits", "w_bit"}).is_null()) fail_config(where, "bits: missing");
  GptqConfig result;
  result.scheme = {.container = std::string(format == kSecondFormat ? kGptqV2 : kGptq)};
  read_scheme(config, where, result.scheme);
  const Json dynamic = first_value(config, {"dynamic"});
  if (dynamic.is_null()) return result;
  if (!dynamic.is_object()) fail_config(where, "dynamic: expected an object" + found_text(dynamic));
  // GPTQModel takes rules in the order of the file, which a parsed object has lost.
  const OrderedJson ordered = parse_ordered_json(json, where);
  for (const auto& [key, change] : ordered.at("dynamic").items()) {
    const std::string place = "dynamic '" + key.substr(0, 100) + "'";
    const bool is_except = key.starts_with(kExcept);
    const std::string_view pattern =
        is_except || key.starts_with(kOnly) ? std::string_view(key).substr(kExcept.size()) : std::string_view(key);
    if (!change.is_object()) fail_config(where, place + ": expected an object" + found_text(change));
    try {
      result.rules.push_back({NamePattern::parse(pattern), !is_except, result.scheme});
    } catch (const std::invalid_argument& error) {
      fail_config(where, place + ": " + error.what());
    }
    if (!is_except) read_scheme(change, where + "': " + place, result.rules.back().scheme);
  }
  return result;
}

std::optional<PackScheme> GptqConfig::scheme_of(const std::string& module, std::string_view class_name,
                                                const FindTensor& find) const {
  if (class_name != "Linear") return std::nullopt;
  int64_t num_steps = 0;
  const auto rule = std::ranges::find_if(rules, [&](const Rule& known) {
    if (num_steps > kMaxSteps) {
      throw std::runtime_error("quantization_config: the regular expressions of dynamic take more than " +
                               std::to_string(kMaxSteps) + " steps for a layer: list the layers' names");
    }
    return known.pattern.matches(module, num_steps);
  });
  const bool is_excepted = rule != rules.end() && !rule->is_quantized;
  if (!has_quantized_tensor(find, module, kGptqWeightSuffix, is_excepted)) return std::nullopt;
  PackScheme result = rule != rules.end() ? rule->scheme : scheme;
  const std::string name = module + std::string(kGptqGroupsSuffix);
  const TensorView* const groups = find(name);
  if (groups == nullptr) {
    if (result.act_order == StoredActOrder::group && result.group_size != kPerChannel) {
      throw std::runtime_error("tensor '" + name +
                               "': missing; without it nobody knows the columns' groups, since quantization_config "
                               "says desc_act: true");
    }
    result.act_order = StoredActOrder::none;
  } else if (groups->shape.size() == 1 &&
             !moved_groups(find, groups->shape.front(), result.group_size, module).empty()) {
    result.act_order = StoredActOrder::group;
  }
  return result;
}

}  // namespace pare::runtime
