// pare's own container for LLM.int8 (arXiv 2208.07339). It holds what bitsandbytes' layout cannot: outlier columns
// known beforehand, in the model's floating point beside int8 codes whose scales ignore them, and thresholds in each
// layer's own units.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   weight          I8 [O, I]            signed codes, ours - 128; 0 in the outlier columns
//   weight_scale    F32 [O]
//   outlier_columns I32 [J]              "outliers": "columns", J > 0 only: ascending
//   outlier_weight  BF16, F16, F32 [O, J] beside it, in the narrowest type that holds the values
//   input_threshold F32 [1]              "outliers": "absolute" or "relative"
// The configuration has "symmetric": false if inputs are rounded with a zero per token.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"

namespace pare::runtime {

inline constexpr std::string_view kPareInt8 = "pare-int8";  // ContainerFormat::name() and quant_method
const ContainerFormat& pare_int8_container();

inline constexpr std::string_view kPareInt8WeightSuffix = ".weight";
inline constexpr std::string_view kPareInt8ScaleSuffix = ".weight_scale";
inline constexpr std::string_view kOutlierColumnsSuffix = ".outlier_columns";
inline constexpr std::string_view kOutlierWeightSuffix = ".outlier_weight";
inline constexpr std::string_view kInputThresholdSuffix = ".input_threshold";

// Throws std::runtime_error if the weight is invalid (see validate). Throws std::invalid_argument if the linear is not
// what the scheme describes, or if outlier_dtype (BF16, F16 or F32) does not represent an outlier weight exactly.
std::vector<OwnedTensor> pack_pare_int8(const StoredLinear& linear, const PackScheme& scheme,
                                        const std::string& module);

// The tensors that a reader found under the module's name; null: absent.
struct PareInt8Tensors {
  const TensorView* weight = nullptr;
  const TensorView* scale = nullptr;
  const TensorView* outlier_columns = nullptr;
  const TensorView* outlier_weight = nullptr;
  const TensorView* threshold = nullptr;
};

// Checks dtypes and shapes for a weight [num_out, num_in]; reads no values. Throws std::runtime_error.
void check_pare_int8_tensors(const PareInt8Tensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                             const std::string& module);
// Does the inverse of packing and checks every value. Throws std::runtime_error.
StoredLinear unpack_pare_int8(const PareInt8Tensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                              const std::string& module);

// Returns the JSON object for the key "quantization_config". Throws std::invalid_argument for modules whose inputs'
// formats differ by more than thresholds and columns, and for modules that are not linears.
std::string pare_int8_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

// A quantization_config of this container as read.
struct PareInt8Config final : ContainerConfig {
  PackScheme scheme;  // every quantized module's; its input's threshold is the module's own
  std::set<std::string, std::less<>> ignore;

  // Throws std::invalid_argument for anything that is not such a configuration; `where` names the file.
  static PareInt8Config parse(const std::string& json, const std::string& where);
  bool is_ignored(std::string_view module) const;
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare::runtime
