// What a block does row by row, with gradients: norms, rotations of heads, rounding, gated activations with the linear
// that reads them. Each is one node of autograd that keeps its inputs and nothing else. float32 or bfloat16 in and out,
// arithmetic of rows in float32.
//
// The same bits for any number of threads: rows are independent, and sums over rows (the gradient of a gain) are taken
// over chunks of a fixed number of rows and then in their order.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/format/dtype.h"
#include "runtime/format/input_format.h"
#include "runtime/model/model_description.h"

namespace pare {

// y = x / sqrt(mean(x^2) + epsilon) * gain along the last dimension (Zhang and Sennrich, arXiv 1910.07467, equation 4).
// x_RD [..., D] float32 or bfloat16, gain_D [D] float32; the result has x's shape and the type `out`. The gain's
// gradient is float32. Throws std::invalid_argument for other shapes and types.
at::Tensor rms_norm_rows(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out);

// Its gradients by x (x's type) and by the gain (float32), of dy with the result's shape and type. On a CPU.
struct NormGradients {
  at::Tensor x, gain_D;
};
NormGradients rms_norm_rows_backward(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon,
                                     const at::Tensor& dy_RD);

// Angles of positions 0 .. T - 1, float32 [T, K / 2].
struct RotaryAngles {
  at::Tensor cosine_TJ, sine_TJ;
};
// Halves of each head rotated by the angles of its position (Su et al., arXiv 2104.09864, as rotate_half has it).
// x_BTHK [B, T, H, K], float32 or bfloat16; T at most the angles'. Throws std::invalid_argument as above.
at::Tensor rotate_heads(const at::Tensor& x_BTHK, const RotaryAngles& angles);

// x rounded as the runtime rounds it, each sequence of [B, T, I] by itself; gradients pass straight through. format:
// null for x itself.
at::Tensor round_input(const at::Tensor& x, const InputFormat* format);

// The type that holds a weight stored as `stored` (F32, F16, BF16) in the least memory, of those that stand for the
// type `compute` in products: on a CPU float32 is multiplied with weights of 16 bits, whose values are among its own.
at::ScalarType held_type(DType stored, at::ScalarType compute, at::Device device);
// Whether a weight of that type stands for one of the type `compute`.
bool may_be_held_as(at::ScalarType held, at::ScalarType compute);
// x weight^T + bias, [..., O] in x's type. weight_OI [O, I] may be held in a narrower type of the same values
// (held_type): it is widened for each product, and a model in bfloat16 or float16 that is multiplied in float32
// takes half the memory. Its gradient has x's type, which a leaf in the narrower type must allow
// (at::Tensor::set_grad_dtype). bias_O: undefined for none. Throws std::invalid_argument for other shapes and types.
at::Tensor held_linear(const at::Tensor& x, const at::Tensor& weight_OI, const at::Tensor& bias_O);

// round_input(activation(gate) * up, format) weight^T + bias, [..., O] of gate and up [..., F] of one type and shape.
// What is multiplied is not kept but computed again in the backward pass. weight_OF and bias_O: as in held_linear.
// Throws std::invalid_argument as above.
at::Tensor gated_linear(const at::Tensor& gate_RF, const at::Tensor& up_RF, Activation activation,
                        const InputFormat* format, const at::Tensor& weight_OF, const at::Tensor& bias_O);

}  // namespace pare
