#include "runtime/containers/bitsandbytes_int8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/config_values.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/name_pattern.h"
#include "runtime/format/value_limits.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int kBits = 8;
constexpr int kOffset = 1 << (kBits - 1);
constexpr float kLargestCode = 127.0f;

constexpr std::array kSuffixes = {kInt8WeightSuffix, kInt8AbsmaxSuffix, kInt8FormatSuffix};
constexpr const char* kAdvice = "; write compressed-tensors' int-quantized instead";
constexpr const char* kAdviceForFewBits = "; write compressed-tensors' pack-quantized instead";

[[noreturn]] void refuse(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': bitsandbytes int8 cannot hold it: " + what + kAdvice);
}

// Returns what the container cannot hold of a weight; empty: nothing. No other place decides this.
std::string weight_problem(const PackScheme& scheme) {
  if (scheme.is_dense()) return "its weights are dense";
  if (!scheme.is_integer()) return "its codes are " + std::string(scheme.code->name);
  if (scheme.bits != kBits) return "expected 8 bits, found " + std::to_string(scheme.bits);
  if (!scheme.symmetric) return "its codes have zeros";
  if (scheme.group_size != kPerChannel || scheme.act_order == StoredActOrder::group) {
    return "its scales belong to groups";
  }
  if (scheme.per_tensor) return "it has one scale for the whole tensor";
  return "";
}

// Returns the float32 whose 127th part is the scale; nullopt: there is none.
// Multiplying and dividing by 127 each err by at most half a unit in the last place. Near a power of two that is one
// unit of the other number. So the answer, if there is one, is the product or a neighbour of it.
std::optional<float> absmax_of(float scale) {
  const float product = scale * kLargestCode;
  float best = 0.0f;
  int most_zeros = -1;
  for (const float candidate :
       {product, std::nextafter(product, 0.0f), std::nextafter(product, std::numeric_limits<float>::infinity()),
        std::nextafter(std::nextafter(product, 0.0f), 0.0f)}) {
    if (!std::isfinite(candidate) || candidate / kLargestCode != scale) continue;
    const int num_zeros = std::countr_zero(std::bit_cast<uint32_t>(candidate));
    if (num_zeros > most_zeros) {
      best = candidate;
      most_zeros = num_zeros;
    }
  }
  return most_zeros < 0 ? std::nullopt : std::optional(best);
}

// Returns what the container cannot hold of the scales; empty: nothing.
std::string scale_problem(const QuantizedWeight& weight) {
  for (size_t row = 0; row < weight.scales_OG.size(); ++row) {
    const float scale = weight.scales_OG[row];
    if (scale < 0.0f) return "the scale of row " + std::to_string(row) + " is negative, and its absmax is none";
    if (!absmax_of(scale)) {
      return "the scale " + std::to_string(scale) + " of row " + std::to_string(row) +
             " is not a float32 divided by 127; round scales to 16 bits, or take them as absmax / 127";
    }
  }
  return "";
}

// Makes the tensors of a weight that the container can hold.
std::vector<OwnedTensor> tensors_of(const QuantizedWeight& weight, const std::string& module) {
  if (const std::string problem = scale_problem(weight); !problem.empty()) refuse(module, problem);
  const std::vector<uint8_t> codes_OI = shift_codes(weight.codes_OI, -kOffset);
  std::vector<float> absmax_O;
  for (const float scale : weight.scales_OG) absmax_O.push_back(*absmax_of(scale));
  const uint8_t row_format = 0;
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint8_t>(module + std::string(kInt8WeightSuffix), DType::I8,
                                         {weight.num_out, weight.num_in}, codes_OI));
  tensors.push_back(
      make_tensor<float>(module + std::string(kInt8AbsmaxSuffix), DType::F32, {weight.num_out}, absmax_O));
  tensors.push_back(make_tensor<uint8_t>(module + std::string(kInt8FormatSuffix), DType::U8, {}, {&row_format, 1}));
  return tensors;
}

}  // namespace

std::vector<OwnedTensor> pack_bitsandbytes_int8(const QuantizedWeight& weight, const std::string& module) {
  validate(weight, module);
  PackScheme scheme{.bits = weight.bits, .group_size = weight.group_size, .symmetric = weight.symmetric};
  scheme.code = weight.code;
  if (!weight.group_of_I.empty()) scheme.act_order = StoredActOrder::group;
  if (const std::string problem = weight_problem(scheme); !problem.empty()) refuse(module, problem);
  return tensors_of(weight, module);
}

void check_int8_tensors(const Int8Tensors& tensors, int64_t num_out, int64_t num_in, const std::string& module) {
  require_tensor(tensors.weight, module + std::string(kInt8WeightSuffix), DType::I8, {num_out, num_in});
  require_tensor(tensors.absmax, module + std::string(kInt8AbsmaxSuffix), DType::F32, {num_out});
  if (tensors.format == nullptr) return;
  const std::string name = module + std::string(kInt8FormatSuffix);
  const auto format = static_cast<int>(require_tensor(tensors.format, name, DType::U8, {}).data[0]);
  if (format != 0) {
    throw std::runtime_error("tensor '" + name + "': expected 0 (rows), found " + std::to_string(format) +
                             ", a layout of early GPU kernels: save the checkpoint again with a newer release");
  }
}

QuantizedWeight unpack_bitsandbytes_int8(const Int8Tensors& tensors, int64_t num_out, int64_t num_in,
                                         const std::string& module) {
  check_int8_tensors(tensors, num_out, num_in, module);
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = kBits;
  weight.scale_dtype = DType::F32;
  weight.codes_OI = shift_codes(code_bytes(*tensors.weight), kOffset);
  weight.scales_OG.resize(static_cast<size_t>(num_out));
  convert_to_float(DType::F32, tensors.absmax->data, weight.scales_OG);
  require_magnitudes(weight.scales_OG, module, kInt8AbsmaxSuffix);
  for (float& scale : weight.scales_OG) scale /= kLargestCode;
  validate(weight, module);
  return weight;
}

std::string bitsandbytes_config_json(float threshold, std::span<const std::string> skipped) {
  if (!std::isfinite(threshold) || threshold < 0.0f) {
    throw std::invalid_argument("bitsandbytes quantization_config: expected a threshold of at least 0, found " +
                                std::to_string(threshold));
  }
  nlohmann::ordered_json config;
  config["quant_method"] = kBitsAndBytes;
  config["load_in_8bit"] = true;
  config["load_in_4bit"] = false;
  config["llm_int8_threshold"] = threshold;
  config["llm_int8_skip_modules"] = nullptr;
  if (!skipped.empty()) config["llm_int8_skip_modules"] = std::vector<std::string>(skipped.begin(), skipped.end());
  config["llm_int8_enable_fp32_cpu_offload"] = false;
  config["llm_int8_has_fp16_weight"] = false;
  return json_text(config, 2);
}

BitsAndBytesConfig BitsAndBytesConfig::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  const Json& method = value_or_null(config, "quant_method");
  if (method != "bitsandbytes") fail_config(where, "quant_method: expected \"bitsandbytes\"" + found_text(method));
  if (value_or_null(config, "load_in_8bit") != true) {
    fail_config(where, "load_in_8bit: not supported by this runtime: expected true (LLM.int8), or load_in_4bit" +
                           found_text(value_or_null(config, "load_in_8bit")));
  }
  if (value_or_null(config, "load_in_4bit") == true) {
    fail_config(where, "load_in_4bit: not supported by this runtime: expected false, found true");
  }
  const Json& threshold = value_or_null(config, "llm_int8_threshold");
  // A file that does not state the threshold means the library's default, 6.0.
  const double value = threshold.is_null() ? 6.0 : threshold.is_number() ? threshold.get<double>() : -1.0;
  if (!(value >= 0.0) || value > 1e30) {
    fail_config(where, "llm_int8_threshold: expected a number of at least 0" + found_text(threshold));
  }
  BitsAndBytesConfig result;
  result.scheme = {.bits = kBits, .layout = CodeLayout::bytes, .container = std::string(kBitsAndBytes)};
  result.scheme.input = {.type = InputType::int8,
                         .outliers = value > 0.0 ? OutlierRule::absolute : OutlierRule::columns,
                         .outlier_threshold = static_cast<float>(value)};
  const Json& names = value_or_null(config, "llm_int8_skip_modules");
  if (!names.is_null() && !names.is_array())
    fail_config(where, "llm_int8_skip_modules: expected an array" + found_text(names));
  for (const Json& name : names) {
    if (!name.is_string()) fail_config(where, "llm_int8_skip_modules: expected strings" + found_text(name));
    result.skipped.insert(name.get<std::string>());
  }
  return result;
}

bool BitsAndBytesConfig::is_skipped(std::string_view module) const {
  return is_in_modules(module, skipped);
}

std::optional<PackScheme> BitsAndBytesConfig::scheme_of(const std::string& module, std::string_view,
                                                        const FindTensor& find) const {
  if (!has_quantized_tensor(find, module, kInt8AbsmaxSuffix, is_skipped(module))) return std::nullopt;
  return scheme;
}

// --- the row of the table ---

namespace {

class BitsAndBytesContainer final : public ContainerFormat, public ValueLimits {
 public:
  std::string_view name() const override { return kBitsAndBytes; }
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
    return only_with(packages(), engine);  // transformers 5.17, quantizer_bnb_8bit.py
  }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kBitsAndBytes;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;  // not recorded
    if (wanted.is_integer()) wanted.layout = CodeLayout::bytes;
    return wanted;
  }
  DType scale_dtype(DType) const override { return DType::F32; }
  // A threshold of 0 keeps no column, as an empty list does.
  Acceptance holds_all(const PackScheme& scheme) const override {
    if (scheme.input.outliers != OutlierRule::columns) return {};
    return {
        "bitsandbytes finds the columns that it keeps by one absolute threshold, found columns known beforehand; "
        "pare-int8 holds them"};
  }
  Acceptance holds(const StoredLinear& linear, const PackScheme& scheme) const override {
    if (!linear.input.outlier_columns.empty()) return holds_all(scheme);
    if (const std::string problem = scale_problem(linear.weight); !problem.empty()) {
      return {"bitsandbytes int8 cannot hold it: " + problem + kAdvice};
    }
    return {};
  }

  void check(const FindTensor& find, const PackScheme&, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_int8_tensors(parts_of(find, module), num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    return {.weight = unpack_bitsandbytes_int8(parts_of(find, module), num_out, num_in, module), .input = scheme.input};
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return std::make_unique<BitsAndBytesConfig>(BitsAndBytesConfig::parse(json, where));
  }

 private:
  static Int8Tensors parts_of(const FindTensor& find, const std::string& module) {
    const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
    return {part(kInt8WeightSuffix), part(kInt8AbsmaxSuffix), part(kInt8FormatSuffix)};
  }

  std::string why_not(const PackScheme& scheme) const override {
    if (const std::string problem = weight_problem(scheme); !problem.empty()) {
      const bool is_narrow = scheme.is_integer() && scheme.bits < 8;
      const bool has_advice = scheme.is_dense() || scheme.is_integer();
      return "bitsandbytes int8 cannot hold it: " + problem +
             (is_narrow    ? kAdviceForFewBits
              : has_advice ? kAdvice
                           : "");
    }
    const InputFormat& input = scheme.input;
    const bool has_rule = input.outliers == OutlierRule::absolute || input.outliers == OutlierRule::columns;
    if (input.type == InputType::int8 && input.range == InputRange::token && input.symmetric && has_rule) return "";
    return "bitsandbytes rounds inputs symmetrically to int8 per token and keeps the columns above one absolute "
           "threshold, found " +
           input_format_name(input) +
           "; pare-int8 holds relative thresholds, columns known beforehand and asymmetric "
           "inputs, compressed-tensors those without outliers";
  }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    return difference_of(modules, "bitsandbytes' configuration has one threshold for all linears");
  }
  int64_t size_bytes(const PackScheme&, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    return num_out * num_in + num_out * 4 + 1;
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override {
    if (const Acceptance held = holds(linear, scheme); !held) {
      throw std::invalid_argument("module '" + module + "': " + held.reason);
    }
    return tensors_of(linear.weight, module);
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    const InputFormat& input = modules.front().scheme.input;
    const bool has_columns = input.outliers == OutlierRule::columns;
    return bitsandbytes_config_json(has_columns ? 0.0f : input.outlier_threshold, ignore);
  }
};

}  // namespace

const ContainerFormat& bitsandbytes_int8_container() {
  static const BitsAndBytesContainer container;
  return container;
}

}  // namespace pare::runtime
