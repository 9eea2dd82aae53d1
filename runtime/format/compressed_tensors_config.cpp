// The quantization_config of config.json, both ways. Field list and rules: compressed-tensors 0.19,
// quantization/{quant_config,quant_scheme,quant_args}.py and utils/match.py.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>

#include "runtime/format/compressed_tensors.h"

namespace pare {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMethod = "compressed-tensors";
constexpr std::string_view kFormat = "pack-quantized";
// The release whose layout is written (dense 3-bit streams); readers use it for messages only.
constexpr std::string_view kVersion = "0.19.0";

const char* act_order_name(StoredActOrder order) {
  return order == StoredActOrder::group ? "group" : "weight";
}

OrderedJson weights_json(const PackScheme& scheme) {
  OrderedJson weights;
  weights["num_bits"] = scheme.bits;
  weights["type"] = "int";
  weights["symmetric"] = scheme.symmetric;
  weights["strategy"] = scheme.group_size == kPerChannel ? "channel" : "group";
  weights["group_size"] = scheme.group_size == kPerChannel ? OrderedJson() : OrderedJson(scheme.group_size);
  weights["block_structure"] = nullptr;
  weights["dynamic"] = false;
  weights["actorder"] =
      scheme.act_order == StoredActOrder::none ? OrderedJson() : OrderedJson(act_order_name(scheme.act_order));
  weights["observer"] = nullptr;
  weights["observer_kwargs"] = OrderedJson::object();
  return weights;
}

struct ConfigGroup {
  PackScheme scheme;
  std::vector<std::string> targets;
};

// Modules by scheme, in the order in which the schemes first occur.
std::vector<ConfigGroup> group_by_scheme(std::span<const StoredModule> modules) {
  const auto first_linear = std::find_if(modules.begin(), modules.end(), [](const auto& m) { return m.is_linear; });
  const bool one_linear_scheme = std::all_of(modules.begin(), modules.end(), [&](const StoredModule& module) {
    return !module.is_linear || module.scheme == first_linear->scheme;
  });
  std::vector<ConfigGroup> groups;
  if (one_linear_scheme && first_linear != modules.end()) groups.push_back({first_linear->scheme, {"Linear"}});
  for (const StoredModule& module : modules) {
    if (module.is_linear && one_linear_scheme) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.scheme == module.scheme; });
    if (group == groups.end()) group = groups.insert(groups.end(), {module.scheme, {}});
    group->targets.push_back(module.name);
  }
  return groups;
}

void check_stored_modules(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  if (modules.empty()) throw std::invalid_argument("quantization_config: expected at least one quantized module");
  std::set<std::string> names(ignore.begin(), ignore.end());
  for (const StoredModule& module : modules) {
    const int bits = module.scheme.bits;
    if (!names.insert(module.name).second) {
      throw std::invalid_argument("quantization_config: module '" + module.name +
                                  "' is listed twice, or is both quantized and ignored");
    }
    if ((bits != 2 && bits != 3 && bits != 4 && bits != 8) ||
        (module.scheme.group_size != kPerChannel && module.scheme.group_size <= 0)) {
      throw std::invalid_argument("quantization_config: module '" + module.name + "' has " + std::to_string(bits) +
                                  " bits in groups of " + std::to_string(module.scheme.group_size) +
                                  "; expected 2, 3, 4 or 8 bits and a positive group size");
    }
  }
}

// --- reading ---

[[noreturn]] void fail(const std::string& where, const std::string& key, const std::string& what) {
  throw std::invalid_argument("'" + where + "': quantization_config" + (key.empty() ? "" : "." + key) + ": " + what);
}

std::string found(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return ", found " + (text.size() <= 100 ? text : text.substr(0, 100) + "...");
}

[[noreturn]] void fail_unsupported(const std::string& where, const std::string& key, const Json& value,
                                   const std::string& expected) {
  fail(where, key, "not supported by this runtime: expected " + expected + found(value));
}

// Depth is limited because writing a deep value into a message recurses.
Json parse_json(const std::string& text, const std::string& where) {
  const auto check_depth = [&where](int depth, Json::parse_event_t, Json&) {
    if (depth > 32) fail(where, "", "nested too deeply");
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    fail(where, "", std::string("no valid JSON: ") + std::string(error.what()).substr(0, 300));
  }
}

// The value under `key`, with an absent key and null alike.
const Json& value_or_null(const Json& object, const char* key) {
  static const Json null;
  const auto entry = object.find(key);
  return entry == object.end() ? null : *entry;
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

int64_t read_group_size(const Json& weights, const std::string& where, const std::string& key) {
  const Json& group_size = value_or_null(weights, "group_size");
  const Json& strategy = value_or_null(weights, "strategy");
  const bool is_positive = group_size.is_number_unsigned() && group_size.get<uint64_t>() > 0 &&
                           group_size.get<uint64_t>() <= uint64_t{1} << 31;
  const bool is_channel = group_size.is_null() || (group_size.is_number_integer() && group_size.get<int64_t>() == -1);
  if (!is_positive && !is_channel)
    fail(where, key + ".group_size", "expected a positive size or null" + found(group_size));
  if (strategy == "group" || (strategy.is_null() && is_positive)) {
    if (!is_positive)
      fail(where, key + ".group_size", "the strategy \"group\" needs a positive size" + found(group_size));
    return group_size.get<int64_t>();
  }
  if (strategy == "channel" || (strategy.is_null() && !group_size.is_null())) {
    if (is_positive) fail(where, key + ".group_size", "the strategy \"channel\" has no group size" + found(group_size));
    return kPerChannel;
  }
  fail_unsupported(where, key + ".strategy", strategy, "\"group\" or \"channel\"");
}

StoredActOrder read_act_order(const Json& value, const std::string& where, const std::string& key) {
  if (value.is_null() || value == false) return StoredActOrder::none;
  if (value == "weight" || value == "static") return StoredActOrder::weight;
  if (value == "group" || value == "dynamic" || value == true) return StoredActOrder::group;
  fail_unsupported(where, key, value, "null, \"weight\" or \"group\"");
}

PackScheme read_weights(const Json& weights, const std::string& where, const std::string& key) {
  if (weights.is_null()) fail_unsupported(where, key, weights, "quantized weights");
  if (!weights.is_object()) fail(where, key, "expected an object" + found(weights));
  static const std::set<std::string> known = {
      "num_bits", "type",     "symmetric", "group_size",  "strategy", "block_structure",
      "dynamic",  "actorder", "observer",  "scale_dtype", "zp_dtype", "observer_kwargs"};
  for (const auto& [name, value] : weights.items()) {
    if (!known.contains(name)) fail(where, key, "unknown key '" + name.substr(0, 100) + "'");
  }
  const Json& type = value_or_null(weights, "type");
  const Json& bits = value_or_null(weights, "num_bits");
  const Json& symmetric = value_or_null(weights, "symmetric");
  const Json& dynamic = value_or_null(weights, "dynamic");
  const Json& blocks = value_or_null(weights, "block_structure");
  if (!type.is_null() && type != "int") fail_unsupported(where, key + ".type", type, "\"int\"");
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    fail_unsupported(where, key + ".num_bits", bits, "2, 3, 4 or 8");
  }
  if (!symmetric.is_null() && !symmetric.is_boolean()) {
    fail(where, key + ".symmetric", "expected true or false" + found(symmetric));
  }
  if (!dynamic.is_null() && dynamic != false) fail_unsupported(where, key + ".dynamic", dynamic, "false");
  if (!blocks.is_null()) fail_unsupported(where, key + ".block_structure", blocks, "null");
  PackScheme scheme;
  scheme.bits = bits.get<int>();
  scheme.group_size = read_group_size(weights, where, key);
  scheme.symmetric = symmetric.is_null() || symmetric.get<bool>();
  scheme.act_order = read_act_order(value_or_null(weights, "actorder"), where, key + ".actorder");
  return scheme;
}

ConfigGroup read_group(const Json& group, const std::string& where, const std::string& key) {
  if (group.is_array()) fail_unsupported(where, key, group, "a scheme written out, not a preset's name");
  if (!group.is_object()) fail(where, key, "expected an object" + found(group));
  static const std::set<std::string> known = {"targets", "weights", "input_activations", "output_activations",
                                              "format"};
  for (const auto& [name, value] : group.items()) {
    if (!known.contains(name)) fail(where, key, "unknown key '" + name.substr(0, 100) + "'");
  }
  for (const char* name : {"input_activations", "output_activations"}) {
    const Json& activations = value_or_null(group, name);
    if (!activations.is_null()) {
      fail_unsupported(where, key + "." + name, activations, "null (unquantized activations)");
    }
  }
  const Json& format = value_or_null(group, "format");
  if (!format.is_null() && format != kFormat) {
    fail_unsupported(where, key + ".format", format, "\"" + std::string(kFormat) + "\"");
  }
  ConfigGroup result;
  result.targets = read_strings(value_or_null(group, "targets"), where, key + ".targets");
  if (result.targets.empty()) fail(where, key + ".targets", "expected at least one target");
  result.scheme = read_weights(value_or_null(group, "weights"), where, key + ".weights");
  return result;
}

void check_top_level(const Json& config, const std::string& where) {
  const Json& method = value_or_null(config, "quant_method");
  if (method != kMethod) {
    fail_unsupported(where, "quant_method", method, "\"" + std::string(kMethod) + "\"");
  }
  const Json& format = value_or_null(config, "format");
  if (format != kFormat && format != "mixed-precision") {
    fail_unsupported(where, "format", format, "\"" + std::string(kFormat) + "\"");
  }
  const Json& status = value_or_null(config, "quantization_status");
  // "frozen" is what releases before 2025 wrote beside packed weights.
  if (!status.is_null() && status != "compressed" && status != "frozen") {
    fail_unsupported(where, "quantization_status", status, "\"compressed\"");
  }
  const Json& cache = value_or_null(config, "kv_cache_scheme");
  if (!cache.is_null()) fail_unsupported(where, "kv_cache_scheme", cache, "null (an unquantized KV cache)");
  const Json& transforms = value_or_null(config, "transform_config");
  if (!transforms.empty()) fail_unsupported(where, "transform_config", transforms, "none");
  const Json& sparsity = value_or_null(config, "sparsity_config");
  const bool is_dense = sparsity.is_object() && value_or_null(sparsity, "format") == "dense";
  if (!sparsity.empty() && !is_dense) fail_unsupported(where, "sparsity_config", sparsity, "none");
}

constexpr std::string_view kRegexPrefix = "re:";

// Python's re and ECMAScript agree on what such patterns use. What they spell differently is refused, never matched
// otherwise than the writer meant.
std::regex compile(const std::string& target, const std::string& where, const std::string& key) {
  const std::string pattern = target.substr(kRegexPrefix.size());
  if (pattern.size() > 2000) fail(where, key, "a regular expression of more than 2000 characters");
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    const char escaped = pattern[++i];
    const bool is_letter = (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
    if (is_letter && std::string_view("dDwWsSbBnrtfv").find(escaped) == std::string_view::npos) {
      fail(where, key,
           "the escape \\" + std::string(1, escaped) + " of '" + target + "' is not supported by this runtime");
    }
  }
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    fail(where, key, "the regular expression '" + target + "' is not supported by this runtime: " + error.what());
  }
}

// A list of names and regular expressions, as targets and ignore lists hold them.
class NamePatterns {
 public:
  void add(const std::string& target, const std::string& where, const std::string& key) {
    if (target.starts_with(kRegexPrefix)) {
      regexes_.insert_or_assign(target, compile(target, where, key));
    } else {
      names_.insert(target);
    }
  }

  // The target that the package prefers (match_targets): the exact name, then the alphabetically first regular
  // expression that matches from the start, then the class. nullptr: none.
  const std::string* match(const std::string& module, std::string_view class_name) const {
    if (const auto name = names_.find(module); name != names_.end()) return &*name;
    for (const auto& [target, regex] : regexes_) {
      if (std::regex_search(module, regex, std::regex_constants::match_continuous)) return &target;
    }
    const auto name = names_.find(std::string(class_name));
    return name == names_.end() ? nullptr : &*name;
  }

 private:
  std::set<std::string> names_;
  std::map<std::string, std::regex> regexes_;
};

}  // namespace

std::string quantization_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  check_stored_modules(modules, ignore);
  OrderedJson groups;
  for (const ConfigGroup& group : group_by_scheme(modules)) {
    OrderedJson entry;
    entry["targets"] = group.targets;
    entry["weights"] = weights_json(group.scheme);
    entry["input_activations"] = nullptr;
    entry["output_activations"] = nullptr;
    entry["format"] = kFormat;
    groups["group_" + std::to_string(groups.size())] = std::move(entry);
  }
  OrderedJson config;
  config["quant_method"] = kMethod;
  config["format"] = kFormat;
  config["quantization_status"] = "compressed";
  config["global_compression_ratio"] = nullptr;
  config["kv_cache_scheme"] = nullptr;
  config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
  config["config_groups"] = std::move(groups);
  config["version"] = kVersion;
  return config.dump(2);
}

struct QuantizationConfig::State {
  NamePatterns targets;
  NamePatterns ignored;
  std::map<std::string, PackScheme> scheme_of_target;
};

QuantizationConfig::QuantizationConfig() : state_(std::make_unique<State>()) {}
QuantizationConfig::QuantizationConfig(QuantizationConfig&&) noexcept = default;
QuantizationConfig& QuantizationConfig::operator=(QuantizationConfig&&) noexcept = default;
QuantizationConfig::~QuantizationConfig() = default;

QuantizationConfig QuantizationConfig::parse(const std::string& json, const std::string& where) {
  const Json config = parse_json(json, where);
  if (!config.is_object()) fail(where, "", "expected an object");
  check_top_level(config, where);
  QuantizationConfig result;
  const Json& ignore = value_or_null(config, "ignore");
  if (!ignore.is_null()) {
    for (const std::string& name : read_strings(ignore, where, "ignore")) {
      result.state_->ignored.add(name, where, "ignore");
    }
  }
  const Json& groups = value_or_null(config, "config_groups");
  if (!groups.is_object() || groups.empty()) {
    fail(where, "config_groups", "expected an object with at least one group" + found(groups));
  }
  // The package keeps the last group for a repeated target; groups stand in the order of the file there and in that of
  // their names here, so a repetition is refused rather than resolved.
  for (const auto& [name, group] : groups.items()) {
    const std::string key = "config_groups." + name.substr(0, 100);
    const ConfigGroup read = read_group(group, where, key);
    for (const std::string& target : read.targets) {
      const auto [entry, is_new] = result.state_->scheme_of_target.emplace(target, read.scheme);
      if (!is_new && entry->second != read.scheme) {
        fail(where, key + ".targets", "'" + target.substr(0, 200) + "' is the target of another group as well");
      }
      result.state_->targets.add(target, where, key + ".targets");
    }
  }
  return result;
}

std::optional<PackScheme> QuantizationConfig::scheme(const std::string& module, std::string_view class_name) const {
  if (state_->ignored.match(module, class_name) != nullptr) return std::nullopt;
  const std::string* target = state_->targets.match(module, class_name);
  if (target == nullptr) return std::nullopt;
  return state_->scheme_of_target.at(*target);
}

}  // namespace pare
