#include "compress/model/stage_products.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "compress/model/matrix_products.h"
#include "compress/model/row_functions.h"
#include "quant/checked_tensor.h"

namespace pare::compress {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> given(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

struct StageProducts : torch::autograd::Function<StageProducts> {
  // A call but for its tensors: `input` has none here. They are saved as tensors, so that autograd frees them.
  struct Call : torch::CustomClassHolder {
    StageInput input;
    const runtime::InputFormat* format = nullptr;
    std::vector<size_t> linears_with_bias;
  };

  static at::Tensor input_of(const Call& call, const at::Tensor& first, const at::Tensor& second) {
    const at::NoGradGuard no_grad;
    StageInput input = call.input;
    input.first = first;
    input.second = second;
    return input.value(call.format);
  }

  // operands: the weights of all linears, then the biases of those that have one.
  static variable_list forward(AutogradContext* context, const at::Tensor& first,
                               const std::optional<at::Tensor>& given_second, const c10::intrusive_ptr<Call>& call,
                               at::TensorList operands) {
    const size_t num_linears = operands.size() - call->linears_with_bias.size();
    const at::Tensor second = given_second.value_or(at::Tensor());
    variable_list saved = {first, second};
    for (const at::Tensor& weight_OI : operands.slice(0, num_linears)) saved.push_back(weight_OI);
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    const at::Tensor input = input_of(*call, first, second);
    std::vector<std::optional<at::Tensor>> biases(num_linears);
    for (size_t b = 0; b < call->linears_with_bias.size(); ++b) {
      biases[call->linears_with_bias[b]] = operands[num_linears + b];
    }
    variable_list outputs;
    for (size_t i = 0; i < num_linears; ++i) {
      outputs.push_back(linear_of(input, operands[i].to(input.scalar_type()), biases[i]));
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &first = saved[0], &second = saved[1];
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const size_t num_inputs = second.defined() ? 2 : 1;  // tensors in front of the operands
    const bool needs_input = context->needs_input_grad(0) || (num_inputs == 2 && context->needs_input_grad(1));
    variable_list results = {{}, {}, {}};  // first, second, call
    at::Tensor input_RI, dinput_RI;
    for (size_t i = 0; i < gradients.size(); ++i) {
      at::Tensor& dweight_OI = results.emplace_back();
      if (!gradients[i].defined()) continue;
      const at::Tensor dy_RO = rows_of(gradients[i]);
      if (context->needs_input_grad(num_inputs + i)) {
        if (!input_RI.defined()) input_RI = rows_of(input_of(*call, first, second));
        dweight_OI = matrix_product(dy_RO.t(), input_RI);
      }
      if (!needs_input) continue;
      const at::Tensor part_RI = matrix_product(dy_RO, saved[2 + i].to(call->input.type));
      dinput_RI = dinput_RI.defined() ? dinput_RI.add_(part_RI) : part_RI;
    }
    for (size_t b = 0; b < call->linears_with_bias.size(); ++b) {
      const at::Tensor& dy = gradients[call->linears_with_bias[b]];
      const bool is_needed = dy.defined() && context->needs_input_grad(num_inputs + gradients.size() + b);
      results.push_back(is_needed ? rows_of(dy).sum(0) : at::Tensor());
    }
    if (!dinput_RI.defined()) return results;
    const at::Tensor dinput = dinput_RI.view(first.sizes());
    if (call->input.kind == StageInput::Kind::plain) {
      results[0] = dinput;
    } else if (call->input.kind == StageInput::Kind::norm) {
      std::tie(results[0], results[1]) = rms_norm_rows_backward(first, second, call->input.epsilon, dinput);
    } else {
      std::tie(results[0], results[1]) = gated_activation_backward(first, second, call->input.activation, dinput);
    }
    return results;
  }
};

// True if a weight of that type stands for one of the type `compute`.
bool may_be_held_as(at::ScalarType held, at::ScalarType compute) {
  return (held == compute && (held == at::kFloat || held == at::kBFloat16)) ||
         (compute == at::kFloat && (held == at::kBFloat16 || held == at::kHalf));
}

}  // namespace

StageInput StageInput::plain(const at::Tensor& x) {
  return {.first = x, .second = {}, .type = x.scalar_type()};
}

StageInput StageInput::norm(const at::Tensor& x, const at::Tensor& gain_I, double epsilon, at::ScalarType type) {
  return {.kind = Kind::norm, .first = x, .second = gain_I, .epsilon = epsilon, .type = type};
}

StageInput StageInput::gated(const at::Tensor& gate, const at::Tensor& up, runtime::Activation activation) {
  return {.kind = Kind::gated, .first = gate, .second = up, .activation = activation, .type = gate.scalar_type()};
}

at::Tensor StageInput::value(const runtime::InputFormat* format) const {
  if (kind == Kind::plain) return round_input(first, format);
  return round_made(
      kind == Kind::norm ? rms_norm_rows(first, second, epsilon, type) : gated_activation(first, second, activation),
      format);
}

void StageInput::write(at::Tensor& out) const {
  if (kind == Kind::plain || !has_row_kernels(first)) {
    out.copy_(value());
  } else if (kind == Kind::norm) {
    rms_norm_rows_to(first, second, epsilon, out);
  } else {
    gated_activation_to(first, second, activation, out);
  }
}

std::vector<at::Tensor> stage_products(const StageInput& input, const runtime::InputFormat* format,
                                       const std::vector<LinearOperands>& linears) {
  if (linears.empty()) throw std::invalid_argument("stage_products: expected a linear at least, found none");
  auto call = c10::make_intrusive<StageProducts::Call>();
  std::vector<at::Tensor> operands, biases;
  for (const LinearOperands& linear : linears) {
    const at::Tensor& weight_OI = linear.weight_OI;
    if (!weight_OI.defined() || weight_OI.dim() != 2 || !may_be_held_as(weight_OI.scalar_type(), input.type) ||
        input.first.dim() < 1 || weight_OI.size(1) != input.first.size(-1)) {
      throw std::invalid_argument(
          "stage_products: expected an input [..., I] in float32 or bfloat16 and weights "
          "[O, I] of its type or narrower, found " +
          quant::shape_text(input.first) + " in " + at::toString(input.type) + " and " +
          (weight_OI.defined() ? weight_OI.toString() + " " + quant::shape_text(weight_OI) : "none"));
    }
    if (linear.bias_O.defined()) {
      call->linears_with_bias.push_back(operands.size());
      biases.push_back(linear.bias_O);
    }
    operands.push_back(weight_OI);
  }
  if (!at::GradMode::is_enabled() || !has_row_kernels(input.first)) {
    const at::Tensor x = input.value(format);
    std::vector<at::Tensor> outputs;
    for (const LinearOperands& linear : linears) {
      outputs.push_back(linear_of(x, linear.weight_OI.to(input.type), given(linear.bias_O)));
    }
    return outputs;
  }
  operands.insert(operands.end(), biases.begin(), biases.end());
  call->input = input;
  call->input.first = call->input.second = at::Tensor();
  call->format = format;
  // An input that is given is kept as it is multiplied, so that it is not rounded twice.
  const bool is_given = input.kind == StageInput::Kind::plain;
  if (is_given) call->format = nullptr;
  return StageProducts::apply(is_given ? round_input(input.first, format) : input.first, given(input.second), call,
                              at::TensorList(operands));
}

at::Tensor stage_product(const StageInput& input, const runtime::InputFormat* format, const LinearOperands& linear) {
  return stage_products(input, format, {linear}).front();
}

at::ScalarType held_type(runtime::DType stored, at::ScalarType compute, at::Device device) {
  const at::ScalarType type = stored == runtime::DType::BF16  ? at::kBFloat16
                              : stored == runtime::DType::F16 ? at::kHalf
                                                              : at::kFloat;
  return device.is_cpu() && may_be_held_as(type, compute) ? type : compute;
}

}  // namespace pare::compress
