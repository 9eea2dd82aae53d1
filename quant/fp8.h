// Weights in 8-bit floating point, E4M3 of the OCP specification 1.0 (Micikevicius et al., arXiv 2209.05433). Its steps
// are wider for large values and narrower for small ones, so that a row with one outlier keeps its small weights.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/format/linear_weights.h"

namespace pare::quant {

// Rounds weight_OI, float32 [O, I], to E4M3. Each row has one scale, absmax / 448 rounded to scale_dtype (F32, F16,
// BF16). With per_tensor, every row has the scale of the whole weight's absmax. Codes are float_to_fp8(w / scale),
// which saturates. A row (or a weight) of zeros has scale 1. These are compressed-tensors' codes for float32 weights,
// unless it rounds w / scale to 16 bits on the way.
// Throws std::invalid_argument for shapes, for values that are not finite, and for a scale that scale_dtype cannot hold
// (the message says which row).
runtime::QuantizedWeight quantize_fp8(const at::Tensor& weight_OI, bool per_tensor, runtime::DType scale_dtype);

}  // namespace pare::quant
