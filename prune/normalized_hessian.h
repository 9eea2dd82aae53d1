// H in normalized columns: what the iterative solvers of this folder work on. With D = diag(sqrt(H_jj)) of the damped
// H, Hn = D^-1 H D^-1 has a diagonal of ones, and tr((W - Z) H (W - Z)^T) is the same trace of W D and Z D under Hn:
// one penalty, and no preconditioner, fits all columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pare {

struct NormalizedHessian {
  at::Tensor hessian_II;     // float32, as given
  at::Tensor normalized_II;  // float32, Hn; a dead column (H_jj = 0, its input never fires) is a unit of its own
  at::Tensor root_I;         // float32, the diagonal of D; 0 for dead columns
  double damping = 0.0;      // what was added to the diagonal of live columns
};

// hessian_II float32 [I, I] symmetric; `damping` of mean diag(H) over live columns, 0 .. 1. Throws
// std::invalid_argument: damping, and as checked_hessian does.
NormalizedHessian normalize(const at::Tensor& hessian_II, double damping);

// (Hn + penalty I)^-1, float32 [I, I], symmetric. penalty > 0. Any number of threads gives the same bits.
// Throws std::invalid_argument for an H with eigenvalues so far below 0 that this is not positive definite.
at::Tensor shifted_inverse(const NormalizedHessian& hessian, double penalty);

// E_r H E_r^T of every row of E = W - Z, in float64: under the H given, and under the damped one.
struct RowTraces {
  std::vector<double> plain_O, damped_O;
};
// weight_OI, other_OI float32 [O, I]. Any number of threads gives the same bits.
RowTraces row_traces(const at::Tensor& weight_OI, const at::Tensor& other_OI, const NormalizedHessian& hessian);

}  // namespace pare
