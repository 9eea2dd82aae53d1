// What the passes ask of the tensors they are given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pare {

// "[576, 192]"
std::string shape_text(const at::Tensor& tensor);

// A contiguous view or copy of a float32 matrix [rows, columns] in host memory, cut off from any gradient.
// Throws std::invalid_argument naming `name` when it is something else or has no element.
at::Tensor checked_float_matrix(const at::Tensor& matrix, const std::string& name);

// The index of the first value that is NaN or infinite, or -1.
int64_t find_non_finite(const float* values, int64_t num_values);

// Throws std::invalid_argument naming the first element of `matrix` (contiguous, float32) that is not finite; `advice`
// ends the sentence.
void check_finite(const at::Tensor& matrix, const std::string& name, const std::string& advice);

// A layer's weight: checked_float_matrix and check_finite.
at::Tensor checked_weight(const at::Tensor& weight_OI);

// Which of a weight's places are kept: throws std::invalid_argument unless bool [num_out, num_in] in host memory.
void check_kept(const at::Tensor& kept_OI, int64_t num_out, int64_t num_in);

// checked_weight and check_kept, with 0 in the pruned places; kept_OI undefined: all are kept.
at::Tensor checked_weight(const at::Tensor& weight_OI, const at::Tensor& kept_OI);

// Throws std::invalid_argument unless weights that share an input have no mask at all or one each.
void check_num_masks(size_t num_masks, size_t num_weights);

// A layer's Hessian, a mean of x x^T: checked_float_matrix, square, finite, symmetric up to rounding, with a diagonal
// that is not negative; the message names the element.
at::Tensor checked_hessian(const at::Tensor& hessian_II);

}  // namespace pare
