#include "runtime/format/stored_linear.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "runtime/format/awq_gemm.h"
#include "runtime/format/bitsandbytes_int8.h"
#include "runtime/format/pare_int8.h"

namespace pare {
namespace {

constexpr std::array kSuffixes = {
    kPlainSuffix,      kPackedSuffix,         kScaleSuffix,         kShapeSuffix,
    kZeroPointSuffix,  kGroupIndexSuffix,     kInputScaleSuffix,    kInputZeroPointSuffix,
    kAwqWeightSuffix,  kAwqZerosSuffix,       kAwqScalesSuffix,     kInt8AbsmaxSuffix,
    kInt8FormatSuffix, kOutlierColumnsSuffix, kOutlierWeightSuffix, kInputThresholdSuffix};

// The tensors of one module, looked up by suffix.
class Module {
 public:
  Module(const FindTensor& find, const std::string& name) : find_(find), name_(name) {}

  PackedTensors compressed() const {
    return {.packed = part(kPackedSuffix),
            .scale = part(kScaleSuffix),
            .shape = part(kShapeSuffix),
            .zero_point = part(kZeroPointSuffix),
            .group_index = part(kGroupIndexSuffix),
            .plain = part(kPlainSuffix),
            .input_scale = part(kInputScaleSuffix),
            .input_zero_point = part(kInputZeroPointSuffix)};
  }
  AwqTensors awq() const { return {part(kAwqWeightSuffix), part(kAwqZerosSuffix), part(kAwqScalesSuffix)}; }
  Int8Tensors int8() const { return {part(kInt8WeightSuffix), part(kInt8AbsmaxSuffix), part(kInt8FormatSuffix)}; }
  PareInt8Tensors pare_int8() const {
    return {part(kPlainSuffix), part(kScaleSuffix), part(kOutlierColumnsSuffix), part(kOutlierWeightSuffix),
            part(kInputThresholdSuffix)};
  }

 private:
  const TensorView* part(std::string_view suffix) const { return find_(name_ + std::string(suffix)); }
  const FindTensor& find_;
  const std::string& name_;
};

bool is_compressed_tensors(StoredFormat format) {
  return format == StoredFormat::pack_quantized || format == StoredFormat::int_quantized ||
         format == StoredFormat::float_quantized || format == StoredFormat::dense;
}

[[noreturn]] void refuse_mixture(const StoredModule& a, const StoredModule& b) {
  throw std::invalid_argument(
      "modules '" + a.name + "' and '" + b.name +
      "' are stored in different containers, or with different options of one that allows none");
}

// AWQ's and bitsandbytes' configurations say one thing of all modules.
void require_one_scheme(std::span<const StoredModule> modules) {
  for (const StoredModule& module : modules) {
    if (module.scheme != modules.front().scheme || !module.is_linear) refuse_mixture(modules.front(), module);
  }
}

}  // namespace

std::span<const std::string_view> linear_suffixes() {
  return kSuffixes;
}

std::vector<OwnedTensor> pack_linear(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) {
  switch (scheme.format) {
    case StoredFormat::awq_gemm:
      return pack_awq_gemm(linear.weight, module);
    case StoredFormat::bitsandbytes_int8:
      return pack_bitsandbytes_int8(linear.weight, module);
    case StoredFormat::pare_int8:
      return pack_pare_int8(linear, scheme, module);
    default:
      return pack_compressed_tensors(linear, scheme, module);
  }
}

void check_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                  const std::string& module) {
  const Module tensors(find, module);
  switch (scheme.format) {
    case StoredFormat::awq_gemm:
      return check_awq_tensors(tensors.awq(), scheme, num_out, num_in, module);
    case StoredFormat::bitsandbytes_int8:
      return check_int8_tensors(tensors.int8(), num_out, num_in, module);
    case StoredFormat::pare_int8:
      return check_pare_int8_tensors(tensors.pare_int8(), scheme, num_out, num_in, module);
    default:
      return check_compressed_tensors(tensors.compressed(), scheme, num_out, num_in, module);
  }
}

StoredLinear unpack_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                           const std::string& module) {
  const Module tensors(find, module);
  switch (scheme.format) {
    case StoredFormat::awq_gemm:
      return {.weight = unpack_awq_gemm(tensors.awq(), scheme, num_out, num_in, module)};
    case StoredFormat::bitsandbytes_int8:
      return {.weight = unpack_bitsandbytes_int8(tensors.int8(), num_out, num_in, module), .input = scheme.input};
    case StoredFormat::pare_int8:
      return unpack_pare_int8(tensors.pare_int8(), scheme, num_out, num_in, module);
    default:
      return unpack_compressed_linear(tensors.compressed(), scheme, num_out, num_in, module);
  }
}

std::vector<float> effective_weight(const StoredLinear& linear) {
  std::vector<float> weight_OI = dequantize(linear.weight);
  const std::vector<int32_t>& columns = linear.input.outlier_columns;
  if (linear.outlier_weight_OJ.empty()) return weight_OI;
  for (int64_t row = 0; row < linear.weight.num_out; ++row) {
    const float* const outliers = linear.outlier_weight_OJ.data() + row * static_cast<int64_t>(columns.size());
    for (size_t j = 0; j < columns.size(); ++j) weight_OI[row * linear.weight.num_in + columns[j]] = outliers[j];
  }
  return weight_OI;
}

std::string container_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  if (modules.empty()) throw std::invalid_argument("quantization_config: expected at least one quantized module");
  const PackScheme& first = modules.front().scheme;
  if (is_compressed_tensors(first.format)) {
    for (const StoredModule& module : modules) {
      if (!is_compressed_tensors(module.scheme.format)) refuse_mixture(modules.front(), module);
    }
    return quantization_config_json(modules, ignore);
  }
  if (first.format == StoredFormat::pare_int8) return pare_int8_config_json(modules, ignore);
  require_one_scheme(modules);
  if (first.format == StoredFormat::awq_gemm) return awq_config_json(first.group_size, ignore);
  return bitsandbytes_config_json(first.input.outlier_threshold, ignore);
}

}  // namespace pare
