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

namespace pare {

inline constexpr std::string_view kBitsAndBytes = "bitsandbytes";  // ContainerFormat::name()
const ContainerFormat& bitsandbytes_int8_container();

inline constexpr std::string_view kInt8WeightSuffix = ".weight";
inline constexpr std::string_view kInt8AbsmaxSuffix = ".SCB";
inline constexpr std::string_view kInt8FormatSuffix = ".weight_format";

// The tensors of `module`. SCB is the float32 whose 127th part, rounded, is the scale; of several, the one with the
// shortest mantissa, which is the absmax that the scale came from when that was a 16-bit number. Throws
// std::runtime_error when the weight is invalid (see validate) and std::invalid_argument when the container cannot hold
// it exactly: other than 8 bits, groups, zeros, or a scale that is no number's 127th part.
std::vector<OwnedTensor> pack_bitsandbytes_int8(const QuantizedWeight& weight, const std::string& module);

struct Int8Tensors {
  const TensorView* weight = nullptr;
  const TensorView* absmax = nullptr;
  const TensorView* format = nullptr;  // absent in early files
};

// Checks dtypes, shapes and the layout for a weight [num_out, num_in]. Throws std::runtime_error.
void check_int8_tensors(const Int8Tensors& tensors, int64_t num_out, int64_t num_in, const std::string& module);

// The inverse of packing: 8 bits, symmetric, per channel, scale SCB / 127 rounded to float32. Throws
// std::runtime_error.
QuantizedWeight unpack_bitsandbytes_int8(const Int8Tensors& tensors, int64_t num_out, int64_t num_in,
                                         const std::string& module);

// The JSON object for the key "quantization_config". `threshold` is in units of the activations (6.0 in the paper,
// arXiv 2208.07339, section 3.2); 0 turns outliers off. Throws std::invalid_argument unless it is finite and not
// negative.
std::string bitsandbytes_config_json(float threshold, std::span<const std::string> skipped);

// A quantization_config with quant_method "bitsandbytes" as read. Which modules are quantized is seen from their
// tensors.
struct BitsAndBytesConfig final : ContainerConfig {
  // Of every quantized module, with int8 inputs per token and columns from the threshold on kept; a threshold of 0
  // keeps an empty list of columns, for the library rounds by the same rule then (input_format.h).
  PackScheme scheme;
  std::set<std::string, std::less<>> skipped;

  // Throws std::invalid_argument for 4-bit checkpoints and what is no such configuration.
  static BitsAndBytesConfig parse(const std::string& json, const std::string& where);
  // Whether llm_int8_skip_modules names this module or the end of its name after a dot.
  bool is_skipped(std::string_view module) const;
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare
