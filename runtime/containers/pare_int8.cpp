#include "runtime/containers/pare_int8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "runtime/containers/config_values.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int kOffset = 128;
constexpr std::array kSuffixes = {kPareInt8WeightSuffix, kPareInt8ScaleSuffix, kOutlierColumnsSuffix,
                                  kOutlierWeightSuffix, kInputThresholdSuffix};
constexpr std::array<std::pair<OutlierRule, const char*>, 3> kRules = {
    {{OutlierRule::absolute, "absolute"}, {OutlierRule::relative, "relative"}, {OutlierRule::columns, "columns"}}};

std::string name_of(const std::string& module, std::string_view suffix) {
  return module + std::string(suffix);
}

constexpr const char* kHolds =
    "pare-int8 holds 8-bit weights with a scale per row and int8 inputs per token with outlier columns; ";

[[noreturn]] void refuse(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': " + kHolds + what);
}

// Returns what the container cannot hold; empty: nothing. No other place decides this.
std::string scheme_problem(const PackScheme& scheme) {
  const InputFormat& input = scheme.input;
  if (!scheme.is_integer() || scheme.bits != 8 || !scheme.symmetric || scheme.group_size != kPerChannel ||
      scheme.per_tensor || scheme.act_order == StoredActOrder::group) {
    return "found another weight: use compressed-tensors";
  }
  if (!input.has_outliers()) return "found an input without an outlier rule: use compressed-tensors";
  if (input.type != InputType::int8 || input.range != InputRange::token) {
    return "found inputs as " + input_format_name(input);
  }
  return "";
}

std::string modules_problem(std::span<const StoredModule> modules) {
  for (const StoredModule& module : modules) {
    const InputFormat& input = module.scheme.input;
    const InputFormat& first = modules.front().scheme.input;
    if (module.is_linear && input.outliers == first.outliers && input.symmetric == first.symmetric) continue;
    return "module '" + module.name + "' is not a linear, or its outlier rule or symmetry differs from that of '" +
           modules.front().name + "'";
  }
  return "";
}

void check_values(const StoredLinear& linear, const std::string& module) {
  if (linear.weight.scale_dtype != DType::F32) refuse(module, "found another weight: its scales are not float32");
  if (std::ranges::any_of(linear.weight.scales_OG, [](float scale) { return scale < 0.0f; })) {
    refuse(module, "found a negative scale: use compressed-tensors");
  }
  validate(linear.input, linear.weight.num_in, module);
  const size_t num_values = linear.input.outlier_columns.size() * static_cast<size_t>(linear.weight.num_out);
  if (linear.outlier_weight_OJ.size() == num_values) return;
  refuse(module, "expected " + std::to_string(num_values) + " outlier weights, found " +
                     std::to_string(linear.outlier_weight_OJ.size()));
}

// Returns the narrowest type that holds every value: the type of the source, to which the columns belong.
DType outlier_dtype(std::span<const float> values) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    if (std::all_of(values.begin(), values.end(), [&](float v) { return round_to(v, dtype) == v; })) return dtype;
  }
  return DType::F32;
}

bool has_columns(const PackScheme& scheme) {
  return scheme.input.outliers == OutlierRule::columns;
}

// Makes the tensors of a linear that agrees with its scheme.
std::vector<OwnedTensor> tensors_of(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) {
  check_values(linear, module);
  const QuantizedWeight& weight = linear.weight;
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint8_t>(name_of(module, kPareInt8WeightSuffix), DType::I8,
                                         {weight.num_out, weight.num_in}, shift_codes(weight.codes_OI, -kOffset)));
  tensors.push_back(
      make_tensor<float>(name_of(module, kPareInt8ScaleSuffix), DType::F32, {weight.num_out}, weight.scales_OG));
  if (!has_columns(scheme)) {
    tensors.push_back(make_tensor<float>(name_of(module, kInputThresholdSuffix), DType::F32, {1},
                                         {&linear.input.outlier_threshold, 1}));
    return tensors;
  }
  const auto num_columns = static_cast<int64_t>(linear.input.outlier_columns.size());
  if (num_columns == 0) return tensors;
  tensors.push_back(make_tensor<int32_t>(name_of(module, kOutlierColumnsSuffix), DType::I32, {num_columns},
                                         linear.input.outlier_columns));
  const DType dtype = outlier_dtype(linear.outlier_weight_OJ);
  std::vector<std::byte> bytes(linear.outlier_weight_OJ.size() * dtype_size_bytes(dtype));
  convert_from_float(dtype, linear.outlier_weight_OJ, bytes);
  tensors.push_back({name_of(module, kOutlierWeightSuffix), dtype, {weight.num_out, num_columns}, std::move(bytes)});
  return tensors;
}

}  // namespace

std::vector<OwnedTensor> pack_pare_int8(const StoredLinear& linear, const PackScheme& scheme,
                                        const std::string& module) {
  if (const std::string problem = scheme_problem(scheme); !problem.empty()) refuse(module, problem);
  require_agreement(linear, scheme, module);
  return tensors_of(linear, scheme, module);
}

void check_pare_int8_tensors(const PareInt8Tensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                             const std::string& module) {
  require_tensor(tensors.weight, name_of(module, kPareInt8WeightSuffix), DType::I8, {num_out, num_in});
  require_tensor(tensors.scale, name_of(module, kPareInt8ScaleSuffix), DType::F32, {num_out});
  if (!has_columns(scheme)) {
    require_tensor(tensors.threshold, name_of(module, kInputThresholdSuffix), DType::F32, {1});
    return;
  }
  if (tensors.outlier_columns == nullptr && tensors.outlier_weight == nullptr) return;
  const std::string name = name_of(module, kOutlierColumnsSuffix);
  const int64_t num_columns = tensors.outlier_columns != nullptr && tensors.outlier_columns->shape.size() == 1
                                  ? tensors.outlier_columns->shape[0]
                                  : 1;
  if (num_columns < 1 || num_columns > num_in) {
    throw std::runtime_error("tensor '" + name + "': expected 1 to " + std::to_string(num_in) + " columns, found " +
                             std::to_string(num_columns));
  }
  require_tensor(tensors.outlier_columns, name, DType::I32, {num_columns});
  const TensorView* weight = tensors.outlier_weight;
  const bool is_float =
      weight != nullptr && (weight->dtype == DType::BF16 || weight->dtype == DType::F16 || weight->dtype == DType::F32);
  require_tensor(weight, name_of(module, kOutlierWeightSuffix), is_float ? weight->dtype : DType::BF16,
                 {num_out, num_columns});
}

StoredLinear unpack_pare_int8(const PareInt8Tensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                              const std::string& module) {
  check_pare_int8_tensors(tensors, scheme, num_out, num_in, module);
  StoredLinear linear;
  QuantizedWeight& weight = linear.weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = 8;
  weight.scale_dtype = DType::F32;
  weight.codes_OI = shift_codes(code_bytes(*tensors.weight), kOffset);
  weight.scales_OG.resize(static_cast<size_t>(num_out));
  convert_to_float(DType::F32, tensors.scale->data, weight.scales_OG);
  validate(weight, module);
  require_magnitudes(weight.scales_OG, module, kPareInt8ScaleSuffix);

  linear.input = scheme.input;
  if (!has_columns(scheme)) {
    convert_to_float(DType::F32, tensors.threshold->data, {&linear.input.outlier_threshold, 1});
  } else if (tensors.outlier_columns != nullptr) {
    linear.input.outlier_columns.resize(static_cast<size_t>(tensors.outlier_columns->num_elements()));
    std::memcpy(linear.input.outlier_columns.data(), tensors.outlier_columns->data.data(),
                tensors.outlier_columns->data.size());
    linear.outlier_weight_OJ.resize(static_cast<size_t>(tensors.outlier_weight->num_elements()));
    convert_to_float(tensors.outlier_weight->dtype, tensors.outlier_weight->data, linear.outlier_weight_OJ);
    if (!std::all_of(linear.outlier_weight_OJ.begin(), linear.outlier_weight_OJ.end(),
                     [](float v) { return std::isfinite(v); })) {
      throw std::runtime_error("tensor '" + name_of(module, kOutlierWeightSuffix) + "': expected finite values");
    }
  }
  try {
    validate(linear.input, num_in, module);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(error.what());
  }
  return linear;
}

std::string pare_int8_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  if (modules.empty()) throw std::invalid_argument("pare-int8 quantization_config: expected at least one module");
  if (const std::string problem = modules_problem(modules); !problem.empty()) {
    throw std::invalid_argument("pare-int8 quantization_config: " + problem);
  }
  const OutlierRule rule = modules.front().scheme.input.outliers;
  const auto name = std::find_if(kRules.begin(), kRules.end(), [&](const auto& r) { return r.first == rule; });
  if (name == kRules.end()) throw std::invalid_argument("pare-int8 quantization_config: expected an outlier rule");
  nlohmann::ordered_json config;
  config["quant_method"] = kPareInt8;
  config["outliers"] = name->second;
  if (!modules.front().scheme.input.symmetric) config["symmetric"] = false;
  config["ignore"] = std::vector<std::string>(ignore.begin(), ignore.end());
  return json_text(config, 2);
}

PareInt8Config PareInt8Config::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object() || config.value("quant_method", Json()) != kPareInt8) {
    fail_config(where, "quant_method: expected \"" + std::string(kPareInt8) + "\"");
  }
  PareInt8Config result;
  result.scheme = {.bits = 8, .layout = CodeLayout::bytes, .container = std::string(kPareInt8)};
  result.scheme.input.type = InputType::int8;
  const Json outliers = config.value("outliers", Json());
  const auto rule = std::find_if(kRules.begin(), kRules.end(), [&](const auto& r) { return outliers == r.second; });
  if (rule == kRules.end()) {
    fail_config(where, "outliers: expected \"absolute\", \"relative\" or \"columns\", found " +
                           json_text(outliers).substr(0, 100));
  }
  result.scheme.input.outliers = rule->first;
  const Json symmetric = config.value("symmetric", Json(true));
  if (!symmetric.is_boolean()) fail_config(where, "symmetric: expected true or false");
  result.scheme.input.symmetric = symmetric.get<bool>();
  const Json ignore = config.value("ignore", Json::array());
  if (!ignore.is_array()) fail_config(where, "ignore: expected an array of strings");
  for (const Json& name : ignore) {
    if (!name.is_string()) fail_config(where, "ignore: expected an array of strings");
    result.ignore.insert(name.get<std::string>());
  }
  return result;
}

bool PareInt8Config::is_ignored(std::string_view module) const {
  return ignore.contains(module);
}

std::optional<PackScheme> PareInt8Config::scheme_of(const std::string& module, std::string_view,
                                                    const FindTensor& find) const {
  if (!has_quantized_tensor(find, module, kPareInt8ScaleSuffix, is_ignored(module))) return std::nullopt;
  return scheme;
}

// --- the row of the table ---

namespace {

class PareInt8Container final : public ContainerFormat {
 public:
  std::string_view name() const override { return kPareInt8; }
  std::string_view method() const override { return kPareInt8; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kPareInt8;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;  // not recorded
    if (wanted.is_integer()) wanted.layout = CodeLayout::bytes;
    return wanted;
  }
  DType scale_dtype(DType) const override { return DType::F32; }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_pare_int8_tensors(parts_of(find, module), scheme, num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    return unpack_pare_int8(parts_of(find, module), scheme, num_out, num_in, module);
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return std::make_unique<PareInt8Config>(PareInt8Config::parse(json, where));
  }

 private:
  static PareInt8Tensors parts_of(const FindTensor& find, const std::string& module) {
    const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
    return {part(kPareInt8WeightSuffix), part(kPareInt8ScaleSuffix), part(kOutlierColumnsSuffix),
            part(kOutlierWeightSuffix), part(kInputThresholdSuffix)};
  }

  std::string why_not(const PackScheme& scheme) const override {
    const std::string problem = scheme_problem(scheme);
    return problem.empty() ? "" : kHolds + problem;
  }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    return modules_problem(modules);
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const StoredExtent& extent) const override {
    const int64_t num_columns = extent.num_outlier_columns;
    const int64_t column_bytes = 4 + num_out * static_cast<int64_t>(dtype_size_bytes(extent.outlier_dtype));
    return num_out * num_in + num_out * 4 + (has_columns(scheme) ? num_columns * column_bytes : 4);
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override {
    return tensors_of(linear, scheme, module);
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    return pare_int8_config_json(modules, ignore);
  }
};

}  // namespace

const ContainerFormat& pare_int8_container() {
  static const PareInt8Container container;
  return container;
}

}  // namespace pare::runtime
