// Products of matrices: in float32 on a CPU by kernels of our own (runtime/cpu/float_products.h), elsewhere by
// LibTorch's operators. Ours record no gradients, and their bits do not depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare::compress {

// Returns left right, [M, N], of left [M, K] and right [K, N], contiguous or transposed. Both have one type and device.
// Throws std::invalid_argument for other shapes and types.
at::Tensor matrix_product(const at::Tensor& left_MK, const at::Tensor& right_KN);
// The same, with gradients by LibTorch's operator where one of both wants them.
at::Tensor differentiable_product(const at::Tensor& left_MK, const at::Tensor& right_KN);
// Writes it to out_MN, of their type, whose rows may lie apart. is_upper: for a symmetric one, elements below the
// diagonal need not be written.
void matrix_product_to(const at::Tensor& left_MK, const at::Tensor& right_KN, at::Tensor& out_MN,
                       bool is_upper = false);

// Returns x weight^T + bias, [..., O], of x [..., I], weight [O, I] and bias [O], all of one type and device, as
// LibTorch's linear. Throws std::invalid_argument for an x in float32 on a CPU that the others do not fit, and for
// another x what LibTorch throws.
at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight_OI, const std::optional<at::Tensor>& bias_O);

}  // namespace pare::compress
