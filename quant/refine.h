// Refines a weight that is already rounded. Scales, zero points and codes are changed one after another so that tr((W -
// W') H (W - W')^T) falls. Coordinate descent over the codes is QuantEase (Behdin et al., arXiv 2309.01885, equation
// 8). The scales are the least-squares ones for the present codes.
#pragma once

#include "quant/grid.h"

namespace pare::quant {

struct RefineResult {
  runtime::QuantizedWeight weight;
  double trace_before = 0.0;  // tr((W - W') H (W - W')^T) of `start`, under the H given, without damping
  double trace_after = 0.0;   // <= trace_before
  double signal = 0.0;        // tr(W H W^T), of which the traces are shares; its products are float32
};

// H with damping on its diagonal, made once for all layers that read its input.
struct DampedHessian {
  at::Tensor hessian_II;  // float32
  at::Tensor norms_IB;    // norms of pieces of its rows: row_norms in trace_descent.h
  double damping = 0.0;   // relative, as in RefineOptions
  double added = 0.0;     // to each element of the diagonal
};

// hessian_II is float32 [I, I] and symmetric. Throws std::invalid_argument for shape, damping, values that are not
// finite, a matrix that is not symmetric or has a negative diagonal.
DampedHessian damped_hessian(const at::Tensor& hessian_II, double damping);

// Refines `start`, the result of any rounding of weight_OI, float32 [O, I]. `start` may have groups, a g_idx, and
// symmetric or asymmetric grids. hessian_II is float32 [I, I] and symmetric. Bits, groups, symmetry and the type of the
// scales stay. The trace that falls is that under H + damping mean(diag(H)). Inputs that the calibration has not seen
// do not repeat its H, and a weight fitted to H alone loses part of its gain on them. A row stays as it was if its
// damped trace did not fall or its undamped one rose. float32 decides that where its rounding cannot matter, and
// otherwise float64. So after GPTQ pass the damping that GPTQ had: with much more, many rows have nowhere to go.
// kept_OI, bool [O, I] (undefined: all), says which weights are kept. A pruned weight stays exactly 0, whatever
// weight_OI holds, and its code follows the zero point. `start` must hold pruned weights at 0. Rows are independent and
// split over OpenMP threads; any number of threads gives the same bits.
// Throws std::invalid_argument for shapes, values that are not finite, options, and a pruned weight that `start` does
// not hold at 0. Throws what validate(start) throws.
RefineResult refine(const at::Tensor& weight_OI, const runtime::QuantizedWeight& start, const DampedHessian& hessian,
                    const RefineOptions& options, const at::Tensor& kept_OI = {});
// Damps hessian_II for one layer and refines it.
RefineResult refine(const at::Tensor& weight_OI, const runtime::QuantizedWeight& start, const at::Tensor& hessian_II,
                    const RefineOptions& options, const at::Tensor& kept_OI = {});

}  // namespace pare::quant
