// bitsandbytes' LLM.int8 container (quant_method "bitsandbytes", load_in_8bit), as Linear8bitLt stores itself
// (bitsandbytes/nn/modules.py: _save_to_state_dict; functional.py: int8_vectorwise_quant).
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   weight        I8  [O, I]   symmetric codes, ours - 128
//   SCB           F32 [O]      each row's absmax: the scale is SCB / 127
//   weight_format U8  []       0: rows, the only layout that is still read
// The threshold from which columns of the input stay in floating point belongs to the configuration, not to the weight.
#pragma once

#include <cstdint>
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

inline constexpr std::string_view kBitsAndBytes = "bitsandbytes";  // ContainerFormat::name()
const ContainerFormat& bitsandbytes_int8_container();

inline constexpr std::string_view kInt8WeightSuffix = ".weight";
inline constexpr std::string_view kInt8AbsmaxSuffix = ".SCB";
inline constexpr std::string_view kInt8FormatSuffix = ".weight_format";

// Returns the tensors of `module`. SCB is the float32 whose 127th part, rounded, is the scale. Among several it is the
// one with the shortest mantissa, which is the original absmax if that was a 16-bit number. Throws std::runtime_error
// if the weight is invalid (see validate). Throws std::invalid_argument if the container cannot hold it exactly: bits
// other than 8, groups, zeros, or a scale that is not the 127th part of a number.
std::vector<OwnedTensor> pack_bitsandbytes_int8(const QuantizedWeight& weight, const std::string& module);

struct Int8Tensors {
  const TensorView* weight = nullptr;
  const TensorView* absmax = nullptr;
  const TensorView* format = nullptr;  // absent in early files
};

// Checks dtypes, shapes and the layout for a weight [num_out, num_in]. Throws std::runtime_error.
void check_int8_tensors(const Int8Tensors& tensors, int64_t num_out, int64_t num_in, const std::string& module);

// Does the inverse of packing: 8 bits, symmetric, per channel, with scale SCB / 127 rounded to float32. Throws
// std::runtime_error.
QuantizedWeight unpack_bitsandbytes_int8(const Int8Tensors& tensors, int64_t num_out, int64_t num_in,
                                         const std::string& module);

// Returns the JSON object for the key "quantization_config". `threshold` is in units of the activations (6.0 in the
// paper, arXiv 2208.07339, section 3.2); 0 turns outliers off. Throws std::invalid_argument unless it is finite and not
// negative.
std::string bitsandbytes_config_json(float threshold, std::span<const std::string> skipped);

// A quantization_config with quant_method "bitsandbytes" as read. The tensors tell which modules are quantized.
struct BitsAndBytesConfig final : ContainerConfig {
  // The scheme of every quantized module: int8 inputs per token, with columns kept from the threshold on. A threshold
  // of 0 keeps an empty list of columns, because the library rounds by the same rule then (input_format.h).
  PackScheme scheme;
  std::set<std::string, std::less<>> skipped;

  // Throws std::invalid_argument for 4-bit checkpoints and for anything that is not such a configuration.
  static BitsAndBytesConfig parse(const std::string& json, const std::string& where);
  // True if llm_int8_skip_modules names this module, or the end of its name after a dot.
  bool is_skipped(std::string_view module) const;
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare::runtime
