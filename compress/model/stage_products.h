// The products of a stage's linears with the input that they read, with gradients. On a CPU this is one node of
// autograd that keeps what the input is made from. The input itself, a norm or a gated activation, is made again in the
// backward pass, which costs a pass over the rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/format/input_format.h"
#include "runtime/model/model_description.h"

namespace pare::compress {

// A stage's input as a function of tensors, [..., I].
struct StageInput {
  enum class Kind : uint8_t { plain, norm, gated };
  Kind kind = Kind::plain;
  at::Tensor first, second;  // plain: x. norm: x and the gain [I], float32. gated: gate and up.
  double epsilon = 0.0;      // of the norm
  runtime::Activation activation = runtime::Activation::silu;
  at::ScalarType type = at::kFloat;  // the input's, in which it is multiplied: float32 or bfloat16

  static StageInput plain(const at::Tensor& x);
  // The root mean square norm of x (rms_norm_rows).
  static StageInput norm(const at::Tensor& x, const at::Tensor& gain_I, double epsilon, at::ScalarType type);
  // activation(gate) * up.
  static StageInput gated(const at::Tensor& gate, const at::Tensor& up, runtime::Activation activation);

  // The input, rounded as `format` says; null: not rounded. On a CPU without gradients of a gated one.
  at::Tensor value(const runtime::InputFormat* format = nullptr) const;
  // Writes value() to `out`, contiguous, of its shape and type, without gradients.
  void write(at::Tensor& out) const;
};

// weight_OI [O, I] of the input's type, or held in a narrower type of the same values (held_type): it is widened for
// each product, and a model in bfloat16 or float16 that is multiplied in float32 takes half the memory. bias_O [O] of
// the input's type, or undefined.
struct LinearOperands {
  at::Tensor weight_OI, bias_O;
};

// Returns round_input(input, format) weight^T + bias of each linear, [..., O] in the input's type. format: null for an
// input that is not rounded; it must outlive the graph. Gradients of weights have the input's type, which a leaf in a
// narrower type must allow (at::Tensor::set_grad_dtype). Throws std::invalid_argument for other shapes and types, and
// for no linears.
std::vector<at::Tensor> stage_products(const StageInput& input, const runtime::InputFormat* format,
                                       const std::vector<LinearOperands>& linears);
// The same of one linear.
at::Tensor stage_product(const StageInput& input, const runtime::InputFormat* format, const LinearOperands& linear);

// Returns the type that holds a weight stored as `stored` (F32, F16, BF16) in the least memory, of those that stand for
// the type `compute` in products: on a CPU float32 is multiplied with weights of 16 bits, whose values are among its
// own.
at::ScalarType held_type(runtime::DType stored, at::ScalarType compute, at::Device device);

}  // namespace pare::compress
