// Reads and writes the quantization_config of pare-sparse24: docs/formats.md.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/containers/pare_sparse24.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxGroupSize = int64_t{1} << 31;

OrderedJson weights_json(const PackScheme& scheme) {
  if (scheme.is_dense()) return nullptr;
  OrderedJson json;
  if (!scheme.is_integer()) json["code"] = scheme.code->name;
  json["bits"] = scheme.bits;
  json["group_size"] = scheme.group_size == kPerChannel ? OrderedJson() : OrderedJson(scheme.group_size);
  json["symmetric"] = scheme.symmetric;
  json["per_tensor"] = scheme.per_tensor;
  return json;
}

OrderedJson inputs_json(const InputFormat& input) {
  if (input.is_plain()) return nullptr;
  OrderedJson json;
  json["type"] = name_of(input.type);
  json["range"] = name_of(input.range);
  json["symmetric"] = input.symmetric;
  return json;
}

// --- reading ---

[[noreturn]] void fail(const std::string& where, const std::string& key, const std::string& what) {
  throw std::invalid_argument("'" + where + "': quantization_config" + (key.empty() ? "" : "." + key) + ": " + what);
}

std::string found(const Json& value) {
  return ", found " + json_text(value).substr(0, 100);
}

// Requires an object with exactly those keys. All of them are always written, and a new one could change what the
// others mean.
void require_keys(const Json& object, const std::set<std::string>& keys, const std::string& where,
                  const std::string& key) {
  if (!object.is_object()) fail(where, key, "expected an object" + found(object));
  for (const auto& [name, value] : object.items()) {
    if (!keys.contains(name)) fail(where, key, "unknown key '" + name.substr(0, 100) + "'");
  }
  for (const std::string& name : keys) {
    if (!object.contains(name)) fail(where, key, "expected the key '" + name + "'");
  }
}

bool read_bool(const Json& object, const char* name, const std::string& where, const std::string& key) {
  const Json& value = object.at(name);
  if (!value.is_boolean()) fail(where, key + "." + name, "expected true or false" + found(value));
  return value.get<bool>();
}

// Returns the enumeration's value with that name, but not `none`.
template <typename E>
E read_name(const Json& value, E none, const std::string& where, const std::string& key) {
  std::string known;
  for (const EnumName<E>& item : enum_names(E{})) {
    if (item.value == none) continue;
    if (value == item.name) return item.value;
    known += (known.empty() ? "\"" : ", \"") + std::string(item.name) + "\"";
  }
  fail(where, key, "expected one of " + known + found(value));
}

void read_weights(const Json& json, const std::string& where, const std::string& key, PackScheme& scheme) {
  if (json.is_null()) {
    scheme.code = nullptr;
    scheme.bits = kDenseBits;
    return;
  }
  std::set<std::string> keys = {"bits", "group_size", "symmetric", "per_tensor"};
  if (json.is_object() && json.contains("code")) {  // integers do not say it
    keys.insert("code");
    const Json& code = json.at("code");
    scheme.code = code.is_string() ? find_weight_code(code.get<std::string>()) : nullptr;
    if (scheme.code == nullptr) fail(where, key + ".code", "expected a known code of weights" + found(code));
  }
  require_keys(json, keys, where, key);
  const Json& bits = json.at("bits");
  const Json& group_size = json.at("group_size");
  if (!bits.is_number_unsigned() || bits.get<uint64_t>() > kDenseBits || !scheme.code->has_width(bits.get<int>())) {
    fail(where, key + ".bits", "expected " + widths_text(*scheme.code) + found(bits));
  }
  scheme.bits = bits.get<int>();
  if (!group_size.is_null()) {
    if (!group_size.is_number_unsigned() || group_size.get<uint64_t>() == 0 ||
        group_size.get<uint64_t>() > static_cast<uint64_t>(kMaxGroupSize)) {
      fail(where, key + ".group_size", "expected a positive size or null" + found(group_size));
    }
    scheme.group_size = group_size.get<int64_t>();
  }
  scheme.symmetric = read_bool(json, "symmetric", where, key);
  scheme.per_tensor = read_bool(json, "per_tensor", where, key);
}

PackScheme read_scheme(const Json& group, const std::string& where, const std::string& key) {
  require_keys(group, {"pattern", "weights", "inputs", "modules"}, where, key);
  PackScheme scheme;
  scheme.container = kPareSparse24;
  if (const Json& pattern = group.at("pattern"); !pattern.is_null()) {
    if (pattern != "2:4") fail(where, key + ".pattern", "expected \"2:4\" or null" + found(pattern));
    scheme.pattern = kTwoOfFour;
  }
  read_weights(group.at("weights"), where, key + ".weights", scheme);
  if (const Json& inputs = group.at("inputs"); !inputs.is_null()) {
    require_keys(inputs, {"type", "range", "symmetric"}, where, key + ".inputs");
    scheme.input.type = read_name(inputs.at("type"), InputType::plain, where, key + ".inputs.type");
    scheme.input.range = read_name(inputs.at("range"), InputRange::block, where, key + ".inputs.range");
    scheme.input.symmetric = read_bool(inputs, "symmetric", where, key + ".inputs");
  }
  if (const std::string problem = pare_sparse24_problem(scheme); !problem.empty()) fail(where, key, problem);
  return scheme;
}

std::vector<std::string> read_strings(const Json& value, const std::string& where, const std::string& key) {
  std::vector<std::string> strings;
  if (!value.is_array()) fail(where, key, "expected an array of strings" + found(value));
  for (const Json& element : value) {
    if (!element.is_string()) fail(where, key, "expected an array of strings" + found(value));
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

}  // namespace

std::string pare_sparse24_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  if (modules.empty()) throw std::invalid_argument("quantization_config: expected at least one module");
  std::set<std::string> names(ignore.begin(), ignore.end());
  std::vector<std::pair<PackScheme, std::vector<std::string>>> groups;
  for (const StoredModule& module : modules) {
    if (!names.insert(module.name).second) {
      throw std::invalid_argument("quantization_config: module '" + module.name +
                                  "' is listed twice, or is both stored here and ignored");
    }
    if (const std::string problem = pare_sparse24_problem(module.scheme); !problem.empty()) {
      throw std::invalid_argument("quantization_config: module '" + module.name + "': " + problem);
    }
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == module.scheme; });
    if (group == groups.end()) group = groups.insert(groups.end(), {module.scheme, {}});
    group->second.push_back(module.name);
  }
  OrderedJson config;
  config["quant_method"] = kPareSparse24;
  config["groups"] = OrderedJson::array();
  for (const auto& [scheme, names_of_group] : groups) {
    OrderedJson& group = config["groups"].emplace_back();
    group["pattern"] = scheme.pattern.is_dense() ? OrderedJson() : OrderedJson(pattern_name(scheme.pattern));
    group["weights"] = weights_json(scheme);
    group["inputs"] = inputs_json(scheme.input);
    group["modules"] = names_of_group;
  }
  config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
  return json_text(config, 2);
}

PareSparse24Config PareSparse24Config::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  require_keys(config, {"quant_method", "groups", "ignore"}, where, "");
  if (config.at("quant_method") != kPareSparse24) {
    fail(where, "quant_method", "expected \"" + std::string(kPareSparse24) + "\"" + found(config.at("quant_method")));
  }
  const Json& groups = config.at("groups");
  if (!groups.is_array() || groups.empty()) {
    fail(where, "groups", "expected an array with at least one group" + found(groups));
  }
  PareSparse24Config result;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string key = "groups[" + std::to_string(g) + "]";
    const PackScheme scheme = read_scheme(groups[g], where, key);
    for (std::string& module : read_strings(groups[g].at("modules"), where, key + ".modules")) {
      const auto [entry, is_new] = result.scheme_of_module_.emplace(std::move(module), scheme);
      if (!is_new) fail(where, key + ".modules", "'" + entry->first.substr(0, 200) + "' is named twice");
    }
  }
  for (const std::string& module : read_strings(config.at("ignore"), where, "ignore")) {
    if (result.scheme_of_module_.contains(module)) {
      fail(where, "ignore", "'" + module.substr(0, 200) + "' is a module of a group as well");
    }
  }
  return result;
}

std::optional<PackScheme> PareSparse24Config::scheme_of(const std::string& module, std::string_view,
                                                        const FindTensor&) const {
  const auto found = scheme_of_module_.find(module);
  return found == scheme_of_module_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace pare::runtime
