// The choice of the mask inside the re-solving (ALPS: Meng et al., arXiv 2406.07831): min tr((W - Z) H (W - Z)^T) over
// Z with a pattern, or a number of weights in each row, mask and weights together.
//
// ADMM splits it: X is any weight, Z has the pattern, and a penalty rho that grows from round to round draws them
// together (section 3.1, equations 3 and 4). Small penalties let the support wander, large ones freeze it; then the
// kept weights are solved on it by conjugate gradients (section 3.3).
#pragma once

#include <vector>

#include "prune/mask.h"
#include "prune/normalized_hessian.h"
#include "prune/options.h"

namespace pare {

struct AlpsResult {
  PrunedWeight pruned;
  double trace_error = 0.0;    // tr((W - Z) H (W - Z)^T), under the H given, without damping
  int64_t num_rows_wanda = 0;  // rows where Wanda's mask on the weights as they are had the smaller damped trace
};

// targets_OI: W of each layer that reads the input, float32 [O, I], O may differ; the factorizations, one for each
// penalty, serve all of them. rules: one for each. A rule other than a pattern says how many weights each row keeps: as
// many as it has in the mask of Wanda's scores. allowed_OI: one for each layer, or none: bool [O, I], what may be kept
// (undefined: all), where the weight is not 0 besides; a row keeps what a rule asks for of that, or all of it. `resolving` (its conjugate gradients) on the final support. No row's
// damped trace is above that of wanda(). Rows never look at one another and are split over OpenMP threads: any number,
// and any company of layers, gives the same bits. Throws std::invalid_argument: shapes, values that are not finite,
// rules, options.
std::vector<AlpsResult> alps(const std::vector<at::Tensor>& targets_OI, const std::vector<KeepRule>& rules,
                             const NormalizedHessian& hessian, const AlpsOptions& options,
                             const ResolveOptions& resolving, const std::vector<at::Tensor>& allowed_OI = {});

}  // namespace pare
