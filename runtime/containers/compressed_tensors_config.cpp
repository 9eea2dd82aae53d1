// Reads and writes the quantization_config of config.json. Source of the fields and rules: compressed-tensors 0.19,
// quantization/{quant_config,quant_scheme,quant_args}.py and utils/match.py.
#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/config_values.h"
#include "runtime/containers/scale_blocks.h"
#include "runtime/format/name_pattern.h"
#include "runtime/format/stored_widths.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMixedFormat = "mixed-precision";
constexpr std::string_view kNaiveFormat = "naive-quantized";
// The release whose layout is written (dense 3-bit streams). Readers use it for messages only.
constexpr std::string_view kVersion = "0.19.0";

const char* act_order_name(StoredActOrder order) {
  return order == StoredActOrder::group ? "group" : "weight";
}

constexpr std::string_view kDenseFormat = "dense";
constexpr std::string_view kPackFormat = "pack-quantized";
constexpr std::string_view kBytesFormat = "int-quantized";
constexpr std::string_view kBlockStrategy = "block";  // of weights; inputs in blocks have "group"

// Takes schemes without a problem.
std::string_view format_name(const PackScheme& scheme) {
  if (scheme.is_dense()) return kDenseFormat;
  if (!scheme.is_integer()) return find_float_format(scheme.code)->format;
  return scheme.layout == CodeLayout::packed ? kPackFormat : kBytesFormat;
}

OrderedJson weights_json(const PackScheme& scheme) {
  if (scheme.is_dense()) return nullptr;
  const FloatFormat* const floats = find_float_format(scheme.code);
  OrderedJson weights;
  weights["num_bits"] = scheme.bits;
  weights["type"] = floats != nullptr ? "float" : "int";
  weights["symmetric"] = scheme.symmetric;
  weights["strategy"] = scheme.per_tensor                                ? "tensor"
                        : !scheme.block.is_none()                        ? kBlockStrategy
                        : scheme.group_size == kPerChannel               ? "channel"
                        : floats != nullptr && !floats->strategy.empty() ? floats->strategy
                                                                         : "group";
  const bool has_groups = scheme.group_size != kPerChannel && scheme.block.is_none();
  weights["group_size"] = has_groups ? OrderedJson(scheme.group_size) : OrderedJson();
  weights["block_structure"] = nullptr;
  if (!scheme.block.is_none()) weights["block_structure"] = {scheme.block.num_rows, scheme.block.num_columns};
  weights["dynamic"] = false;
  weights["actorder"] =
      scheme.act_order == StoredActOrder::none ? OrderedJson() : OrderedJson(act_order_name(scheme.act_order));
  if (floats != nullptr && !floats->scale_dtype.empty()) weights["scale_dtype"] = floats->scale_dtype;
  weights["observer"] = nullptr;
  weights["observer_kwargs"] = OrderedJson::object();
  return weights;
}

// Inputs in blocks have dynamic scales of blocks. The factor of all of them is stored.
constexpr std::string_view kLocal = "local";

// The package's strategy "token" is always dynamic; "tensor" is one scale for all tokens of a call, stored or not.
OrderedJson activations_json(const InputFormat& input) {
  if (input.is_plain()) return nullptr;
  const FloatFormat* const blocks = input.type == InputType::nvfp4 ? find_float_format(&kNvfp4Code) : nullptr;
  OrderedJson json;
  json["num_bits"] = blocks != nullptr ? kNvfp4Code.width() : 8;
  json["type"] = input.type == InputType::int8 ? "int" : "float";
  json["symmetric"] = input.symmetric;
  const bool has_fp8_blocks = input.range == InputRange::block;
  json["strategy"] = blocks != nullptr                  ? blocks->strategy
                     : has_fp8_blocks                   ? "group"
                     : input.range == InputRange::token ? "token"
                                                        : "tensor";
  json["group_size"] = blocks != nullptr ? OrderedJson(kNvfp4Block)
                       : has_fp8_blocks  ? OrderedJson(kFp8Block)
                                         : OrderedJson();
  json["block_structure"] = nullptr;
  json["dynamic"] = blocks != nullptr ? OrderedJson(kLocal) : OrderedJson(input.range != InputRange::static_);
  json["actorder"] = nullptr;
  if (blocks != nullptr) json["scale_dtype"] = blocks->scale_dtype;
  json["observer"] = nullptr;
  json["observer_kwargs"] = OrderedJson::object();
  return json;
}

struct ConfigGroup {
  PackScheme scheme;
  std::vector<std::string> targets;
};

// Groups modules by scheme, in the order in which the schemes first occur.
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
    if (!names.insert(module.name).second) {
      throw std::invalid_argument("quantization_config: module '" + module.name +
                                  "' is listed twice, or is both quantized and ignored");
    }
    const std::string problem = compressed_tensors_problem(module.scheme);
    if (!problem.empty()) {
      throw std::invalid_argument("quantization_config: module '" + module.name + "': " + problem);
    }
  }
}

// --- reading ---

[[noreturn]] void fail(const std::string& where, const std::string& key, const std::string& what) {
  throw std::invalid_argument("'" + where + "': quantization_config" + (key.empty() ? "" : "." + key) + ": " + what);
}

std::string found(const Json& value) {
  const std::string text = json_text(value);
  return ", found " + (text.size() <= 100 ? text : text.substr(0, 100) + "...");
}

[[noreturn]] void fail_unsupported(const std::string& where, const std::string& key, const Json& value,
                                   const std::string& expected) {
  fail(where, key, "not supported by this runtime: expected " + expected + found(value));
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

// Fills group_size and per_tensor. Without a strategy the package derives it from the group size.
void read_strategy(const Json& weights, const std::string& where, const std::string& key, PackScheme& scheme) {
  const Json& group_size = value_or_null(weights, "group_size");
  const Json& strategy = value_or_null(weights, "strategy");
  const bool is_packed = scheme.is_integer() && scheme.layout == CodeLayout::packed;
  const bool is_float = !scheme.is_integer();
  const bool is_positive = group_size.is_number_unsigned() && group_size.get<uint64_t>() > 0 &&
                           group_size.get<uint64_t>() <= uint64_t{1} << 31;
  const bool is_none = group_size.is_null() || (group_size.is_number_integer() && group_size.get<int64_t>() == -1);
  if (!is_positive && !is_none)
    fail(where, key + ".group_size", "expected a positive size or null" + found(group_size));
  std::string name = strategy.is_string() ? strategy.get<std::string>() : "";
  if (strategy.is_null()) name = is_positive ? "group" : group_size.is_null() ? "tensor" : "channel";
  if (const int64_t block = scheme.code->block; block != 0) {
    const FloatFormat& row = *find_float_format(scheme.code);
    if (name != row.strategy) {
      fail_unsupported(where, key + ".strategy", strategy, "\"" + std::string(row.strategy) + "\"");
    }
    if (group_size != block) fail_unsupported(where, key + ".group_size", group_size, std::to_string(block));
    const Json& scale_dtype = value_or_null(weights, "scale_dtype");
    if (!scale_dtype.is_null() && scale_dtype != row.scale_dtype) {
      fail_unsupported(where, key + ".scale_dtype", scale_dtype, "\"" + std::string(row.scale_dtype) + "\"");
    }
    scheme.group_size = block;
    return;
  }
  const Json& structure = value_or_null(weights, "block_structure");
  if (name == kBlockStrategy && is_float) {
    const auto is_side = [](const Json& side) {
      return side.is_number_unsigned() && side.get<uint64_t>() > 0 && side.get<uint64_t>() <= uint64_t{1} << 20;
    };
    if (!structure.is_array() || structure.size() != 2 || !is_side(structure[0]) || !is_side(structure[1])) {
      fail(where, key + ".block_structure", "the strategy \"block\" needs two positive sizes" + found(structure));
    }
    if (is_positive) {
      fail(where, key + ".group_size", "the strategy \"block\" has no group size" + found(group_size));
    }
    scheme.block = {structure[0].get<int64_t>(), structure[1].get<int64_t>()};
    scheme.group_size = scheme.block.num_columns;
    return;
  }
  if (!structure.is_null()) {
    fail_unsupported(where, key + ".block_structure", structure, "null without the strategy \"block\" of fp8 weights");
  }
  if (name == "group" && !is_float) {
    if (!is_positive)
      fail(where, key + ".group_size", "the strategy \"group\" needs a positive size" + found(group_size));
    scheme.group_size = group_size.get<int64_t>();
    return;
  }
  if (name != "channel" && (name != "tensor" || is_packed)) {
    fail_unsupported(where, key + ".strategy", strategy,
                     is_packed  ? "\"group\" or \"channel\""
                     : is_float ? "\"channel\", \"tensor\" or \"block\""
                                : "\"group\", \"channel\" or \"tensor\"");
  }
  if (is_positive) {
    fail(where, key + ".group_size", "the strategy \"" + name + "\" has no group size" + found(group_size));
  }
  scheme.group_size = kPerChannel;
  scheme.per_tensor = name == "tensor";
}

StoredActOrder read_act_order(const Json& value, const std::string& where, const std::string& key) {
  if (value.is_null() || value == false) return StoredActOrder::none;
  if (value == "weight" || value == "static") return StoredActOrder::weight;
  if (value == "group" || value == "dynamic" || value == true) return StoredActOrder::group;
  fail_unsupported(where, key, value, "null, \"weight\" or \"group\"");
}

// Accepts only the keys of the package's QuantizationArgs; the package refuses others too.
void check_argument_keys(const Json& arguments, const std::string& where, const std::string& key) {
  static const std::set<std::string> known = {
      "num_bits", "type",     "symmetric", "group_size",  "strategy", "block_structure",
      "dynamic",  "actorder", "observer",  "scale_dtype", "zp_dtype", "observer_kwargs"};
  if (!arguments.is_object()) fail(where, key, "expected an object" + found(arguments));
  for (const auto& [name, value] : arguments.items()) {
    if (!known.contains(name)) fail(where, key, "unknown key '" + name.substr(0, 100) + "'");
  }
}

bool read_bool(const Json& object, const char* name, bool fallback, const std::string& where, const std::string& key) {
  const Json& value = value_or_null(object, name);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) fail(where, key + "." + name, "expected true or false" + found(value));
  return value.get<bool>();
}

bool is_float_type(const Json& arguments, const std::string& where, const std::string& key) {
  const Json& type = value_or_null(arguments, "type");
  if (type.is_null() || type == "int") return false;
  if (type != "float") fail_unsupported(where, key + ".type", type, "\"int\" or \"float\"");
  return true;
}

// Returns the code and the layout of a format, in a scheme. `format` is the group's own, or the file's. naive-quantized
// is the package's name for the plain formats without input activations; their tensors are the same.
PackScheme read_format(const Json& format, bool is_float, const std::string& where, const std::string& key) {
  const PackScheme bytes{.layout = CodeLayout::bytes}, fp8{.code = &kFp8Code};
  if (format == kDenseFormat) return dense_scheme();
  if (format == kPackFormat) return {};
  if (format == kBytesFormat) return bytes;
  if (format == kNaiveFormat) return is_float ? fp8 : bytes;
  std::string known = "\"pack-quantized\", \"int-quantized\", ";
  for (const FloatFormat& row : float_formats()) {
    if (format == row.format) return {.code = row.code};
    known += "\"" + std::string(row.format) + "\", ";
  }
  fail_unsupported(where, key, format, known + "\"naive-quantized\" or \"dense\"");
}

void read_weights(const Json& weights, const std::string& where, const std::string& key, PackScheme& scheme) {
  const Json& bits = value_or_null(weights, "num_bits");
  const Json& dynamic = value_or_null(weights, "dynamic");
  const bool is_float = !scheme.is_integer();
  if (is_float_type(weights, where, key) != is_float) {
    fail_unsupported(where, key + ".type", value_or_null(weights, "type"),
                     std::string(is_float ? "\"float\"" : "\"int\"") + " for " + std::string(format_name(scheme)));
  }
  const bool is_stream = scheme.is_integer() && scheme.layout == CodeLayout::packed;
  const bool is_width = bits.is_number_unsigned() && bits.get<uint64_t>() <= kDenseBits &&
                        (is_stream ? is_stored_width(bits.get<int>()) : scheme.code->has_width(bits.get<int>()));
  if (!is_width) {
    fail_unsupported(where, key + ".num_bits", bits, is_stream ? stored_widths_text() : widths_text(*scheme.code));
  }
  if (!dynamic.is_null() && dynamic != false) fail_unsupported(where, key + ".dynamic", dynamic, "false");
  scheme.bits = bits.get<int>();
  read_strategy(weights, where, key, scheme);
  scheme.symmetric = read_bool(weights, "symmetric", true, where, key);
  scheme.act_order = read_act_order(value_or_null(weights, "actorder"), where, key + ".actorder");
}

// Reads input activations that are floats of 4 bits: those of nvfp4.
InputFormat read_nvfp4_activations(const Json& arguments, const std::string& where, const std::string& key) {
  const FloatFormat& blocks = *find_float_format(&kNvfp4Code);
  const auto require = [&](const char* name, const OrderedJson& expected, bool may_lack) {
    const Json& value = value_or_null(arguments, name);
    if (value == Json(expected) || (value.is_null() && may_lack)) return;
    fail_unsupported(where, key + "." + name, value, json_text(Json(expected)) + " with 4 bits");
  };
  require("strategy", blocks.strategy, /*may_lack=*/false);
  require("group_size", kNvfp4Block, /*may_lack=*/false);
  require("dynamic", kLocal, /*may_lack=*/false);
  require("symmetric", true, /*may_lack=*/true);
  require("scale_dtype", blocks.scale_dtype, /*may_lack=*/true);
  require("block_structure", nullptr, /*may_lack=*/true);
  require("actorder", nullptr, /*may_lack=*/true);
  return {.type = InputType::nvfp4};
}

InputFormat read_activations(const Json& arguments, const std::string& where, const std::string& key) {
  if (arguments.is_null()) return {};
  check_argument_keys(arguments, where, key);
  if (value_or_null(arguments, "strategy") == "group" &&
      value_or_null(arguments, "scale_dtype") == find_float_format(&kMxfp4Code)->scale_dtype) {
    fail_unsupported(where, key, arguments,
                     "inputs that are not rounded to mxfp4 or mxfp8, as with the preset MXFP4A16");
  }
  const Json& bits = value_or_null(arguments, "num_bits");
  const Json& strategy = value_or_null(arguments, "strategy");
  const bool is_float = is_float_type(arguments, where, key);
  if (is_float && bits == kNvfp4Code.width()) return read_nvfp4_activations(arguments, where, key);
  if (!bits.is_null() && bits != 8) {
    fail_unsupported(where, key + ".num_bits", bits, "8, or 4 with the type \"float\"");
  }
  const bool has_blocks = is_float && strategy == "group";
  for (const char* name : {"group_size", "block_structure", "actorder"}) {
    const Json& value = value_or_null(arguments, name);
    if (has_blocks && name == std::string_view("group_size")) {
      if (value != kFp8Block) fail_unsupported(where, key + ".group_size", value, std::to_string(kFp8Block));
    } else if (!value.is_null()) {
      fail_unsupported(where, key + "." + name, value, "null");
    }
  }
  if (!strategy.is_null() && strategy != "token" && strategy != "tensor" && !has_blocks) {
    fail_unsupported(where, key + ".strategy", strategy,
                     is_float ? "\"token\", \"tensor\" or \"group\"" : "\"token\" or \"tensor\"");
  }
  const bool is_dynamic = read_bool(arguments, "dynamic", false, where, key);
  if (has_blocks && !is_dynamic) {
    fail_unsupported(where, key + ".dynamic", value_or_null(arguments, "dynamic"), "true: a scale for each block");
  }
  if (strategy == "token" && !is_dynamic) {
    fail_unsupported(where, key + ".dynamic", value_or_null(arguments, "dynamic"), "true: a scale for each token");
  }
  InputFormat input;
  input.type = is_float ? InputType::fp8 : InputType::int8;
  input.range = has_blocks            ? InputRange::block
                : strategy == "token" ? InputRange::token
                : is_dynamic          ? InputRange::tensor
                                      : InputRange::static_;
  input.symmetric = read_bool(arguments, "symmetric", true, where, key);
  return input;
}

ConfigGroup read_group(const Json& group, const Json& file_format, const std::string& where, const std::string& key) {
  if (group.is_array()) fail_unsupported(where, key, group, "a scheme written out, not a preset's name");
  if (!group.is_object()) fail(where, key, "expected an object" + found(group));
  static const std::set<std::string> known = {"targets", "weights", "input_activations", "output_activations",
                                              "format"};
  for (const auto& [name, value] : group.items()) {
    if (!known.contains(name)) fail(where, key, "unknown key '" + name.substr(0, 100) + "'");
  }
  const Json& outputs = value_or_null(group, "output_activations");
  if (!outputs.is_null()) {
    fail_unsupported(where, key + ".output_activations", outputs, "null (unquantized activations)");
  }
  ConfigGroup result;
  result.targets = read_strings(value_or_null(group, "targets"), where, key + ".targets");
  if (result.targets.empty()) fail(where, key + ".targets", "expected at least one target");
  const Json& weights = value_or_null(group, "weights");
  const Json& own_format = value_or_null(group, "format");
  if (!weights.is_null()) check_argument_keys(weights, where, key + ".weights");
  const bool is_float = !weights.is_null() && is_float_type(weights, where, key + ".weights");
  result.scheme = own_format.is_null() ? read_format(file_format, is_float, where, "format")
                                       : read_format(own_format, is_float, where, key + ".format");
  if (!own_format.is_null() && file_format != kMixedFormat && own_format != file_format) {
    fail_unsupported(where, "format", file_format,
                     json_text(own_format) + ", as " + key + " says, or \"mixed-precision\"");
  }
  // Groups whose inputs alone are quantized have the format "dense", and no others have it.
  if (weights.is_null() != result.scheme.is_dense()) {
    fail_unsupported(
        where, key + ".weights", weights,
        weights.is_null() ? "quantized weights, or the format \"dense\"" : "null with the format \"dense\"");
  }
  if (!weights.is_null()) read_weights(weights, where, key + ".weights", result.scheme);
  result.scheme.input = read_activations(value_or_null(group, "input_activations"), where, key + ".input_activations");
  PackScheme as_read = result.scheme;
  if (as_read.is_integer()) as_read.bits = multiplied_width(as_read.bits);
  const std::string problem = compressed_tensors_problem(as_read);
  if (!problem.empty()) fail(where, key, "not supported by this runtime: " + problem);
  return result;
}

// The scales are those of a cache with 8 bits. It is kept as it is here, which unrounded_cache_note says.
void check_cache(const Json& cache, const std::string& where) {
  if (cache.is_null()) return;
  check_argument_keys(cache, where, "kv_cache_scheme");
  const Json& bits = value_or_null(cache, "num_bits");
  if (bits != 8) fail_unsupported(where, "kv_cache_scheme.num_bits", bits, "8, or no kv_cache_scheme");
}

// Rotations of weights, as SpinQuant's R1 and R2, stand in the weights that the file holds. The others are those of
// inputs, queries, keys and outputs, which a model makes as it runs.
void check_transforms(const Json& transforms, const std::string& where) {
  if (transforms.empty()) return;
  const std::string all = "transform_config.config_groups";
  const Json& groups = value_or_null(transforms, "config_groups");
  if (!groups.is_object()) fail(where, all, "expected an object" + found(groups));
  for (const auto& [name, group] : groups.items()) {
    const std::string key = all + "." + name.substr(0, 100) + ".apply";
    const Json& places = value_or_null(group, "apply");
    if (!places.is_array()) fail(where, key, "expected an array of objects" + found(places));
    for (const Json& place : places) {
      const Json& location = value_or_null(place, "location");
      if (location == "weight_input" || location == "weight_output") continue;
      fail_unsupported(where, key + ".location", location,
                       "\"weight_input\" or \"weight_output\": rotations that are multiplied into the weights");
    }
  }
}

void check_top_level(const Json& config, const std::string& where) {
  const Json& method = value_or_null(config, "quant_method");
  if (method != kCompressedTensors) {
    fail_unsupported(where, "quant_method", method, "\"" + std::string(kCompressedTensors) + "\"");
  }
  const Json& format = value_or_null(config, "format");
  if (format != kMixedFormat) read_format(format, /*is_float=*/false, where, "format");
  const Json& status = value_or_null(config, "quantization_status");
  // Releases before 2025 wrote "frozen" beside packed weights.
  if (!status.is_null() && status != "compressed" && status != "frozen") {
    fail_unsupported(where, "quantization_status", status, "\"compressed\"");
  }
  check_cache(value_or_null(config, "kv_cache_scheme"), where);
  check_transforms(value_or_null(config, "transform_config"), where);
  const Json& sparsity = value_or_null(config, "sparsity_config");
  const bool is_dense = sparsity.is_object() && value_or_null(sparsity, "format") == "dense";
  if (!sparsity.empty() && !is_dense) fail_unsupported(where, "sparsity_config", sparsity, "none");
}

constexpr std::string_view kRegexPrefix = "re:";
constexpr size_t kMaxStates = 100'000;  // in all expressions of a list: bounds the time to look up one name

NamePattern compile(const std::string& target, const std::string& where, const std::string& key) {
  try {
    return NamePattern::parse(std::string_view(target).substr(kRegexPrefix.size()));
  } catch (const std::invalid_argument& error) {
    fail(where, key, "'" + target.substr(0, 200) + "': " + error.what());
  }
}

// A list of names and regular expressions, as in targets and ignore lists.
class NamePatterns {
 public:
  void add(const std::string& target, const std::string& where, const std::string& key) {
    if (target.starts_with(kRegexPrefix)) {
      NamePattern pattern = compile(target, where, key);
      num_states_ += pattern.num_states();
      if (num_states_ > kMaxStates) fail(where, key, "too many or too long regular expressions");
      patterns_.insert_or_assign(target, std::move(pattern));
    } else {
      names_.insert(target);
    }
  }

  // Returns the target that the package prefers (match_targets): the exact name, then the alphabetically first regular
  // expression that matches from the start, then the class. nullptr: none.
  // num_steps grows by the work.
  const std::string* match(const std::string& module, std::string_view class_name, int64_t& num_steps) const {
    if (const auto name = names_.find(module); name != names_.end()) return &*name;
    for (const auto& [target, pattern] : patterns_) {
      if (pattern.matches(module, num_steps)) return &target;
    }
    const auto name = names_.find(std::string(class_name));
    return name == names_.end() ? nullptr : &*name;
  }

 private:
  std::set<std::string> names_;
  std::map<std::string, NamePattern> patterns_;
  size_t num_states_ = 0;
};

}  // namespace

std::string quantization_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  check_stored_modules(modules, ignore);
  OrderedJson groups;
  std::set<std::string_view> formats;
  // Groups of blocks follow from each layer's width, and the configuration does not say them.
  std::vector<StoredModule> stated(modules.begin(), modules.end());
  for (StoredModule& module : stated) {
    if (!module.scheme.block.is_none()) module.scheme.group_size = module.scheme.block.num_columns;
  }
  for (const ConfigGroup& group : group_by_scheme(stated)) {
    OrderedJson entry;
    entry["targets"] = group.targets;
    entry["weights"] = weights_json(group.scheme);
    entry["input_activations"] = activations_json(group.scheme.input);
    entry["output_activations"] = nullptr;
    entry["format"] = format_name(group.scheme);
    formats.insert(format_name(group.scheme));
    groups["group_" + std::to_string(groups.size())] = std::move(entry);
  }
  OrderedJson config;
  config["quant_method"] = kCompressedTensors;
  config["format"] = formats.size() == 1 ? *formats.begin() : kMixedFormat;
  config["quantization_status"] = "compressed";
  config["global_compression_ratio"] = nullptr;
  config["kv_cache_scheme"] = nullptr;
  config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
  config["config_groups"] = std::move(groups);
  config["version"] = kVersion;
  return json_text(config, 2);
}

std::string unrounded_cache_note(const std::string& config_json) {
  const Json config = parse_json(config_json, "config.json");
  if (value_or_null(value_or_null(config, "quantization_config"), "kv_cache_scheme").is_null()) return "";
  return "keys and values are not rounded to 8 bits, as its kv_cache_scheme has it; eval --kv-bits 8 rounds them to "
         "int8";
}

bool is_of_rounded_cache(std::string_view tensor) {
  const std::string_view part = tensor.substr(tensor.rfind('.') + 1);
  const bool is_of_attention = part.starts_with("q_") || part.starts_with("k_") || part.starts_with("v_");
  return is_of_attention && (part.substr(2) == "scale" || part.substr(2) == "zero_point");
}

// Returns whether the module's weight is a dense one, with no scale beside it.
bool is_stored_dense(const FindTensor& find, const std::string& module) {
  const TensorView* const weight = find(module + std::string(kPlainSuffix));
  return weight != nullptr && is_float_dtype(weight->dtype) && find(module + std::string(kScaleSuffix)) == nullptr &&
         find(module + std::string(kPackedSuffix)) == nullptr;
}

struct QuantizationConfig::State {
  std::string where;
  bool is_of_auto_round = false;  // its lists of ignored modules may lack the head
  int64_t max_steps = 0;
  NamePatterns targets;
  NamePatterns ignored;
  std::map<std::string, PackScheme> scheme_of_target;

  // The schemes of the modules that were asked about, by class and name.
  std::mutex mutex;
  std::map<std::string, std::optional<PackScheme>> found;
  int64_t num_steps = 0;
};

QuantizationConfig::QuantizationConfig() : state_(std::make_unique<State>()) {}
QuantizationConfig::QuantizationConfig(QuantizationConfig&&) noexcept = default;
QuantizationConfig& QuantizationConfig::operator=(QuantizationConfig&&) noexcept = default;
QuantizationConfig::~QuantizationConfig() = default;

QuantizationConfig QuantizationConfig::parse(const std::string& json, const std::string& where, int64_t max_steps) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail(where, "", "expected an object");
  check_top_level(config, where);
  QuantizationConfig result;
  result.state_->where = where;
  result.state_->is_of_auto_round = value_or_null(config, "provider") == "auto-round";
  result.state_->max_steps = max_steps;
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
  // For a repeated target the package keeps the last group. Its groups stand in the order of the file; here they stand
  // in the order of their names. So a repetition is refused rather than resolved.
  for (const auto& [name, group] : groups.items()) {
    const std::string key = "config_groups." + name.substr(0, 100);
    const ConfigGroup read = read_group(group, value_or_null(config, "format"), where, key);
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
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const std::string key = std::string(class_name) + " " + module;
  if (const auto known = state.found.find(key); known != state.found.end()) return known->second;
  const bool is_ignored = state.ignored.match(module, class_name, state.num_steps) != nullptr;
  const std::string* target = is_ignored ? nullptr : state.targets.match(module, class_name, state.num_steps);
  if (state.num_steps > state.max_steps) {
    fail(state.where, "",
         "the regular expressions of targets and ignore take more than " + std::to_string(state.max_steps) +
             " steps for the model's layers: list their names");
  }
  std::optional<PackScheme>& scheme = state.found[key];
  if (target != nullptr) scheme = state.scheme_of_target.at(*target);
  return scheme;
}

std::optional<PackScheme> QuantizationConfig::scheme_of(const std::string& module, std::string_view class_name,
                                                        const FindTensor& find) const {
  std::optional<PackScheme> stated = scheme(module, class_name);
  if (stated && state_->is_of_auto_round && is_stored_dense(find, module)) return std::nullopt;
  if (stated && !stated->block.is_none()) return scheme_with_block(*stated, stated->block, find, module, kPlainSuffix);
  return stated;
}

}  // namespace pare::runtime
