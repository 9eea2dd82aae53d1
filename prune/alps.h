// Chooses the mask inside the re-solving (ALPS: Meng et al., arXiv 2406.07831): min tr((W - Z) H (W - Z)^T) over mask
// and weights together. Z has a pattern, or a number of weights in each row.
//
// ADMM splits the problem: X is any weight, Z has the pattern, and a penalty rho that grows from round to round draws
// them together (section 3.1, equations 3 and 4). Small penalties let the support wander, large ones freeze it. Then
// the kept weights are solved on the support by conjugate gradients (section 3.3).
#pragma once

#include <vector>

#include "prune/mask.h"
#include "prune/normalized_hessian.h"
#include "prune/options.h"

namespace pare::prune {

struct AlpsResult {
  PrunedWeight pruned;
  double trace_error = 0.0;    // tr((W - Z) H (W - Z)^T), under the given H without damping
  int64_t num_rows_wanda = 0;  // rows where Wanda's mask without re-solving had the smaller damped trace
};

// Chooses masks and weights of all layers that read one input, with the same factorizations, one for each penalty.
// targets_OI holds W of each layer, float32 [O, I]; O may differ. rules has one rule for each layer. A rule other than
// a pattern says how many weights each row keeps: as many as it has in the mask of Wanda's scores.
// allowed_OI has one mask for each layer, or is empty. Each is bool [O, I], true where a weight may be kept (undefined:
// everywhere), and the weight must be 0 elsewhere. A row keeps as many of the allowed weights as its rule asks for, or
// all of them if they are fewer. `resolving` says how the final support is solved.
// No row's damped trace is above that of wanda(). Rows never look at one another and are split over OpenMP threads. Any
// number of threads, and any other layers in the same call, gives the same bits.
// Throws std::invalid_argument for shapes, values that are not finite, rules and options.
std::vector<AlpsResult> alps(const std::vector<at::Tensor>& targets_OI, const std::vector<KeepRule>& rules,
                             const NormalizedHessian& hessian, const AlpsOptions& options,
                             const ResolveOptions& resolving, const std::vector<at::Tensor>& allowed_OI = {});

}  // namespace pare::prune
