// The linears that read a norm, with gradients: one node of autograd that keeps the norm's input alone. What they
// multiply is made again in the backward pass, which costs a pass over the rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/format/input_format.h"

namespace pare {

// Root mean square norm in front of linears: gain_D [D] float32; type: of what it gives, which is what is multiplied
// in.
struct NormOfInput {
  at::Tensor gain_D;
  double epsilon;
  at::ScalarType type;
};
// weight_OI [O, D] of the type that is multiplied in, or held in a narrower one (held_linear); bias_O [O] of that type,
// or undefined.
struct LinearOperands {
  at::Tensor weight_OI, bias_O;
};

// round_input(rms_norm_rows(x)) weight^T + bias of each linear: [..., O] in the norm's type. x [..., D] float32 or
// bfloat16; format: of all the linears' inputs, null for plain. Gradients of weights are in the norm's type. Throws
// std::invalid_argument for other shapes and types (row_functions.h), and for no linears.
std::vector<at::Tensor> norm_linears(const at::Tensor& x, const NormOfInput& norm, const InputFormat* format,
                                     const std::vector<LinearOperands>& linears);

}  // namespace pare
