#include "runtime/containers/mlx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/auto_round_config.h"
#include "runtime/containers/config_values.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/bit_stream.h"
#include "runtime/format/stored_widths.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::array kSuffixes = {kMlxWeightSuffix, kMlxScalesSuffix, kMlxBiasesSuffix};
constexpr int64_t kWordBits = 32;

std::string name_of(const std::string& module, std::string_view suffix) {
  return module + std::string(suffix);
}

struct Parts {
  const TensorView *weight = nullptr, *scales = nullptr, *biases = nullptr;
};
Parts parts_of(const FindTensor& find, const std::string& module) {
  const auto part = [&](std::string_view suffix) { return find(name_of(module, suffix)); };
  return {part(kMlxWeightSuffix), part(kMlxScalesSuffix), part(kMlxBiasesSuffix)};
}

// Returns the zero that a bias stands for; -1: none.
int zero_of(float scale, float bias, DType dtype, int bits) {
  if (scale == 0.0f) return bias == 0.0f ? 0 : -1;
  const float wanted = std::rint(-bias / scale);
  if (!(wanted >= 0.0f && wanted < static_cast<float>(1 << bits))) return -1;
  return round_to(-scale * wanted, dtype) == bias ? static_cast<int>(wanted) : -1;
}

// Returns whether every bias is that of a symmetric weight. Types and sizes that do not fit are left to check().
bool has_middle_zeros(const Parts& parts, int bits) {
  if (parts.biases == nullptr || !is_float_dtype(parts.scales->dtype) || !is_float_dtype(parts.biases->dtype) ||
      parts.scales->shape != parts.biases->shape) {
    return true;
  }
  const std::vector<float> scales = unpack_scales(*parts.scales), biases = unpack_scales(*parts.biases);
  const auto middle = static_cast<float>(1 << (bits - 1));
  for (size_t i = 0; i < scales.size(); ++i) {
    if (-scales[i] * middle != biases[i]) return false;
  }
  return true;
}

// Returns the width that the tensors say: 0 if none fits.
int width_of(const Parts& parts, int64_t group_size) {
  const bool is_matrix = parts.scales != nullptr && parts.weight != nullptr && parts.scales->shape.size() == 2 &&
                         parts.weight->shape.size() == 2;
  if (!is_matrix) return 0;
  const std::optional<int64_t> num_in = checked_product(std::vector{parts.scales->shape[1], group_size}),
                               num_bits = checked_product(std::vector{parts.weight->shape[1], kWordBits});
  if (!num_in || !num_bits || *num_in == 0 || *num_bits % *num_in != 0 || *num_bits / *num_in > 8) return 0;
  const int width = static_cast<int>(*num_bits / *num_in);
  return is_stored_width(width) ? width : 0;
}

bool has_free_bias(const Parts& parts, int bits) {
  const std::vector<float> scales = unpack_scales(*parts.scales), biases = unpack_scales(*parts.biases);
  for (size_t i = 0; i < scales.size(); ++i) {
    if (zero_of(scales[i], biases[i], parts.biases->dtype, bits) < 0) return true;
  }
  return false;
}

std::vector<std::byte> decoded_f32(const Parts& parts, int bits, int64_t num_out, int64_t num_in) {
  const std::vector<uint8_t> codes_OI = unpack_bit_rows(parts.weight->data, num_out, num_in, bits);
  const std::vector<float> scales_OG = unpack_scales(*parts.scales), biases_OG = unpack_scales(*parts.biases);
  const size_t group_size = codes_OI.size() / scales_OG.size();
  std::vector<float> values_OI(codes_OI.size());
  for (size_t i = 0; i < values_OI.size(); ++i) {
    const float product = scales_OG[i / group_size] * static_cast<float>(codes_OI[i]);
    values_OI[i] = product + biases_OG[i / group_size];
  }
  std::vector<std::byte> bytes(values_OI.size() * sizeof(float));
  convert_from_float(DType::F32, values_OI, bytes);
  return bytes;
}

MlxConfig::Entry read_entry(const Json& stated, MlxConfig::Entry entry, const std::string& where) {
  if (const Json& mode = value_or_null(stated, "mode"); !mode.is_null() && mode != "affine") {
    fail_config(where, "mode: not supported by this runtime: expected \"affine\"" + found_text(mode));
  }
  if (const Json& bits = value_or_null(stated, "bits"); !bits.is_null()) {
    if (!bits.is_number_unsigned() || bits.get<uint64_t>() > 8 || !is_stored_width(bits.get<int>())) {
      fail_config(where, "bits: not supported by this runtime: expected " + stored_widths_text() + found_text(bits));
    }
    entry.bits = bits.get<int>();
  }
  if (const Json& size = value_or_null(stated, "group_size"); !size.is_null()) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() == 0 || size.get<uint64_t>() > uint64_t{1} << 31) {
      fail_config(where, "group_size: expected a positive size" + found_text(size));
    }
    entry.group_size = size.get<int64_t>();
  }
  return entry;
}

// GPTQ and AWQ say more than these two, and may lack the method as well.
bool is_unnamed_mlx(const std::string& json) {
  const Json config = parse_config_text(json, "");
  if (!config.is_object() || config.contains("quant_method") || !config.contains("bits")) return false;
  for (const char* const key : {"desc_act", "sym", "zero_point"}) {
    if (config.contains(key)) return false;
  }
  const Json size = value_or_null(config, "group_size");
  return size.is_number_unsigned() && size.get<uint64_t>() > 0;
}

}  // namespace

MlxConfig::MlxConfig(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  for (const char* const key : {"bits", "group_size"}) {
    if (value_or_null(config, key).is_null()) fail_config(where, std::string(key) + ": missing");
  }
  base_ = read_entry(config, {}, where);
  if (is_auto_round_config(json)) {
    if (const Json& type = value_or_null(config, "data_type"); !type.is_null() && type != "int") {
      fail_config(where,
                  "data_type: not supported by this runtime: expected \"int\" in this packing" + found_text(type));
    }
    base_.bits = 0;  // the entries of modules lie beside this object
    return;
  }
  for (const auto& [name, stated] : config.items()) {
    if (stated.is_object()) of_module_[name] = read_entry(stated, base_, where + "': '" + name.substr(0, 100));
    if (stated.is_boolean()) of_module_[name] = {stated.get<bool>(), base_.bits, base_.group_size};
  }
}

const MlxConfig::Entry& MlxConfig::entry_of(const std::string& module) const {
  const auto named = of_module_.find(module);
  return named == of_module_.end() ? base_ : named->second;
}

std::optional<MlxFloats> MlxConfig::free_biases(const std::string& module, const FindTensor& find) const {
  const Parts parts = parts_of(find, module);
  if (parts.weight == nullptr || parts.scales == nullptr || parts.biases == nullptr) return std::nullopt;
  const Entry& entry = entry_of(module);
  const int bits = width_of(parts, entry.group_size);
  const bool fits = entry.is_quantized && bits != 0 && (entry.bits == 0 || entry.bits == bits) &&
                    parts.weight->dtype == DType::U32 && is_float_dtype(parts.scales->dtype) &&
                    is_float_dtype(parts.biases->dtype) && parts.scales->shape == parts.biases->shape &&
                    parts.scales->shape[0] == parts.weight->shape[0] && parts.scales->num_elements() > 0;
  if (!fits || !has_free_bias(parts, bits)) return std::nullopt;
  const int64_t num_out = parts.scales->shape[0], num_in = parts.scales->shape[1] * entry.group_size;
  const std::optional<int64_t> num_bytes = checked_product(std::vector{num_out, num_in, int64_t{sizeof(float)}});
  if (!num_bytes) return std::nullopt;
  return MlxFloats{{num_out, num_in},
                   {parts.weight->data, parts.scales->data, parts.biases->data},
                   [parts, bits, num_out, num_in] { return decoded_f32(parts, bits, num_out, num_in); }};
}

std::optional<PackScheme> MlxConfig::scheme_of(const std::string& module, std::string_view,
                                               const FindTensor& find) const {
  const Entry& entry = entry_of(module);
  if (!has_quantized_tensor(find, module, kMlxScalesSuffix, !entry.is_quantized)) return std::nullopt;
  const Parts parts = parts_of(find, module);
  PackScheme scheme = {.bits = entry.bits, .group_size = entry.group_size, .container = std::string(kMlx)};
  if (scheme.bits == 0) {
    scheme.bits = width_of(parts, entry.group_size);
    if (scheme.bits == 0) {
      throw std::runtime_error("tensor '" + name_of(module, kMlxWeightSuffix) + "': its size and that of '" +
                               name_of(module, kMlxScalesSuffix) + "' do not fit the group size " +
                               std::to_string(entry.group_size) + " of the quantization_config");
    }
  }
  const std::lock_guard lock(mutex_);
  const auto known = is_symmetric_.find(module);
  scheme.symmetric = known != is_symmetric_.end()
                         ? known->second
                         : is_symmetric_.emplace(module, has_middle_zeros(parts, scheme.bits)).first->second;
  return scheme;
}

// --- the row of the table ---

namespace {

constexpr const char* kOnlyRead = "MLX files are read, and not written: use the container compressed-tensors";

class MlxContainer final : public ContainerFormat {
 public:
  std::string_view name() const override { return kMlx; }
  std::string_view method() const override { return kMlx; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  bool is_for_recipes() const override { return false; }
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    return is_auto_round(quant_method) ? auto_round_container(json) == kMlx
                                       : quant_method.empty() && is_unnamed_mlx(json);
  }
  std::vector<std::string> unread_by(Engine, const PackScheme&) const override { return {kOnlyRead}; }
  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kMlx;
    return wanted;
  }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override;
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override;
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return std::make_unique<MlxConfig>(json, where);
  }

 private:
  std::string why_not(const PackScheme&) const override { return kOnlyRead; }
  int64_t size_bytes(const PackScheme&, int64_t, int64_t, const StoredExtent&) const override {
    throw std::invalid_argument(kOnlyRead);
  }
  std::vector<OwnedTensor> pack(const StoredLinear&, const PackScheme&, const std::string&) const override {
    throw std::invalid_argument(kOnlyRead);
  }
  std::string write_config(std::span<const StoredModule>, std::span<const std::string>) const override {
    throw std::invalid_argument(kOnlyRead);
  }
};

void MlxContainer::check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                         const std::string& module) const {
  const auto fail = [&](const std::string& what) { throw std::runtime_error("module '" + module + "': " + what); };
  if (num_out <= 0 || num_in <= 0 || !checked_product(std::vector{num_out, num_in})) {
    fail("impossible shape " + shape_text(std::vector{num_out, num_in}));
  }
  if (scheme.group_size <= 0 || num_in % scheme.group_size != 0) {
    fail("the group size " + std::to_string(scheme.group_size) +
         " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  const Parts parts = parts_of(find, module);
  require_tensor(parts.weight, name_of(module, kMlxWeightSuffix), DType::U32,
                 {num_out, bit_stream_words(num_in, scheme.bits)});
  const std::vector<int64_t> shape = {num_out, scheme.num_groups(num_in)};
  check_scale_tensor(parts.scales, shape, module, kMlxScalesSuffix);
  check_scale_tensor(parts.biases, shape, module, kMlxBiasesSuffix);
}

StoredLinear MlxContainer::load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                const std::string& module) const {
  check(find, scheme, num_out, num_in, module);
  const Parts parts = parts_of(find, module);
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = parts.scales->dtype;
  weight.codes_OI = unpack_bit_rows(parts.weight->data, num_out, num_in, scheme.bits);
  weight.scales_OG = unpack_scales(*parts.scales);
  if (!scheme.symmetric) {
    const std::vector<float> biases_OG = unpack_scales(*parts.biases);
    for (size_t i = 0; i < biases_OG.size(); ++i) {
      const int zero = zero_of(weight.scales_OG[i], biases_OG[i], parts.biases->dtype, scheme.bits);
      if (zero < 0) {
        throw std::runtime_error("tensor '" + name_of(module, kMlxBiasesSuffix) +
                                 "': expected whole multiples of the scales, as AutoRound "
                                 "writes them, found " +
                                 std::to_string(biases_OG[i]) + " beside the scale " +
                                 std::to_string(weight.scales_OG[i]) +
                                 ", as mlx-lm's own rounding makes them: save the model in floating "
                                 "point (mlx_lm.convert --dequantize), or start from the original");
      }
      weight.zeros_OG.push_back(static_cast<uint8_t>(zero));
    }
  }
  widen_codes(weight, multiplied_width(scheme.bits));
  validate(weight, module);
  return {.weight = std::move(weight)};
}

}  // namespace

const ContainerFormat& mlx_container() {
  static const MlxContainer container;
  return container;
}

}  // namespace pare::runtime
