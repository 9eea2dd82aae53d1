// Coordinate descent over the numbers of GGUF blocks: codes, and scales and minima as the file can hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runtime/blocks/gguf_parts.h"

namespace pare::quant {

// Changes `blocks`, the bytes of weight_OI's rounded rows, so that tr(E H E^T) falls. Per sweep and superblock these
// change in turn, each only where the trace falls: its float16, then for each group its whole number for the scale, the
// one for the minimum and the codes, column by column. In blocks of 32 the float16 take the place of the whole numbers.
// H is hessian_II, float32 [I, I], plus damping mean(diag(H)) on its diagonal. A row stays as it was if its damped
// trace, summed in float64, did not fall or its undamped one rose (refine.h says why). kept_OI, bool [O, I], or
// undefined: all are kept; pruned weights are 0 and stay so, in types with a code of 0 alone. Any number of threads
// gives the same bytes. The caller has checked shapes and values.
void descend_blocks(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& kept_OI,
                    const runtime::GgufGrid& grid, int sweeps, double damping, std::span<uint8_t> blocks);

}  // namespace pare::quant
