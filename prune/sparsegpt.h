// SparseGPT (Frantar and Alistarh, arXiv 2301.00774): prunes a layer's columns one after another and spreads what each
// pruned weight was worth over the columns behind it, so as to keep tr((W - W') H (W - W')^T) small. The loop and the
// choice of the mask are those of quant/column_loop.h.
#pragma once

#include "quant/gptq.h"

namespace pare {

inline constexpr int64_t kSparseGptBlock =
    128;  // the paper's, of columns whose mask is chosen, or errors spread, at once

struct SparseGptResult {
  at::Tensor weight_OI;         // float32: +0 where pruned, moved elsewhere
  at::Tensor kept_OI;           // bool
  double trace_error = 0.0;     // against the weight given, under the undamped H
  double relative_error = 0.0;  // trace_error / tr(W H W^T); 0 where that is 0
  GptqEvents events;            // after a fallback, weights are pruned by w^2 H_jj and no error is spread
};

// weight_OI float32 [O, I]. The mask is given, or chosen in the loop (Algorithm 1); a column whose input never fires is
// pruned first. For a pattern, `factor` must keep its groups together (factorize), which an order without act-order
// does anyway. Any number of threads gives the same bits. Throws as make_column_loop does.
SparseGptResult sparsegpt(const at::Tensor& weight_OI, const GptqFactor& factor, const ColumnMask& mask,
                          int64_t block_size = kSparseGptBlock);

}  // namespace pare
