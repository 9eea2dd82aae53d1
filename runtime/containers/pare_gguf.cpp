#include "runtime/containers/pare_gguf.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/containers/config_values.h"
#include "runtime/format/block_bytes.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::array kSuffixes = {kGgufBlocksSuffix};

PackScheme scheme_of_code(const WeightCode& code) {
  return {.code = &code, .bits = code.width(), .group_size = code.block, .container = std::string(kPareGguf)};
}

class PareGgufConfig final : public ContainerConfig {
 public:
  PareGgufConfig(const Json& config, const std::string& where) {
    if (!config.is_object()) fail_config(where, "expected an object");
    for (const auto& [key, value] : config.items()) {
      if (key != "quant_method" && key != "types" && key != "ignore") fail_config(where, "unknown key '" + key + "'");
    }
    const Json& types = value_or_null(config, "types");
    if (!types.is_object() || types.empty()) {
      fail_config(where, "types: expected an object with the modules of each type" + found_text(types));
    }
    for (const auto& [name, modules] : types.items()) {
      const WeightCode* const code = find_weight_code(name);
      if (code == nullptr || !code->is_blocks()) {
        fail_config(where, "types: '" + name.substr(0, 100) + "' is no type of blocks that pare rounds to");
      }
      for (std::string& module : names_in(modules, "types." + name, where)) {
        const auto [entry, is_new] = scheme_of_module_.emplace(std::move(module), scheme_of_code(*code));
        if (!is_new) fail_config(where, "types: '" + entry->first.substr(0, 200) + "' is named twice");
      }
    }
    for (const std::string& module : names_in(value_or_null(config, "ignore"), "ignore", where)) {
      if (scheme_of_module_.contains(module)) {
        fail_config(where, "ignore: '" + module.substr(0, 200) + "' has a type as well");
      }
    }
  }

  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view, const FindTensor&) const override {
    const auto found = scheme_of_module_.find(module);
    return found == scheme_of_module_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static std::vector<std::string> names_in(const Json& value, const std::string& key, const std::string& where) {
    std::vector<std::string> names;
    const bool are_texts =
        value.is_array() && std::ranges::all_of(value, [](const Json& item) { return item.is_string(); });
    if (!are_texts) fail_config(where, key + ": expected an array of strings" + found_text(value));
    for (const Json& item : value) names.push_back(item.get<std::string>());
    return names;
  }

  std::map<std::string, PackScheme> scheme_of_module_;
};

class PareGgufContainer final : public ContainerFormat {
 public:
  std::string_view name() const override { return kPareGguf; }
  std::string_view method() const override { return kPareGguf; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }

  std::vector<std::string> unread_by(Engine engine, const PackScheme&) const override {
    if (engine != Engine::llama_cpp) return {"the container pare-gguf is pare's own"};
    return {"the container pare-gguf is pare's own: 'pare export' writes a .gguf file of it"};
  }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kPareGguf;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;  // not recorded
    return wanted;
  }
  DType scale_dtype(DType) const override { return DType::F16; }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    require_tensor(find(module + std::string(kGgufBlocksSuffix)), module + std::string(kGgufBlocksSuffix), DType::U8,
                   {num_out, block_row_bytes(*scheme.code, num_in)});
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    check(find, scheme, num_out, num_in, module);
    const auto* const bytes =
        reinterpret_cast<const uint8_t*>(find(module + std::string(kGgufBlocksSuffix))->data.data());
    StoredLinear linear;
    linear.weight.num_out = num_out;
    linear.weight.num_in = num_in;
    linear.weight.code = scheme.code;
    linear.weight.bits = scheme.bits;
    linear.weight.group_size = scheme.group_size;
    linear.weight.scale_dtype = DType::F16;
    linear.weight.codes_OI.assign(bytes, bytes + num_out * block_row_bytes(*scheme.code, num_in));
    validate(linear.weight, module);
    return linear;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return std::make_unique<PareGgufConfig>(parse_config_text(json, where), where);
  }

 private:
  std::string why_not(const PackScheme& scheme) const override {
    if (scheme.is_dense() || !scheme.code->is_blocks()) {
      return "pare-gguf holds blocks of GGUF types, which the pass gguf makes: use compressed-tensors";
    }
    PackScheme expected = scheme_of_code(*scheme.code);
    expected.layout = scheme.layout;
    if (scheme == expected && scheme.layout == CodeLayout::packed) return "";
    return "pare-gguf holds blocks of " + std::string(scheme.code->name) +
           " with their own groups, and inputs that are not rounded";
  }
  std::string why_not_shape(const PackScheme& scheme, int64_t, int64_t num_in) const override {
    const int64_t num_elements = block_elements(*scheme.code);
    if (num_in % num_elements == 0) return "";
    return "blocks of " + std::string(scheme.code->name) + " need a multiple of " + std::to_string(num_elements) +
           " inputs, found " + std::to_string(num_in);
  }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    for (const StoredModule& module : modules) {
      if (!module.is_linear) return "'" + module.name + "' is an embedding, which stays as it is until the export";
    }
    return "";
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    return num_out * block_row_bytes(*scheme.code, num_in);
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override {
    const QuantizedWeight& weight = linear.weight;
    std::vector<OwnedTensor> tensors;
    tensors.push_back(make_tensor<uint8_t>(module + std::string(kGgufBlocksSuffix), DType::U8,
                                           {weight.num_out, block_row_bytes(*scheme.code, weight.num_in)},
                                           weight.codes_OI));
    return tensors;
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    nlohmann::ordered_json types = nlohmann::ordered_json::object();
    for (const StoredModule& module : modules) types[std::string(module.scheme.code->name)].push_back(module.name);
    nlohmann::ordered_json config;
    config["quant_method"] = kPareGguf;
    config["types"] = std::move(types);
    config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
    return json_text(config, 2);
  }
};

}  // namespace

const ContainerFormat& pare_gguf_container() {
  static const PareGgufContainer container;
  return container;
}

}  // namespace pare::runtime
