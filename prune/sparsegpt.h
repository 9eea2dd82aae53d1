// SparseGPT (Frantar and Alistarh, arXiv 2301.00774) prunes a layer's columns one after another. It spreads the error
// of each pruned weight over the later columns, which keeps tr((W - W') H (W - W')^T) small. quant/column_loop.h has
// the loop and the choice of the mask.
#pragma once

#include "quant/gptq.h"

namespace pare::prune {

inline constexpr int64_t kSparseGptBlock =
    128;  // the paper's: columns whose mask is chosen, or whose errors are spread, at once

struct SparseGptResult {
  at::Tensor weight_OI;         // float32: +0 where pruned, moved elsewhere
  at::Tensor kept_OI;           // bool
  double trace_error = 0.0;     // against the given weight, under the undamped H
  double relative_error = 0.0;  // trace_error / tr(W H W^T); 0 where that is 0
  quant::GptqEvents events;     // after a fallback, weights are pruned by w^2 H_jj and no error is spread
};

// Prunes weight_OI, float32 [O, I]. The mask is given or chosen in the loop (Algorithm 1). A column whose input never
// fires is pruned first. For a pattern, `factor` must keep its groups together (factorize); without an act-order it
// always does. Any number of threads gives the same bits. Throws as make_column_loop does.
SparseGptResult sparsegpt(const at::Tensor& weight_OI, const quant::GptqFactor& factor, const quant::ColumnMask& mask,
                          int64_t block_size = kSparseGptBlock);

}  // namespace pare::prune
