// Kept weights solved anew as the least squares they are: min tr((W - Z) H (W - Z)^T) over Z that is zero where the
// mask says so, H damped.
//
// Every row is a system of its own, (Hn)_KK with K its kept columns, but all rows share Hn: a step of conjugate
// gradients on the masked systems is one product with a dense matrix for all rows. ADMM with one factorization for all
// rows (Boza, arXiv 2401.02938, algorithm 1) takes as many rounds of the same cost.
#pragma once

#include "prune/normalized_hessian.h"
#include "prune/options.h"

namespace pare {

// Throws std::invalid_argument for what the fields of the options do not allow.
void check_resolve_options(const ResolveOptions& options);

struct ResolveResult {
  at::Tensor weight_OI;       // float32, zero where it is not kept
  double trace_before = 0.0;  // tr((W - Z) H (W - Z)^T) of the start, under the H given, without damping
  double trace_after = 0.0;   // <= trace_before
  int64_t num_rows_left = 0;  // that stayed as they were, since the solution would not have been better
};

// target_OI float32 [O, I]: W; start_OI likewise, zero where kept_OI (bool) is false: what chose the mask left there.
// Uses all of `options` but damping, which `hessian` has. What falls is the trace under the damped H (quant/refine.h
// says why); a row whose damped trace, summed in float64, did not fall or whose undamped one rose stays as it was. Kept
// weights of dead columns stay as they are. Any number of threads gives the same bits. Throws std::invalid_argument:
// shapes, values that are not finite, a start that is not zero off the mask, options.
ResolveResult resolve(const at::Tensor& target_OI, const at::Tensor& start_OI, const at::Tensor& kept_OI,
                      const NormalizedHessian& hessian, const ResolveOptions& options);

// The exact solution in float64: one Cholesky factorization of H_KK a row, I^3 / 24 multiplications for every row at
// 2:4: for small layers, and the oracle of the above. Where H_KK is singular, the solution nearest to the
// target in normalized columns.
at::Tensor resolve_exact(const at::Tensor& target_OI, const at::Tensor& kept_OI, const NormalizedHessian& hessian);

}  // namespace pare
