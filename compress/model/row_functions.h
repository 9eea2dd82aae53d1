// What a block does row by row, with gradients: norms, rotations of heads, rounding, gated activations. On a CPU these
// are kernels of our own, each one node of autograd that keeps its inputs and nothing else; elsewhere they are
// LibTorch's operators (row_functions_by_ops.h). They take and give float32 or bfloat16, with the arithmetic of rows in
// float32.
//
// The kernels give the same bits for any number of threads: rows are independent, and sums over rows (the gradient of a
// gain) are taken over chunks of a fixed number of rows and then in their order.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "runtime/format/input_format.h"
#include "runtime/model/model_description.h"

namespace pare::compress {

// True if kernels of our own compute what follows on the tensor's device.
bool has_row_kernels(const at::Tensor& x);

// y = x / sqrt(mean(x^2) + epsilon) * gain along the last dimension (Zhang and Sennrich, arXiv 1910.07467, equation 4).
// x_RD [..., D] float32 or bfloat16, gain_D [D] float32; the result has x's shape and the type `out`. The gain's
// gradient is float32. Throws std::invalid_argument for other shapes and types.
at::Tensor rms_norm_rows(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out);
// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias (Ba et al., arXiv 1607.06450, equation 4), likewise.
// bias_D: undefined for none.
at::Tensor layer_norm_rows(const at::Tensor& x_RD, const at::Tensor& gain_D, const at::Tensor& bias_D, double epsilon,
                           at::ScalarType out);
// activation(x), of x's type and shape, with gradients.
at::Tensor activation_of(const at::Tensor& x, runtime::Activation activation);
// Writes it to out_RD, contiguous, of x's shape; without gradients, on a CPU.
void rms_norm_rows_to(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::Tensor& out_RD);

// Returns its gradients by x (x's type) and by the gain (float32), of dy with the result's shape and type. On a CPU.
std::tuple<at::Tensor, at::Tensor> rms_norm_rows_backward(const at::Tensor& x_RD, const at::Tensor& gain_D,
                                                          double epsilon, const at::Tensor& dy_RD);

// Angles of positions 0 .. T - 1, float32 [T, K / 2].
struct RotaryAngles {
  at::Tensor cosine_TJ, sine_TJ;
  // Views of those of `count` positions from `first` on.
  RotaryAngles positions(int64_t first, int64_t count) const {
    return {cosine_TJ.narrow(0, first, count), sine_TJ.narrow(0, first, count)};
  }
};
// Halves of each head rotated by the angles of its position (Su et al., arXiv 2104.09864, as rotate_half has it).
// x_BTHK [B, T, H, K], float32 or bfloat16; T at most the angles'. Throws std::invalid_argument as above.
at::Tensor rotate_heads(const at::Tensor& x_BTHK, const RotaryAngles& angles);

// x rounded as the runtime rounds it, each sequence of [B, T, I] by itself; gradients pass straight through. format:
// null for x itself.
at::Tensor round_input(const at::Tensor& x, const runtime::InputFormat* format);
// The same of an x that nobody else reads: where it has no gradients, the result may take its memory.
at::Tensor round_made(const at::Tensor& x, const runtime::InputFormat* format);

// activation(gate) * up of gate and up [..., F] of one type and shape. On a CPU the result has no gradients, which
// gated_activation_backward makes. Throws std::invalid_argument as above.
at::Tensor gated_activation(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation);
// Writes it to out_RF, contiguous, of their shape and type; on a CPU.
void gated_activation_to(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation,
                         at::Tensor& out_RF);
// Returns the gradients by gate and by up of dy with the result's shape and type. On a CPU.
std::tuple<at::Tensor, at::Tensor> gated_activation_backward(const at::Tensor& gate_RF, const at::Tensor& up_RF,
                                                             runtime::Activation activation, const at::Tensor& dy_RF);

// The tokens that go to one expert: their rows, ascending, and their weights there.
struct ExpertRows {
  at::Tensor rows_S, weights_S;
};
// Where tokens go: int64 and float32 [R, K].
struct TokenRouting {
  at::Tensor experts_RK, weights_RK;
  ExpertRows rows_of(int64_t expert) const;
};
// The experts of each row and their weights, as the runtime chooses them (runtime/engine/routing.h). logits_RL float32;
// correction_E float32 or undefined; weights have gradients.
TokenRouting route_rows(const at::Tensor& logits_RL, const runtime::RoutingDescription& routing,
                        const at::Tensor& correction_E = {});

}  // namespace pare::compress
