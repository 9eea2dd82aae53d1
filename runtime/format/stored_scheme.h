// How the linears of a checkpoint are stored: the facts that the configurations of all containers state, in one form.
#pragma once

#include <cstdint>
#include <variant>

#include "runtime/format/linear_weights.h"

namespace pare {

// The container's word for how GPTQ ordered the columns. weight: groups keep their place ("static"); group: groups were
// formed in that order and weight_g_idx says which column is in which.
enum class StoredActOrder { none, weight, group };

// Which tensors hold the weight: the first three are compressed-tensors' formats of these names (compressed_tensors.h).
enum class StoredFormat { pack_quantized, int_quantized, float_quantized, awq_gemm, bitsandbytes_int8 };

// How the input of a linear is rounded before the product, as a configuration says it.
struct ActivationScheme {
  enum class Type { none, int8, float8 };
  Type type = Type::none;
  bool per_token = true;           // one scale for each token; false: one for the tensor
  bool dynamic = true;             // false: the scale is stored beside the weight
  bool symmetric = true;           // false: int8 codes have a zero other than 0
  float outlier_threshold = 0.0f;  // LLM.int8: columns that reach it are not rounded; 0: no such columns
  bool operator==(const ActivationScheme&) const = default;
};

// The same with the values of one linear. x is rounded to scale * (code - zero), code in [-128, 127], or to scale *
// E4M3.
struct StoredActivations {
  ActivationScheme scheme;
  float scale = 0.0f;               // static only
  int zero = 0;                     // static and asymmetric only, in [-128, 127]
  DType scale_dtype = DType::BF16;  // static only; holds scale exactly
};

// How one module is stored. Two modules of one scheme can be described together.
struct PackScheme {
  int bits = 4;                      // 2, 3, 4, 8; 8 for float_quantized
  int64_t group_size = kPerChannel;  // or a positive size
  bool symmetric = true;
  StoredActOrder act_order = StoredActOrder::none;
  StoredFormat format = StoredFormat::pack_quantized;
  bool per_tensor = false;  // the file holds one scale; group_size is kPerChannel and every row has that scale
  ActivationScheme activations = {};
  bool operator==(const PackScheme&) const = default;
};

// What a reader makes of one module and a writer takes.
struct StoredLinear {
  std::variant<QuantizedWeight, Float8Weight> weight;
  StoredActivations activations = {};
};

}  // namespace pare
