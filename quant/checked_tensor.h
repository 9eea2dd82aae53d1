// Checks of the tensors that passes are given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pare::quant {

// Returns a tensor's shape as text, e.g. "[576, 192]".
std::string shape_text(const at::Tensor& tensor);

// Returns what a message says was found: a tensor's type and shape, or "none" for an undefined one.
std::string found_text(const at::Tensor& tensor);

// Returns a contiguous view or copy of a float32 matrix [rows, columns] in host memory, detached from any gradient.
// Throws std::invalid_argument with `name` when the matrix is something else or has no element.
at::Tensor checked_float_matrix(const at::Tensor& matrix, const std::string& name);

// Returns the index of the first value that is NaN or infinite, or -1.
int64_t find_non_finite(const float* values, int64_t num_values);

// Throws std::invalid_argument with the first element of `matrix` (contiguous, float32) that is not finite. `advice`
// ends the message.
void check_finite(const at::Tensor& matrix, const std::string& name, const std::string& advice);

// Checks a layer's weight: checked_float_matrix and check_finite.
at::Tensor checked_weight(const at::Tensor& weight_OI);

// Throws std::invalid_argument unless the mask of kept weights is bool [num_out, num_in] in host memory.
void check_kept(const at::Tensor& kept_OI, int64_t num_out, int64_t num_in);

// Checks as checked_weight and check_kept do, and returns the weight with 0 in the pruned places. If kept_OI is
// undefined, all are kept.
at::Tensor checked_weight(const at::Tensor& weight_OI, const at::Tensor& kept_OI);

// Throws std::invalid_argument unless weights that share an input have either no mask at all or one each.
void check_num_masks(size_t num_masks, size_t num_weights);

// Checks a layer's Hessian, a mean of x x^T: a float32 matrix, square, finite and symmetric up to rounding, without
// negative values on its diagonal. The message names the element.
at::Tensor checked_hessian(const at::Tensor& hessian_II);

}  // namespace pare::quant
