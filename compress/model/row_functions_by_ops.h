// The functions of row_functions.h as LibTorch's operators, with its gradients, for any device: a GPU has no kernels of
// our own. What they compute is the same; they keep more for the backward pass.
#pragma once

#include "compress/model/row_functions.h"

namespace pare::compress {

at::Tensor rms_norm_rows_by_ops(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out);
at::Tensor rotate_heads_by_ops(const at::Tensor& x_BTHK, const RotaryAngles& angles);
at::Tensor activation_by_ops(const at::Tensor& x, runtime::Activation activation);
at::Tensor gated_activation_by_ops(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation);
// The order of a row's experts is another, and the last bits of their weights may be.
TokenRouting route_rows_by_ops(const at::Tensor& logits_RL, const runtime::RoutingDescription& routing,
                               const at::Tensor& correction_E = {});

}  // namespace pare::compress
