// Refinement of a weight that is already rounded: scales, zero points and codes are changed one after another so that
// tr((W - W') H (W - W')^T) falls. Coordinate descent over the codes is QuantEase (Behdin et al., arXiv 2309.01885,
// equation 8); the scales are the least-squares ones for the codes they stand on.
#pragma once

#include "quant/grid.h"

namespace pare {

struct RefineResult {
  QuantizedWeight weight;
  double trace_before = 0.0;  // tr((W - W') H (W - W')^T) of `start`, under the H given, without damping
  double trace_after = 0.0;   // <= trace_before
};

// weight_OI float32 [O, I]; `start` what any rounding made of it (groups, g_idx, symmetric or not); hessian_II float32
// [I, I] symmetric. Keeps bits, groups, symmetry and the type of the scales.
// What falls is the trace under H + damping mean(diag(H)): inputs that the calibration has not seen do not repeat its
// H, and a weight fitted to H alone loses on them part of what it gained. A row whose damped trace, summed in float64,
// did not fall, or whose undamped one rose, stays as it was; so after GPTQ give the damping that it was given: with
// much more, many rows have nowhere to go.
// kept_OI, bool [O, I] (undefined: all), says which weights are kept: a pruned one, whatever it is in weight_OI, stays
// exactly 0, and its code follows the zero point. `start` must have it so.
// Rows are independent and split over OpenMP threads: any number gives the same bits. Throws std::invalid_argument
// (shapes, values that are not finite, options, a pruned weight that `start` does not hold at 0), and what
// validate(start) throws.
RefineResult refine(const at::Tensor& weight_OI, const QuantizedWeight& start, const at::Tensor& hessian_II,
                    const RefineOptions& options, const at::Tensor& kept_OI = {});

}  // namespace pare
