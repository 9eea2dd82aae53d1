#include "runtime/containers/bitsandbytes_nf4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/config_values.h"
#include "runtime/format/name_pattern.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCodesPerByte = 2;
constexpr std::array<int64_t, 7> kBlocks = {64, 128, 256, 512, 1024, 2048, 4096};

constexpr std::string_view kWeight = ".weight", kAbsmax = ".weight.absmax", kValues = ".weight.quant_map",
                           kNestedAbsmax = ".weight.nested_absmax", kNestedValues = ".weight.nested_quant_map",
                           kState = ".weight.quant_state.bitsandbytes__nf4";
constexpr std::array kSuffixes = {kWeight, kAbsmax, kValues, kNestedAbsmax, kNestedValues, kState};

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw std::runtime_error("tensor '" + name + "': " + what);
}

// Returns what is wrong with a scheme; empty: nothing. No other place decides this.
std::string scheme_problem(const PackScheme& scheme) {
  if (scheme.code != &kNf4Code) {
    return "it holds nf4 codes, found " +
           (scheme.is_dense() ? "dense weights" : code_name(scheme.code, scheme.bits) + ": use another container");
  }
  if (scheme.bits != kNf4Code.width()) return "expected 4 bits, found " + std::to_string(scheme.bits);
  if (!scheme.symmetric || scheme.per_tensor) return "nf4 codes have neither zeros nor one scale for a whole weight";
  if (std::find(kBlocks.begin(), kBlocks.end(), scheme.group_size) == kBlocks.end()) {
    return "expected groups of 64, 128, ..., 4096 inputs, found " + std::to_string(scheme.group_size);
  }
  if (scheme.act_order == StoredActOrder::group) return "it has no index of groups: use act_order static";
  if (!scheme.input.is_plain()) return "expected inputs that are not rounded, found " + input_format_name(scheme.input);
  return "";
}

std::string state_json(int64_t num_out, int64_t num_in, int64_t block) {
  nlohmann::ordered_json state;
  state["quant_type"] = kNf4Code.name;
  state["blocksize"] = block;
  // The type of the weight that the library makes of it: products of floats are exact in no other.
  state["dtype"] = "float32";
  state["shape"] = {num_out, num_in};
  return json_text(state);
}

// The tensors of a module; null: absent.
struct Parts {
  const TensorView *weight, *absmax, *values, *nested_absmax, *nested_values, *state;
  Parts(const FindTensor& find, const std::string& module) {
    const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
    weight = part(kWeight), absmax = part(kAbsmax), values = part(kValues), nested_absmax = part(kNestedAbsmax),
    nested_values = part(kNestedValues), state = part(kState);
  }
};

// The facts of a module's quant_state.
struct State {
  int64_t block = 0;
  bool is_nested = false;
  int64_t nested_block = 0;
  float nested_offset = 0.0f;
};

// Returns the JSON of a module's quant_state.
Json parse_state(const TensorView* tensor, const std::string& module) {
  const std::string name = module + std::string(kState);
  if (tensor == nullptr) fail(name, "missing; its weight.absmax says that the module is quantized to nf4");
  if (tensor->dtype != DType::U8) fail(name, "expected U8, found " + std::string(dtype_name(tensor->dtype)));
  Json json;
  try {
    json = parse_json({reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size()}, "quant_state");
  } catch (const BadJson& error) {
    fail(name, error.what());
  }
  if (!json.is_object()) fail(name, "expected a JSON object");
  return json;
}

int64_t read_block(const Json& state, const std::string& module) {
  const Json& block = value_or_null(state, "blocksize");
  if (block.is_number_unsigned() && block.get<uint64_t>() <= static_cast<uint64_t>(kBlocks.back()) &&
      std::find(kBlocks.begin(), kBlocks.end(), block.get<int64_t>()) != kBlocks.end()) {
    return block.get<int64_t>();
  }
  fail(module + std::string(kState), "blocksize: expected 64, 128, ..., 4096" + found_text(block));
}

State read_state(const TensorView* tensor, int64_t num_out, int64_t num_in, const std::string& module) {
  const std::string name = module + std::string(kState);
  const Json json = parse_state(tensor, module);
  const Json &type = value_or_null(json, "quant_type"), &shape = value_or_null(json, "shape"),
             &nested = value_or_null(json, "nested_blocksize"), &offset = value_or_null(json, "nested_offset");
  if (type != kNf4Code.name) fail(name, "quant_type: expected \"nf4\"" + found_text(type));
  if (shape != Json{num_out, num_in}) {
    fail(name, "shape: expected " + shape_text(std::vector{num_out, num_in}) + " of the model's config, found " +
                   json_text(shape).substr(0, 100));
  }
  State state{.block = read_block(json, module)};
  if (num_in % state.block != 0) {
    fail(name, "blocksize: blocks of " + std::to_string(state.block) + " run on from row to row of " +
                   std::to_string(num_in) + " inputs, which is not supported by this runtime");
  }
  if (nested.is_null()) return state;
  state.is_nested = true;
  if (!nested.is_number_unsigned() || nested.get<uint64_t>() == 0 || nested.get<uint64_t>() > uint64_t{1} << 31) {
    fail(name, "nested_blocksize: expected a positive size" + found_text(nested));
  }
  if (!offset.is_number()) fail(name, "nested_offset: expected a number" + found_text(offset));
  state.nested_block = nested.get<int64_t>();
  state.nested_offset = offset.get<float>();
  return state;
}

State check_parts(const Parts& parts, int64_t num_out, int64_t num_in, const std::string& module) {
  const State state = read_state(parts.state, num_out, num_in, module);
  const int64_t num_scales = num_out * num_in / state.block;
  require_tensor(parts.weight, module + std::string(kWeight), DType::U8, {num_out * num_in / kCodesPerByte, 1});
  require_tensor(parts.absmax, module + std::string(kAbsmax), state.is_nested ? DType::U8 : DType::F32, {num_scales});
  require_tensor(parts.values, module + std::string(kValues), DType::F32, {kTableValues});
  if (std::memcmp(parts.values->data.data(), kNf4Code.values.data(), kNf4Code.values.size_bytes()) != 0) {
    fail(module + std::string(kValues), "its values are not those of nf4");
  }
  if (!state.is_nested) return state;
  require_tensor(parts.nested_values, module + std::string(kNestedValues), DType::F32, {256});
  require_tensor(parts.nested_absmax, module + std::string(kNestedAbsmax), DType::F32,
                 {(num_scales + state.nested_block - 1) / state.nested_block});
  return state;
}

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(DType::F32, tensor.data, values);
  return values;
}

std::vector<float> scales_of(const Parts& parts, const State& state) {
  if (!state.is_nested) return floats_of(*parts.absmax);
  const std::vector<float> values = floats_of(*parts.nested_values), absmax = floats_of(*parts.nested_absmax);
  std::vector<float> scales;
  for (const uint8_t place : code_bytes(*parts.absmax)) {
    const size_t block = scales.size() / static_cast<size_t>(state.nested_block);
    const float scale = values[place] * absmax[block];
    scales.push_back(scale + state.nested_offset);
  }
  return scales;
}

// A block of zeros has the scale 0, to which 8 bits and an offset may come only near, from below too.
void clear_scales_of_zeros(QuantizedWeight& weight) {
  const uint8_t zero = weight.code->zero_code(weight.bits);
  const auto block = static_cast<size_t>(weight.group_size);
  for (size_t i = 0; i < weight.scales_OG.size(); ++i) {
    const auto* const codes = weight.codes_OI.data() + i * block;
    if (weight.scales_OG[i] < 0.0f && std::all_of(codes, codes + block, [&](auto code) { return code == zero; })) {
      weight.scales_OG[i] = 0.0f;
    }
  }
}

class Nf4Config final : public ContainerConfig {
 public:
  static std::unique_ptr<Nf4Config> parse(const std::string& json, const std::string& where) {
    const Json config = parse_config_text(json, where);
    if (!config.is_object()) fail_config(where, "expected a JSON object");
    const Json& type = value_or_null(config, "bnb_4bit_quant_type");
    if (type != kNf4Code.name) {
      fail_config(where, "bnb_4bit_quant_type: not supported by this runtime: expected \"nf4\"" + found_text(type));
    }
    auto result = std::make_unique<Nf4Config>();
    const Json& names = value_or_null(config, "llm_int8_skip_modules");
    if (!names.is_null() && !names.is_array()) {
      fail_config(where, "llm_int8_skip_modules: expected an array" + found_text(names));
    }
    for (const Json& name : names) {
      if (!name.is_string()) fail_config(where, "llm_int8_skip_modules: expected strings" + found_text(name));
      result->skipped_.insert(name.get<std::string>());
    }
    return result;
  }
  // Each module's own state says how large its blocks are.
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view,
                                      const FindTensor& find) const override {
    if (!has_quantized_tensor(find, module, kAbsmax, is_in_modules(module, skipped_))) return std::nullopt;
    const int64_t block = read_block(parse_state(find(module + std::string(kState)), module), module);
    PackScheme scheme{.code = &kNf4Code, .bits = kNf4Code.width(), .group_size = block};
    scheme.container = kBitsAndBytesNf4;
    return scheme;
  }

 private:
  std::set<std::string, std::less<>> skipped_;
};

class Nf4Container final : public ContainerFormat {
 public:
  std::string_view name() const override { return kBitsAndBytesNf4; }
  std::string_view method() const override { return kBitsAndBytes; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  std::span<const std::string_view> packages() const override { return {&kBitsAndBytes, 1}; }
  std::vector<std::string> unread_by(Engine engine, const PackScheme&) const override {
    if (engine == Engine::llama_cpp) return {"bitsandbytes is not read"};
    if (engine == Engine::transformers_experts) return {std::string(kExpertFormats)};
    if (engine == Engine::transformers_encoders) return {"bitsandbytes is not tried with encoders"};
    if (engine == Engine::vllm) return {"bitsandbytes is not read any more"};
    return {};
  }
  std::vector<std::string> read_only(Engine engine, const PackScheme&) const override {
    return only_with(packages(), engine);
  }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kBitsAndBytesNf4;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;  // not recorded
    wanted.layout = CodeLayout::packed;
    return wanted;
  }
  DType scale_dtype(DType) const override { return DType::F32; }

  void check(const FindTensor& find, const PackScheme&, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_parts(Parts(find, module), num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme&, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    const Parts parts(find, module);
    const State state = check_parts(parts, num_out, num_in, module);
    StoredLinear linear;
    QuantizedWeight& weight = linear.weight;
    weight.num_out = num_out;
    weight.num_in = num_in;
    weight.code = &kNf4Code;
    weight.bits = kNf4Code.width();
    weight.group_size = state.block;
    weight.scale_dtype = DType::F32;
    weight.codes_OI.reserve(static_cast<size_t>(num_out * num_in));
    for (const uint8_t byte : code_bytes(*parts.weight)) {
      weight.codes_OI.push_back(byte >> 4);
      weight.codes_OI.push_back(byte & 0xf);
    }
    weight.scales_OG = scales_of(parts, state);
    if (state.is_nested) clear_scales_of_zeros(weight);
    validate(weight, module);
    return linear;
  }
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    if (quant_method != method()) return false;
    const Json config = parse_config_text(json, "config.json");
    return config.is_object() && value_or_null(config, "load_in_4bit") == true;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return Nf4Config::parse(json, where);
  }

 private:
  std::string why_not(const PackScheme& scheme) const override { return scheme_problem(scheme); }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    for (const StoredModule& module : modules) {
      if (!module.is_linear) return "the container holds linears alone; '" + module.name + "' is an embedding";
    }
    return "";
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    const int64_t num_weights = num_out * num_in;
    return num_weights / kCodesPerByte + num_weights / scheme.group_size * 4 + kTableValues * 4 +
           static_cast<int64_t>(state_json(num_out, num_in, scheme.group_size).size());
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme&,
                                const std::string& module) const override {
    const QuantizedWeight& weight = linear.weight;
    std::vector<uint8_t> bytes(weight.codes_OI.size() / kCodesPerByte);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(weight.codes_OI[2 * i] << 4 | weight.codes_OI[2 * i + 1]);
    }
    const std::string state = state_json(weight.num_out, weight.num_in, weight.group_size);
    std::vector<OwnedTensor> tensors;
    tensors.push_back(
        make_tensor<uint8_t>(module + std::string(kWeight), DType::U8, {static_cast<int64_t>(bytes.size()), 1}, bytes));
    tensors.push_back(make_tensor<float>(module + std::string(kAbsmax), DType::F32,
                                         {static_cast<int64_t>(weight.scales_OG.size())}, weight.scales_OG));
    tensors.push_back(make_tensor<float>(module + std::string(kValues), DType::F32, {kTableValues}, kNf4Code.values));
    tensors.push_back(make_tensor<char>(module + std::string(kState), DType::U8, {static_cast<int64_t>(state.size())},
                                        std::span(state.data(), state.size())));
    return tensors;
  }
  std::string write_config(std::span<const StoredModule>, std::span<const std::string> ignore) const override {
    nlohmann::ordered_json config;
    config["quant_method"] = kBitsAndBytes;
    config["load_in_8bit"] = false;
    config["load_in_4bit"] = true;
    config["bnb_4bit_quant_type"] = kNf4Code.name;
    config["bnb_4bit_compute_dtype"] = "float32";
    config["bnb_4bit_use_double_quant"] = false;
    config["bnb_4bit_quant_storage"] = "uint8";
    config["llm_int8_skip_modules"] = nullptr;
    if (!ignore.empty()) config["llm_int8_skip_modules"] = std::vector<std::string>(ignore.begin(), ignore.end());
    return json_text(config, 2);
  }
};

}  // namespace

const ContainerFormat& bitsandbytes_nf4_container() {
  static const Nf4Container container;
  return container;
}

}  // namespace pare::runtime
