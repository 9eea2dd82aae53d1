// Weights in 8-bit floating point, E4M3 of the OCP specification 1.0 (Micikevicius et al., arXiv 2209.05433): wider
// steps for large values and narrower ones for small, so that a row with one outlier keeps its small weights.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/format/linear_weights.h"

namespace pare {

// weight_OI float32 [O, I]; one scale per row, absmax / 448 rounded to scale_dtype (F32, F16, BF16), or with per_tensor
// the same one, of the whole weight's absmax, for every row; codes are float_to_fp8(w / scale), which saturates. A row
// (a weight) of zeros has scale 1. These are compressed-tensors' codes for float32 weights where w / scale is not
// rounded to 16 bits on the way. Throws std::invalid_argument: shapes, values that are not finite, a scale that
// scale_dtype cannot hold (which row).
QuantizedWeight quantize_fp8(const at::Tensor& weight_OI, bool per_tensor, DType scale_dtype);

}  // namespace pare
