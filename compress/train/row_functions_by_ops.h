// The functions of row_functions.h as LibTorch's operators, with its gradients: for tensors on a GPU. What they compute
// is the same; they keep more for the backward pass.
#pragma once

#include "compress/train/row_functions.h"

namespace pare {

at::Tensor rms_norm_rows_by_ops(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out);
at::Tensor rotate_heads_by_ops(const at::Tensor& x_BTHK, const RotaryAngles& angles);
at::Tensor gated_activation_by_ops(const at::Tensor& gate_RF, const at::Tensor& up_RF, Activation activation);

}  // namespace pare
