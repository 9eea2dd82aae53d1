// Solves kept weights again by least squares: min tr((W - Z) H (W - Z)^T) over Z that is zero where the mask says so,
// with H damped.
//
// Every row is a system of its own, (Hn)_KK with K its kept columns, but all rows share Hn. So a step of conjugate
// gradients on the masked systems is one product with a dense matrix for all rows. ADMM with one factorization for all
// rows (Boza, arXiv 2401.02938, algorithm 1) takes as many rounds of the same cost.
#pragma once

#include "prune/normalized_hessian.h"
#include "prune/options.h"

namespace pare::prune {

// Throws std::invalid_argument for options that the fields' ranges do not allow.
void check_resolve_options(const ResolveOptions& options);

struct ResolveResult {
  at::Tensor weight_OI;       // float32, zero where it is not kept
  double trace_before = 0.0;  // tr((W - Z) H (W - Z)^T) of the start, under the given H without damping
  double trace_after = 0.0;   // <= trace_before
  int64_t num_rows_left = 0;  // rows that stayed as they were, because the solution would not have been better
};

// Solves the kept weights of target_OI (W), float32 [O, I], by conjugate gradients or exactly. start_OI is the
// weight after the mask was chosen, also float32 [O, I]; it must be zero where kept_OI (bool [O, I]) is false. Uses all
// of `options` but damping, which `hessian` has.
// The trace that falls is that under the damped H (quant/refine.h says why). A row stays as it was if its damped trace,
// summed in float64, did not fall or its undamped one rose. Kept weights of dead columns stay as they are. Any number
// of threads gives the same bits.
// Throws std::invalid_argument for shapes, values that are not finite, a start that is not zero off the mask, and
// options.
ResolveResult resolve(const at::Tensor& target_OI, const at::Tensor& start_OI, const at::Tensor& kept_OI,
                      const NormalizedHessian& hessian, const ResolveOptions& options);

// Returns the exact solution, float32 [O, I], found in float64. It makes one Cholesky factorization of H_KK per row, at
// 2:4 I^3 / 24 multiplications for every row. Where H_KK is singular, it returns the solution nearest to the target in
// normalized columns. Throws std::invalid_argument for shapes and values that are not finite.
at::Tensor resolve_exact(const at::Tensor& target_OI, const at::Tensor& kept_OI, const NormalizedHessian& hessian);

}  // namespace pare::prune
