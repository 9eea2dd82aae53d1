// H in normalized columns, which the iterative solvers of this folder work on. With D = diag(sqrt(H_jj)) of the damped
// H, Hn = D^-1 H D^-1 has a diagonal of ones. tr((W - Z) H (W - Z)^T) is the same trace of W D and Z D under Hn. So one
// penalty fits all columns, and no preconditioner is needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pare::prune {

struct NormalizedHessian {
  at::Tensor hessian_II;     // float32, as given
  at::Tensor normalized_II;  // float32, Hn; a dead column (H_jj = 0, its input never fires) has 1 on the diagonal and 0
                             // elsewhere
  at::Tensor root_I;         // float32, the diagonal of D; 0 for dead columns
  double damping = 0.0;      // the value that was added to the diagonal of live columns
};

// Normalizes hessian_II, float32 [I, I] and symmetric. `damping`, 0 .. 1, is relative to mean diag(H) over live
// columns. Throws std::invalid_argument for another damping, and as checked_hessian does.
NormalizedHessian normalize(const at::Tensor& hessian_II, double damping);

// Returns (Hn + penalty I)^-1, float32 [I, I] and symmetric, for penalty > 0. Any number of threads gives the same
// bits. Throws std::invalid_argument for another penalty, and for an H with eigenvalues so far below 0 that the sum is
// not positive definite.
at::Tensor shifted_inverse(const NormalizedHessian& hessian, double penalty);

// E_r H E_r^T of every row of E = W - Z, in float64, under the given H and under the damped one.
struct RowTraces {
  std::vector<double> plain_O, damped_O;
};
// weight_OI and other_OI are float32 [O, I]. Any number of threads gives the same bits.
RowTraces row_traces(const at::Tensor& weight_OI, const at::Tensor& other_OI, const NormalizedHessian& hessian);

}  // namespace pare::prune
