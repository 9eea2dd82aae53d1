// Products of matrices: in float32 on a CPU by kernels of our own (runtime/cpu/float_products.h), which record no
// gradients, elsewhere by LibTorch's operators. Their bits do not depend on the number of threads.
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

// Returns x weight^T + bias, [..., O], of x [..., I] and weight [O, I], all of one type and device, as torch's linear.
at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight_OI, const std::optional<at::Tensor>& bias_O);

}  // namespace pare::compress
