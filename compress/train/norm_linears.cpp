#include "compress/train/norm_linears.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "compress/train/row_functions.h"
#include "quant/checked_tensor.h"

namespace pare {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> given(const at::Tensor& bias_O) {
  return bias_O.defined() ? std::optional(bias_O) : std::nullopt;
}

struct NormLinears : torch::autograd::Function<NormLinears> {
  static at::Tensor normalized(const at::Tensor& x, const at::Tensor& gain_D, double epsilon, at::ScalarType type,
                               const InputFormat* format) {
    const at::NoGradGuard no_grad;
    return round_input(rms_norm_rows(x, gain_D, epsilon, type), format);
  }

  // operands: the weights of all linears, then the biases of those that have one.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain_D, double epsilon,
                               at::ScalarType type, const InputFormat* format,
                               const std::vector<int64_t>& linears_with_bias, at::TensorList operands) {
    const size_t num_linears = operands.size() - linears_with_bias.size();
    variable_list saved = {x, gain_D};
    for (const at::Tensor& weight_OI : operands.slice(0, num_linears)) saved.push_back(weight_OI);
    context->save_for_backward(std::move(saved));
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["type"] = static_cast<int64_t>(type);
    context->saved_data["format"] = reinterpret_cast<int64_t>(format);
    context->saved_data["linears_with_bias"] = linears_with_bias;
    const at::Tensor input = normalized(x, gain_D, epsilon, type, format);
    std::vector<std::optional<at::Tensor>> biases(num_linears);
    for (size_t b = 0; b < linears_with_bias.size(); ++b) {
      biases[static_cast<size_t>(linears_with_bias[b])] = operands[num_linears + b];
    }
    variable_list outputs;
    for (size_t i = 0; i < num_linears; ++i) outputs.push_back(at::linear(input, operands[i].to(type), biases[i]));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &gain_D = saved[1];
    const double epsilon = context->saved_data["epsilon"].toDouble();
    // The graph keeps numbers and tensors alone.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const format = reinterpret_cast<const InputFormat*>(context->saved_data["format"].toInt());
    const std::vector<int64_t> linears_with_bias = context->saved_data["linears_with_bias"].toIntVector();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const at::Tensor input_RD = normalized(x, gain_D, epsilon, type, format).reshape({-1, gain_D.size(0)});
    constexpr size_t kTensors = 2;  // x and the gain, in front of the operands
    const auto rows_of = [](const at::Tensor& dy) { return dy.reshape({-1, dy.size(-1)}); };
    variable_list results = {{}, {}, {}, {}, {}, {}};  // x, gain, epsilon, type, format, linears_with_bias
    at::Tensor dinput_RD;
    for (size_t i = 0; i < gradients.size(); ++i) {
      at::Tensor dweight_OI;
      if (gradients[i].defined()) {
        const at::Tensor dy_RO = rows_of(gradients[i]);
        if (context->needs_input_grad(kTensors + i)) dweight_OI = at::mm(dy_RO.t(), input_RD);
        const at::Tensor part_RD = at::mm(dy_RO, saved[kTensors + i].to(type));
        dinput_RD = dinput_RD.defined() ? dinput_RD.add_(part_RD) : part_RD;
      }
      results.push_back(dweight_OI);
    }
    for (size_t b = 0; b < linears_with_bias.size(); ++b) {
      const at::Tensor& dy = gradients[static_cast<size_t>(linears_with_bias[b])];
      const bool is_needed = dy.defined() && context->needs_input_grad(kTensors + gradients.size() + b);
      results.push_back(is_needed ? rows_of(dy).sum(0) : at::Tensor());
    }
    if (dinput_RD.defined()) {
      const NormGradients of_norm = rms_norm_rows_backward(x, gain_D, epsilon, dinput_RD.view(x.sizes()));
      results[0] = of_norm.x;
      results[1] = of_norm.gain_D;
    }
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> norm_linears(const at::Tensor& x, const NormOfInput& norm, const InputFormat* format,
                                     const std::vector<LinearOperands>& linears) {
  if (linears.empty()) throw std::invalid_argument("norm_linears: expected a linear at least, found none");
  std::vector<at::Tensor> operands, biases;
  std::vector<int64_t> linears_with_bias;
  for (const LinearOperands& linear : linears) {
    if (linear.weight_OI.dim() != 2 || !may_be_held_as(linear.weight_OI.scalar_type(), norm.type) ||
        linear.weight_OI.size(1) != x.size(-1)) {
      throw std::invalid_argument("norm_linears: expected weights [O, " + std::to_string(x.size(-1)) + "] of " +
                                  std::string(at::toString(norm.type)) + " or narrower, found " +
                                  linear.weight_OI.toString() + " " + shape_text(linear.weight_OI));
    }
    if (linear.bias_O.defined()) {
      linears_with_bias.push_back(static_cast<int64_t>(operands.size()));
      biases.push_back(linear.bias_O);
    }
    operands.push_back(linear.weight_OI);
  }
  operands.insert(operands.end(), biases.begin(), biases.end());
  if (!x.is_cpu()) {
    const at::Tensor input = round_input(rms_norm_rows(x, norm.gain_D, norm.epsilon, norm.type), format);
    std::vector<at::Tensor> outputs;
    for (const LinearOperands& linear : linears) {
      outputs.push_back(at::linear(input, linear.weight_OI.to(norm.type), given(linear.bias_O)));
    }
    return outputs;
  }
  return NormLinears::apply(x, norm.gain_D, norm.epsilon, norm.type, format, linears_with_bias,
                            at::TensorList(operands));
}

}  // namespace pare
