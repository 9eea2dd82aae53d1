// The AWQ "GEMM" container (quant_method "awq", version "gemm") of AutoAWQ (awq/modules/linear/gemm.py) and GPTQModel:
// 4-bit codes with zeros in groups along the input, and float16 scales.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   qweight I32 [I, O/8]   word [i, c] holds code[8c + order[n], i] in bits 4n to 4n+3, order = kAwqOrder
//   qzeros  I32 [G, O/8]   the zeros, packed alike
//   scales  F16 [G, O]
// W = scale * (code - zero), as in QuantizedWeight. The channel scales that AWQ searches are not stored: they are
// folded into the layer before.
#pragma once

#include <array>
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

inline constexpr std::string_view kAwqGemm = "awq-gemm";  // ContainerFormat::name()
const ContainerFormat& awq_gemm_container();

inline constexpr std::string_view kAwqWeightSuffix = ".qweight";
inline constexpr std::string_view kAwqZerosSuffix = ".qzeros";
inline constexpr std::string_view kAwqScalesSuffix = ".scales";

// Nibble n of a word holds the code of output 8c + kAwqOrder[n].
inline constexpr std::array<int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

// Returns the tensors of `module`; a symmetric weight gets zeros of 8. Throws std::runtime_error if the weight is
// invalid (see validate). Throws std::invalid_argument, with what to do, if the container cannot hold it exactly. Such
// weights have bits other than 4, an act-order with moved groups, outputs that 8 does not divide, or a scale that is
// not a float16.
std::vector<OwnedTensor> pack_awq_gemm(const QuantizedWeight& weight, const std::string& module);

struct AwqTensors {
  const TensorView* weight = nullptr;
  const TensorView* zeros = nullptr;
  const TensorView* scales = nullptr;
};

// Checks dtypes and shapes for a weight [num_out, num_in]; reads no values. Throws std::runtime_error.
void check_awq_tensors(const AwqTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const std::string& module);

// Does the inverse of packing and checks every value. Throws std::runtime_error.
QuantizedWeight unpack_awq_gemm(const AwqTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                const std::string& module);

// Returns the JSON object for the key "quantization_config": one group size for all linears (kPerChannel is written as
// -1), and the modules that stay dense. Throws std::invalid_argument for a group size that is neither positive nor
// kPerChannel.
std::string awq_config_json(int64_t group_size, std::span<const std::string> unconverted);

// A quantization_config with quant_method "awq" as read. The tensors tell which modules are quantized, since libraries
// differ in how they match modules_to_not_convert and in what they never convert (the head).
struct AwqConfig final : ContainerConfig {
  PackScheme scheme;  // every quantized module's
  std::set<std::string, std::less<>> unconverted;

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for a version other than
  // "gemm", bits other than 4, and anything that is not an AWQ configuration.
  static AwqConfig parse(const std::string& json, const std::string& where);
  // True if modules_to_not_convert names this module, or the end of its name after a dot.
  bool is_unconverted(std::string_view module) const;
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare::runtime
