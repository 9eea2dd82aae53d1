// GPTQ (Frantar et al., arXiv 2210.17323) rounds a layer's columns one after another and spreads each column's error
// over the columns not yet rounded. This keeps tr((W - W') H (W - W')^T) small.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/column_loop.h"
#include "quant/grid.h"

namespace pare::quant {

// Deviations from the plan. The caller lists them and stores them in the manifest.
struct GptqEvents {
  double damping_used = 0.0;           // > options.damping when the ladder (x10 up to 1) was climbed
  int64_t num_dead_columns = 0;        // diag(H) == 0: the input never fires; such a column is rounded to its nearest
                                       // grid points, spreads no error and takes none
  bool fell_back_to_rounding = false;  // no damping up to 1 made H positive definite
};

struct GptqResult {
  runtime::QuantizedWeight weight;
  double trace_error = 0.0;     // the result's, under the undamped H
  double relative_error = 0.0;  // trace_error / tr(W H W^T); 0 where that is 0
  GptqEvents events;
  at::Tensor kept_OI = {};  // bool [O, I], the mask given or chosen; undefined: all are kept
};

// The values that a Hessian gives to every layer that reads its input (q, k and v, or gate and up). It is factored
// once.
struct GptqFactor {
  at::Tensor hessian_II;         // float32, as given, storage order
  at::Tensor diagonal_I;         // float32, its diagonal, storage order
  at::Tensor conditional_I;      // float32, 1 / diag(H^-1) of the damped H: what a column's error costs when all others
                                 // make up for it. 0 for dead columns, diag(H) after a fallback. In storage order
  at::Tensor inverse_factor_II;  // float32, upper triangular, columns in the order of rounding: see factorization.h;
                                 // the identity after a fallback, with which GPTQ is rounding
  std::vector<int64_t> order_I;  // order_I[p]: the column that is rounded at position p
  double damping = 0.0;          // the options it was made with
  ActOrder act_order = ActOrder::static_groups;
  int64_t columns_together = 1;
  GptqEvents events;
};

// Factors hessian_II, float32 [I, I] and symmetric, with options.damping and options.act_order. An act-order moves
// whole runs of columns_together neighbouring columns, ordered by the sums of their diag(H). A loop that keeps N of M
// needs runs of M.
// Throws std::invalid_argument for shape, damping, values that are not finite, a matrix that is not symmetric or has a
// negative diagonal, and columns_together that do not divide I.
GptqFactor factorize(const at::Tensor& hessian_II, const GptqOptions& options, int64_t columns_together = 1);

// Rounds weight_OI, float32 [O, I]. Rows are independent, and threads split them in fixed chunks, so any number of
// threads gives the same codes.
// The mask is given or chosen in the same loop (SparseGPT's joint sparsification and quantization, arXiv 2301.00774,
// section 3.5). A pruned weight takes the code of its group's zero, and its whole value is the error that is spread.
// Grids are searched without pruned weights. Where the loop chooses the mask, they are searched without those that
// estimated_mask prunes. The result's pattern is left to the caller.
// Where measures_error is false, the result's errors are 0: a refinement that follows finds them on its way.
// Throws std::invalid_argument for shapes, options, options other than the factor's, values that are not finite, scales
// that do not fit (see search_grid), and masks (see check_mask).
GptqResult gptq(const at::Tensor& weight_OI, const GptqFactor& factor, const GptqOptions& options,
                const ColumnMask& mask = {}, bool measures_error = true);

// Factors and rounds one layer whose weights are all kept.
GptqResult gptq(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const GptqOptions& options);

// Returns the loop of gptq and sparsegpt over one weight, checked. Throws std::invalid_argument for shapes, block_size,
// values that are not finite, and masks (see check_mask).
ColumnLoop make_column_loop(const at::Tensor& weight_OI, const GptqFactor& factor, int64_t block_size,
                            const ColumnMask& mask);

}  // namespace pare::quant
