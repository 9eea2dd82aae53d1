// pare's own container for weights that keep 2 of 4: of every four neighbouring inputs two values and where they are.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix). K = I / 2 with the pattern 2:4, where 4
// divides I, and K = I without a pattern; S(n, b) = ceil(n * b / 32) words of a bit stream (bit_stream.h); G groups:
//   weight_values     integers: I32 [O, S(K, bits)]  of 2, 3, 4 or 8 bits: each row a bit stream of K unsigned codes
//                     dense: BF16, F16 or F32 [O, K]
//   weight_positions  I32 [O, S(K, 2)]               pattern 2:4 only: each row a bit stream of K numbers of 2 bits
//   weight_scale      BF16, F16 or F32 [O, G]        integers only; [1] per tensor; G = 1 per channel
//   weight_zero_point I32 [S(O * G, bits)]           asymmetric integers only: one bit stream of the unsigned zeros
//                                                    [O, G], row-major; [S(1, bits)] per tensor
//   weight            BF16, F16 or F32 [O, I]        neither pattern nor codes (the input alone is rounded): as it was
//   input_scale, input_zero_point                    as scale_tensors.h says
// With the pattern, numbers 2g and 2g + 1 of a row are of the inputs 4g to 4g + 3: value k is of the input
// 4 floor(k / 2) + position k, and of the two positions the first is the smaller one. All other weights are 0; of
// integers, W = scale * (code - zero), that is the code of the zero. Bits of the last word beyond a stream are 0.
//
// Where fewer than two of four are not zero, the writer takes the lowest free positions besides and stores their zeros
// (+0, or the code of the zero), so that equal weights are equal bytes. A reader takes any two.
//
// quantization_config:
//   {"quant_method": "pare-sparse24",
//    "groups": [{"pattern": "2:4" or null,
//                "weights": {"bits": 4, "group_size": 64 or null (per channel), "symmetric": true,
//                            "per_tensor": false} or null (dense),
//                "inputs": {"type": "int8" or "fp8", "range": "token", "tensor" or "static", "symmetric": true} or null,
//                "modules": [full names]}, ...],
//    "ignore": [names of linears left as they were]}
#pragma once

#include <cstdint>
#include <map>
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

inline constexpr std::string_view kPareSparse24 = "pare-sparse24";  // ContainerFormat::name() and quant_method
const ContainerFormat& pare_sparse24_container();

inline constexpr std::string_view kSparseValuesSuffix = ".weight_values";
inline constexpr std::string_view kSparsePositionsSuffix = ".weight_positions";
inline constexpr std::string_view kSparseScaleSuffix = ".weight_scale";
inline constexpr std::string_view kSparseZeroPointSuffix = ".weight_zero_point";
inline constexpr std::string_view kSparsePlainSuffix = ".weight";

// What the container does not hold of a scheme, and what would fit; empty: nothing.
std::string pare_sparse24_problem(const PackScheme& scheme);

// A quantization_config of this container as read.
class PareSparse24Config final : public ContainerConfig {
 public:
  // Throws std::invalid_argument for what is no such configuration: unknown keys, schemes that the container does not
  // hold, modules that are named twice; `where` names the file.
  static PareSparse24Config parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;

 private:
  std::map<std::string, PackScheme> scheme_of_module_;
};

// The JSON object for the key "quantization_config". Throws std::invalid_argument without any module, for one named
// twice or also ignored, or for a scheme that the container does not hold.
std::string pare_sparse24_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

}  // namespace pare
