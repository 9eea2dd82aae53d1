// The loop over columns of GPTQ (arXiv 2210.17323, Algorithm 1) and SparseGPT (arXiv 2301.00774, Algorithm 1). One
// column after the other takes the values that a rule allows, and the error is spread over the later columns. The rule
// allows a grid's points (gptq), zeros in pruned places (sparsegpt), or both. With U = Cholesky(H^-1)^T, for the
// columns k in order, in blocks of block_size (2210.17323, section 3.3, step 2):
//   Q_k   = rule(W_k),  E_k = (W_k - Q_k) / U_kk
//   W_j  -= E_k U_kj   for the later columns j of the block (equation 2 by the Cholesky rows)
//   W_J  -= E U_J      for all columns J after the block, one matrix product.
//
// A mask is given, or the loop chooses it from w^2 / U_kk^2. That is what pruning a weight costs once the later columns
// have made up for it. The loop uses the weights as they have become by then (2301.00774, section 3.2, "adaptive mask
// selection"):
//   N of M   in each row, when the loop reaches the first of M columns; ties keep the earlier column
//   a ratio  of each block [O, B], before its first column; ties keep the earlier row, then the earlier column.
//
// A worker takes kLoopRows rows and keeps them transposed, [I, R], so that a column's rows lie side by side. The loop
// inside a block then runs over rows with full vectors, and the product after the block needs no copy. All of it is
// float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/format/linear_weights.h"

namespace pare::quant {

// Says which weights are kept. All others are pruned to 0. At most one of the first three is set; if none is, all are
// kept.
struct ColumnMask {
  at::Tensor kept_OI = {};              // bool [O, I], given
  runtime::SparsePattern pattern = {};  // chosen: N of M neighbouring columns of each row
  double ratio = 0.0;                   // chosen: the share of each block that is pruned, 0 .. 1
  // bool [O, I], given beside a choice. Weights that are false here are pruned: they count among those that a choice
  // prunes, and are no candidates.
  at::Tensor allowed_OI = {};

  bool is_chosen() const { return !pattern.is_dense() || ratio > 0.0; }
  bool keeps_all() const { return !kept_OI.defined() && !is_chosen(); }
};

// One worker's rows, transposed, with columns in the order of the loop.
struct LoopRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  at::Tensor weight_IR;                  // float32, moved by the errors of the earlier columns
  std::vector<uint8_t> kept_IR;          // 1: kept; empty: all are
  std::vector<uint8_t> allowed_IR = {};  // 1: may be kept by a choice; empty: all may
};

// Decides the values of one worker's rows. One is made for each chunk of rows and called by one thread at a time.
class ColumnRule {
 public:
  virtual ~ColumnRule() = default;
  // Settles the values of the column at `position` of the order. Its weights and its mask (if there is one) are ready,
  // and the rule may write its weights. Writes errors_R = (w - value) / pivot.
  virtual void column(int64_t position, float pivot, LoopRows& rows, float* errors_R) = 0;
  // Called when all columns are settled.
  virtual void finish(const LoopRows& rows) = 0;
};

struct ColumnLoop {
  at::Tensor weight_OI;          // float32, contiguous
  at::Tensor inverse_factor_II;  // U, float32, columns in the loop's order
  std::vector<int64_t> order_I;  // order_I[p]: the column at position p
  // Costs by position: 1 / U_pp, 0 for a dead column, sqrt(H_pp) after GPTQ's fallback. A weight's score is |w| times
  // this.
  std::vector<float> costs_I;
  int64_t block_size = 128;  // rounded up to a multiple of M where N of M are kept
  ColumnMask mask;
};

// Throws std::invalid_argument for more than one way to choose, allowed_OI without one, and a mask of another shape or
// type. Throws it for a pattern without 0 < N < M, columns that M does not divide, an order that tears groups of M
// apart, and a ratio outside 0 .. 1.
void check_mask(const ColumnMask& mask, int64_t num_out, const std::vector<int64_t>& order_I);

// Runs the loop with one rule for each chunk of rows. Rows are split in fixed chunks, so any number of threads gives
// the same bits. Returns the mask, bool [O, I], whether given or chosen; undefined when all are kept.
at::Tensor run_column_loop(const ColumnLoop& loop,
                           const std::function<std::unique_ptr<ColumnRule>(const LoopRows&)>& make_rule);

// Returns the mask that the loop would choose if no error were spread. It is an estimate that is available before the
// loop.
at::Tensor estimated_mask(const ColumnLoop& loop);

}  // namespace pare::quant
