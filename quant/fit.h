// Moves a layer towards what the original model did in its place. Let x be what the layer reads in the model compressed
// so far, and m what its output there lacks of the original's (m = t - W x for a target t):
//
//   G - W H = E[m x']        the missing correlation, [O, I]; G = E[t x'], H = E[x x']
//   D = E[m x'] (H + ridge mean(diag H) I)^-1
//   S = clamp(tr(D E'[m x']') / tr(D H' D'), 0, 1),   E' and H' over tokens that are in neither H nor E
//   W := W + S D
//
// D is the least-squares step (GPTAQ, arXiv 2504.02692; Qronos, 2505.11695; QEP, 2504.09629). S is the share of it that
// is best on tokens it was not made from: the minimum over 0 <= s <= 1 of E'|m - s D x|^2.
//
// E[m x'] is summed directly and not taken as the difference of G and W H, in whose rounding it would drown. Both are
// dominated by a few directions whose rounding errors the inverse enlarges.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare::quant {

struct FitResult {
  at::Tensor weight_OI;  // float32, with memory of its own
  double share = 0.0;    // S
};

// Returns what H gives to every layer that reads its input: the upper triangular U, float64, with (H + ridge mean(diag
// H) I)^-1 = U^T U (factorization.h). Returns nothing when H is zero or too nearly singular for its ridge; then there
// is no step.
// hessian_II is float32 [I, I] and ridge >= 0. Throws std::invalid_argument as checked_hessian does, and for any other
// ridge.
std::optional<at::Tensor> fit_factor(const at::Tensor& hessian_II, double ridge);

// Returns the weight moved by S D. weight_OI, missing_OI (E[m x']) and held_missing_OI (E'[m x']) are [O, I],
// held_hessian_II (H') is [I, I], all float32. factor_II is what fit_factor returns. Held-out sums that are zero give S
// = 0. Computes in float64, with the same bits for any number of threads. Throws std::invalid_argument for shapes that
// do not agree and for sums that are not finite.
FitResult fit(const at::Tensor& weight_OI, const at::Tensor& factor_II, const at::Tensor& missing_OI,
              const at::Tensor& held_hessian_II, const at::Tensor& held_missing_OI);

}  // namespace pare::quant
