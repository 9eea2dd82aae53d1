// One worker's rows of a weight under a mask, in normalized columns (normalized_hessian.h), and the steps that solvers
// share. Rows never look at one another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "prune/normalized_hessian.h"

namespace pare::prune {

inline constexpr int64_t kMaskedRowChunk = 96;

struct MaskedRows {
  int64_t num_rows = 0, num_in = 0;
  at::Tensor target_RI;    // float32, the weight to be fitted: W D
  at::Tensor solution_RI;  // float32, Z D; zero where it is not kept
  std::vector<char> kept_RI;
};

// Returns rows [first_row, first_row + num_rows) in normalized columns. Dead columns become 0.
at::Tensor normalized_rows(const at::Tensor& weight_OI, const NormalizedHessian& hessian, int64_t first_row,
                           int64_t num_rows);

// Runs conjugate gradients on Hn restricted to each row's kept columns, all rows at once (one product with Hn per
// step). With enough steps it gives the exact least squares, whatever the start. A row stops when a step lowers its
// trace by less than the share `tolerance`.
void conjugate_gradients(MaskedRows& rows, const at::Tensor& normalized_II, int num_steps, double tolerance);

// Writes the solution in the weight's own columns into rows of out_OI. Kept weights of dead columns take their value
// from own_OI.
void store_rows(const MaskedRows& rows, const NormalizedHessian& hessian, const at::Tensor& own_OI, int64_t first_row,
                at::Tensor& out_OI);

}  // namespace pare::prune
