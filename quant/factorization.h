// The factor of the inverse Hessian that the column-by-column methods read (GPTQ's Cholesky reformulation, arXiv
// 2210.17323, section 3.3, step 3).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare::quant {

// The largest accepted || U M U^T - I ||_F / sqrt(I). Codes are chosen with U in float32. They differ from those of an
// exact U by less than the damping changes them, as long as U is good to about three digits. A matrix that is singular
// in float64 gives residuals near 1.
inline constexpr double kFactorTolerance = 1e-4;

// Overwrites M with the upper triangular U, inverse(M) = U^T U, zeros below. M is float64 [I, I], contiguous and
// symmetric. Up to its first factor, row k of U is row k of the inverse of M with the columns before k eliminated.
// Returns false when M is not positive definite, or so nearly singular that U fails kFactorTolerance; M is lost then.
// Beside M it holds two panels of 128 columns. Any number of threads gives the same bits.
bool invert_to_upper_factor(const at::Tensor& matrix_II);

// Returns U and leaves M; nothing where the above returns false.
std::optional<at::Tensor> inverse_upper_factor(const at::Tensor& matrix_II);

}  // namespace pare::quant
