#include "compress/model/row_functions.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/model/row_functions_by_ops.h"
#include "quant/checked_tensor.h"
#include "runtime/engine/routing.h"

namespace pare::compress {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows whose part of a gain's gradient is one partial sum.
constexpr int64_t kRowsOfPartialSum = 64;
constexpr int64_t kRowsOfTask = 16;

bool is_number(const at::Tensor& x) {
  return x.defined() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

void check_numbers(const at::Tensor& x, const std::string& where) {
  if (is_number(x)) return;
  throw std::invalid_argument(where + ": expected float32 or bfloat16, found " +
                              (x.defined() ? x.toString() : std::string("none")));
}

void check_gates(const at::Tensor& gate, const at::Tensor& up) {
  check_numbers(gate, "gated_activation");
  if (up.defined() && up.scalar_type() == gate.scalar_type() && up.sizes() == gate.sizes()) return;
  throw std::invalid_argument("gated_activation: expected gate and up of one type and shape, found " + gate.toString() +
                              " " + quant::shape_text(gate) + " and " +
                              (up.defined() ? up.toString() + " " + quant::shape_text(up) : "none"));
}

// Calls work with a null pointer of the tensor's element type.
template <typename Work>
void for_type(at::ScalarType type, const Work& work) {
  if (type == at::kFloat) {
    work(static_cast<const float*>(nullptr));
  } else {
    work(static_cast<const at::BFloat16*>(nullptr));
  }
}
template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

template <typename T>
float inverse_rms(const T* x, int64_t width, double epsilon) {
  constexpr int64_t kLanes = 16;  // a fixed order, and vectors
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<float>(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < width; ++i, ++lane) lanes[lane] += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + static_cast<float>(epsilon));
}

template <typename X, typename Y>
void norm_rows(const X* x, const float* gain, double epsilon, int64_t num_rows, int64_t width, Y* out) {
  at::parallel_for(0, num_rows, kRowsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const X* row = x + r * width;
      const float factor = inverse_rms(row, width, epsilon);
      for (int64_t i = 0; i < width; ++i) {
        out[r * width + i] = static_cast<Y>(static_cast<float>(row[i]) * factor * gain[i]);
      }
    }
  });
}

// dx = f g dy - x f^3 / D sum(g dy x); partial sums of the gain's gradient, one row of `partial` for a chunk of rows.
template <typename X, typename Y>
void norm_rows_backward(const X* x, const float* gain, const Y* dy, double epsilon, int64_t num_rows, int64_t width,
                        X* dx, float* partial) {
  const int64_t num_chunks = (num_rows + kRowsOfPartialSum - 1) / kRowsOfPartialSum;
  at::parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* const sums = partial + chunk * width;
      const int64_t last = std::min(num_rows, (chunk + 1) * kRowsOfPartialSum);
      for (int64_t r = chunk * kRowsOfPartialSum; r < last; ++r) {
        const X* row = x + r * width;
        const Y* d = dy + r * width;
        const float factor = inverse_rms(row, width, epsilon);
        constexpr int64_t kLanes = 16;
        float lanes[kLanes] = {};
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) {
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            lanes[lane] += gain[i + lane] * static_cast<float>(d[i + lane]) * static_cast<float>(row[i + lane]);
          }
        }
        for (int64_t lane = 0; i < width; ++i, ++lane) {
          lanes[lane] += gain[i] * static_cast<float>(d[i]) * static_cast<float>(row[i]);
        }
        float dot = 0.0f;
        for (const float lane : lanes) dot += lane;
        const float pull = factor * factor * factor * dot / static_cast<float>(width);
        for (int64_t j = 0; j < width; ++j) {
          const auto value = static_cast<float>(row[j]);
          const auto gradient = static_cast<float>(d[j]);
          dx[r * width + j] = static_cast<X>(factor * gain[j] * gradient - value * pull);
          sums[j] += gradient * value * factor;
        }
      }
    }
  });
}

// All contiguous.
void norm_rows(const at::Tensor& x, const at::Tensor& gain_D, double epsilon, const at::Tensor& out) {
  const int64_t width = x.size(-1);
  for_type(x.scalar_type(), [&](auto x_type) {
    for_type(out.scalar_type(), [&](auto y_type) {
      norm_rows(x.const_data_ptr<Element<decltype(x_type)>>(), gain_D.const_data_ptr<float>(), epsilon,
                x.numel() / width, width, out.data_ptr<Element<decltype(y_type)>>());
    });
  });
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain_D, double epsilon,
                            at::ScalarType out_type) {
    const at::Tensor rows = x.contiguous();
    at::Tensor out = at::empty(rows.sizes(), rows.options().dtype(out_type));
    norm_rows(rows, gain_D, epsilon, out);
    context->save_for_backward({rows, gain_D});
    context->saved_data["epsilon"] = epsilon;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto [dx, dgain_D] =
        rms_norm_rows_backward(saved[0], saved[1], context->saved_data["epsilon"].toDouble(), gradients[0]);
    return {dx, dgain_D, {}, {}};
  }
};

// sign 1 rotates forward, -1 back.
template <typename T>
void rotate(const T* x, const RotaryAngles& angles, int64_t num_rows, int64_t num_tokens, int64_t num_heads,
            int64_t head_size, float sign, T* out) {
  const int64_t half = head_size / 2;
  const float* const cosine = angles.cosine_TJ.const_data_ptr<float>();
  const float* const sine = angles.sine_TJ.const_data_ptr<float>();
  at::parallel_for(0, num_rows, kRowsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t t = r % num_tokens;
      for (int64_t h = 0; h < num_heads; ++h) {
        const T* head = x + (r * num_heads + h) * head_size;
        T* rotated = out + (r * num_heads + h) * head_size;
        for (int64_t j = 0; j < half; ++j) {
          const auto low = static_cast<float>(head[j]);
          const auto high = static_cast<float>(head[j + half]);
          const float c = cosine[t * half + j];
          const float s = sign * sine[t * half + j];
          rotated[j] = static_cast<T>(low * c - high * s);
          rotated[j + half] = static_cast<T>(high * c + low * s);
        }
      }
    }
  });
}

at::Tensor rotated(const at::Tensor& x_BTHK, const RotaryAngles& angles, float sign) {
  const at::Tensor x = x_BTHK.contiguous();
  at::Tensor out = at::empty_like(x);
  for_type(x.scalar_type(), [&](auto type) {
    using T = Element<decltype(type)>;
    rotate(x.const_data_ptr<T>(), angles, x.size(0) * x.size(1), x.size(1), x.size(2), x.size(3), sign,
           out.data_ptr<T>());
  });
  return out;
}

struct RotateHeads : torch::autograd::Function<RotateHeads> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine_TJ,
                            const at::Tensor& sine_TJ) {
    context->save_for_backward({cosine_TJ, sine_TJ});
    return rotated(x, {cosine_TJ, sine_TJ}, 1.0f);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {rotated(gradients[0], {saved[0], saved[1]}, -1.0f), {}, {}};
  }
};

// work(first, count) for parts of a fixed size. ATen cuts what goes element by element by the number of threads, and
// what is left of a part behind whole vectors goes through other functions, whose tanh is another; parts of this size
// it leaves whole.
template <typename Work>
void in_parts(int64_t num_elements, const Work& work) {
  constexpr int64_t kElementsOfPart = 1 << 14;
  at::parallel_for(0, (num_elements + kElementsOfPart - 1) / kElementsOfPart, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kElementsOfPart; first < std::min(num_elements, end * kElementsOfPart);
         first += kElementsOfPart) {
      work(first, std::min(kElementsOfPart, num_elements - first));
    }
  });
}

// Contiguous, in one dimension, without a part in any graph.
at::Tensor flat(const at::Tensor& x) {
  return x.detach().contiguous().view({-1});
}

const char* gelu_form(runtime::Activation activation) {
  return activation == runtime::Activation::gelu ? "none" : "tanh";
}

// out: contiguous, and may be the gate itself.
void activate(const at::Tensor& gate, runtime::Activation activation, const at::Tensor& out) {
  const at::Tensor x = flat(gate), y = out.view({-1});
  in_parts(x.numel(), [&](int64_t first, int64_t count) {
    at::Tensor part = y.narrow(0, first, count);
    if (activation == runtime::Activation::relu) {
      at::clamp_min_out(part, x.narrow(0, first, count), 0.0);
    } else if (activation == runtime::Activation::silu) {
      at::silu_out(part, x.narrow(0, first, count));
    } else {
      at::gelu_out(part, x.narrow(0, first, count), gelu_form(activation));
    }
  });
}

at::Tensor activated(const at::Tensor& gate, runtime::Activation activation) {
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  activate(gate, activation, y);
  return y;
}

at::Tensor activation_gradient(const at::Tensor& gradient, const at::Tensor& gate, runtime::Activation activation) {
  const at::Tensor x = flat(gate);
  const at::Tensor dy = flat(gradient);
  const at::Tensor dx = at::empty_like(x);
  in_parts(x.numel(), [&](int64_t first, int64_t count) {
    at::Tensor part = dx.narrow(0, first, count);
    if (activation == runtime::Activation::relu) {
      at::threshold_backward_out(part, dy.narrow(0, first, count), x.narrow(0, first, count), 0.0);
    } else if (activation == runtime::Activation::silu) {
      at::silu_backward_out(part, dy.narrow(0, first, count), x.narrow(0, first, count));
    } else {
      at::gelu_backward_out(part, dy.narrow(0, first, count), x.narrow(0, first, count), gelu_form(activation));
    }
  });
  return dx.view(gate.sizes());
}

// Of gates and ups of one type, contiguous: work(place, gate, up) for each.
template <typename Work>
void for_each_gate(const at::Tensor& gate, const at::Tensor& up, const Work& work) {
  for_type(gate.scalar_type(), [&](auto type) {
    using T = Element<decltype(type)>;
    const T* const gates = gate.const_data_ptr<T>();
    const T* const ups = up.const_data_ptr<T>();
    at::parallel_for(0, gate.numel(), int64_t{1} << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i, static_cast<float>(gates[i]), static_cast<float>(ups[i]), type);
    });
  });
}

// A gate and an up as clamped_swiglu takes them.
struct ClampedPair {
  ClampedPair(float whole_gate, float whole_up)
      : gate(std::min(whole_gate, runtime::kSwigluLimit)),
        up(std::clamp(whole_up, -runtime::kSwigluLimit, runtime::kSwigluLimit)),
        share(1.0f / (1.0f + std::exp(-runtime::kSwigluSlope * gate))) {}
  float gate, up, share;  // the sigmoid
};

void clamped_swiglu_to(const at::Tensor& gate_RF, const at::Tensor& up_RF, const at::Tensor& out_RF) {
  const at::Tensor gate = gate_RF.contiguous(), up = up_RF.contiguous();
  for_each_gate(gate, up, [&](int64_t i, float g, float u, auto type) {
    using T = Element<decltype(type)>;
    const ClampedPair pair(g, u);
    out_RF.data_ptr<T>()[i] = static_cast<T>((pair.up + 1.0f) * pair.gate * pair.share);
  });
}

// What is clamped has no gradient, but for the limit itself.
std::tuple<at::Tensor, at::Tensor> clamped_swiglu_backward(const at::Tensor& gate_RF, const at::Tensor& up_RF,
                                                           const at::Tensor& dy_RF) {
  const at::Tensor gate = gate_RF.contiguous(), up = up_RF.contiguous(), dy = dy_RF.contiguous();
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  for_each_gate(gate, up, [&](int64_t i, float g, float u, auto type) {
    using T = Element<decltype(type)>;
    const ClampedPair pair(g, u);
    const auto d = static_cast<float>(dy.const_data_ptr<T>()[i]);
    const float slope = pair.share * (1.0f + runtime::kSwigluSlope * pair.gate * (1.0f - pair.share));
    dgate.data_ptr<T>()[i] = static_cast<T>(g <= runtime::kSwigluLimit ? d * (pair.up + 1.0f) * slope : 0.0f);
    dup.data_ptr<T>()[i] = static_cast<T>(std::abs(u) <= runtime::kSwigluLimit ? d * pair.gate * pair.share : 0.0f);
  });
  return {dgate, dup};
}

// in_place: x may be overwritten.
at::Tensor rounded_rows(const at::Tensor& x, const runtime::InputFormat& format, bool in_place) {
  at::Tensor rounded = x.to(at::kCPU, at::kFloat).contiguous();  // as the runtime's CPU kernels round
  if (!in_place && rounded.is_alias_of(x)) rounded = rounded.clone();
  const int64_t width = rounded.size(-1);
  const int64_t num_sequences = rounded.dim() == 3 ? rounded.size(0) : 1;
  const int64_t size = rounded.numel() / num_sequences;
  for (int64_t n = 0; n < num_sequences; ++n) {
    runtime::fake_quantize(format, {rounded.data_ptr<float>() + n * size, static_cast<size_t>(size)}, width);
  }
  return rounded.to(x.device(), x.scalar_type());
}

struct RoundInput : torch::autograd::Function<RoundInput> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const runtime::InputFormat* format) {
    return rounded_rows(x, *format, /*in_place=*/false);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], {}}; }
};

struct SavedRouting : torch::CustomClassHolder {
  explicit SavedRouting(const runtime::RoutingDescription& of) : routing(of) {}
  const runtime::RoutingDescription routing;
};

struct RouteRows : torch::autograd::Function<RouteRows> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits_RL,
                               const runtime::RoutingDescription* routing, const at::Tensor* correction_E) {
    const at::Tensor logits = logits_RL.contiguous();
    const int64_t num_rows = logits.size(0), num_logits = logits.size(1), num_chosen = routing->experts_per_token;
    std::span<const float> correction;
    if (correction_E->defined()) {
      correction = {correction_E->const_data_ptr<float>(), static_cast<size_t>(correction_E->numel())};
    }
    const at::Tensor weights_RK = at::empty({num_rows, num_chosen}, logits.options());
    const at::Tensor experts_RK = at::empty({num_rows, num_chosen}, logits.options().dtype(at::kInt));
    for (int64_t r = 0; r < num_rows; ++r) {
      runtime::route_row({logits.const_data_ptr<float>() + r * num_logits, static_cast<size_t>(num_logits)}, *routing,
                         correction, experts_RK.data_ptr<int32_t>() + r * num_chosen,
                         weights_RK.data_ptr<float>() + r * num_chosen);
    }
    const at::Tensor chosen_RK = experts_RK.to(at::kLong);
    context->save_for_backward({logits_RL, chosen_RK, weights_RK});
    context->mark_non_differentiable({chosen_RK});
    context->saved_data["routing"] = c10::IValue::make_capsule(c10::make_intrusive<SavedRouting>(*routing));
    return {chosen_RK, weights_RK};
  }

  // Of routed experts weights = f s / d, with the factor f and the score s. d is the sum of the chosen scores, if that
  // is not too small, or 1.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto held = c10::static_intrusive_pointer_cast<SavedRouting>(context->saved_data["routing"].toCapsule());
    const runtime::RoutingDescription& routing = held->routing;
    const auto row_sums = [](const at::Tensor& x) { return x.sum(-1, /*keepdim=*/true); };
    const int64_t num_routed = saved[0].size(1) - (routing.weighs_shared ? 1 : 0);
    const int64_t num_chosen = routing.routed_per_token();
    const at::Tensor logits_RE = saved[0].narrow(1, 0, num_routed);
    const bool is_sigmoid = routing.scores == runtime::RouterScores::sigmoid;
    const at::Tensor scores_RE = is_sigmoid ? at::sigmoid(logits_RE) : at::softmax(logits_RE, -1);
    const at::Tensor chosen_RK = saved[1].narrow(1, 0, num_chosen), weights_RK = saved[2].narrow(1, 0, num_chosen);
    const at::Tensor dweights_RK = gradients[1].narrow(1, 0, num_chosen);
    at::Tensor dchosen_RK = dweights_RK.mul(routing.weight_factor);
    if (routing.normalizes_top_weights) {
      const at::Tensor sum_R1 = row_sums(scores_RE.gather(-1, chosen_RK));
      const at::Tensor by_sum_R1 = row_sums(dweights_RK.mul(weights_RK)).mul(sum_R1.ge(routing.smallest_sum));
      dchosen_RK = dchosen_RK.sub(by_sum_R1).div(sum_R1.clamp_min(routing.smallest_sum));
    }
    const at::Tensor dscores_RE = at::zeros_like(scores_RE).scatter(-1, chosen_RK, dchosen_RK);
    at::Tensor dlogits_RL = is_sigmoid ? dscores_RE.mul(scores_RE).mul(scores_RE.neg().add(1.0))
                                       : scores_RE.mul(dscores_RE.sub(row_sums(dscores_RE.mul(scores_RE))));
    if (routing.weighs_shared) {
      const at::Tensor weight_R1 = saved[2].narrow(1, num_chosen, 1),
                       dweight_R1 = gradients[1].narrow(1, num_chosen, 1);
      dlogits_RL = at::cat({dlogits_RL, dweight_R1.mul(weight_R1).mul(weight_R1.neg().add(1.0))}, -1);
    }
    return {dlogits_RL, {}, {}};
  }
};

}  // namespace

bool has_row_kernels(const at::Tensor& x) {
  return x.is_cpu();
}

namespace {

void check_norm(const at::Tensor& x_RD, const at::Tensor& gain_D, at::ScalarType out) {
  check_numbers(x_RD, "rms_norm_rows");
  if (!gain_D.defined() || gain_D.scalar_type() != at::kFloat || gain_D.dim() != 1 || x_RD.dim() < 1 ||
      gain_D.size(0) != x_RD.size(-1) || (out != at::kFloat && out != at::kBFloat16)) {
    throw std::invalid_argument(
        "rms_norm_rows: expected x [..., D], a float32 gain [D] and float32 or bfloat16 out, "
        "found x " +
        quant::shape_text(x_RD) + ", gain " +
        (gain_D.defined() ? gain_D.toString() + " " + quant::shape_text(gain_D) : "none"));
  }
}

}  // namespace

at::Tensor rms_norm_rows(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out) {
  check_norm(x_RD, gain_D, out);
  if (!has_row_kernels(x_RD)) return rms_norm_rows_by_ops(x_RD, gain_D, epsilon, out);
  return RmsNorm::apply(x_RD, gain_D.contiguous(), epsilon, out);
}

at::Tensor layer_norm_rows(const at::Tensor& x_RD, const at::Tensor& gain_D, const at::Tensor& bias_D, double epsilon,
                           at::ScalarType out) {
  check_norm(x_RD, gain_D, out);
  return at::layer_norm(x_RD.to(at::kFloat), {x_RD.size(-1)}, gain_D,
                        bias_D.defined() ? std::optional(bias_D) : std::nullopt, epsilon)
      .to(out);
}

namespace {

struct ActivateRows : torch::autograd::Function<ActivateRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, runtime::Activation activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    return activated(x, activation);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto activation = static_cast<runtime::Activation>(context->saved_data["activation"].toInt());
    return {activation_gradient(gradients[0], context->get_saved_variables()[0], activation), {}};
  }
};

}  // namespace

at::Tensor activation_of(const at::Tensor& x, runtime::Activation activation) {
  return has_row_kernels(x) ? ActivateRows::apply(x, activation) : activation_by_ops(x, activation);
}

void rms_norm_rows_to(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::Tensor& out_RD) {
  check_norm(x_RD, gain_D, out_RD.scalar_type());
  norm_rows(x_RD.contiguous(), gain_D.contiguous(), epsilon, out_RD);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_rows_backward(const at::Tensor& x_RD, const at::Tensor& gain_D,
                                                          double epsilon, const at::Tensor& dy_RD) {
  check_numbers(x_RD, "rms_norm_rows_backward");
  check_numbers(dy_RD, "rms_norm_rows_backward");
  const at::Tensor rows = x_RD.contiguous(), dy = dy_RD.contiguous(), gain = gain_D.contiguous();
  const int64_t width = rows.size(-1);
  const int64_t num_rows = rows.numel() / width;
  at::Tensor dx = at::empty_like(rows);
  at::Tensor partial =
      at::zeros({(num_rows + kRowsOfPartialSum - 1) / kRowsOfPartialSum, width}, gain.options().dtype(at::kFloat));
  for_type(rows.scalar_type(), [&](auto x_type) {
    for_type(dy.scalar_type(), [&](auto y_type) {
      using X = Element<decltype(x_type)>;
      norm_rows_backward(rows.const_data_ptr<X>(), gain.const_data_ptr<float>(),
                         dy.const_data_ptr<Element<decltype(y_type)>>(), epsilon, num_rows, width, dx.data_ptr<X>(),
                         partial.data_ptr<float>());
    });
  });
  at::Tensor dgain_D = at::zeros({width}, partial.options());
  for (int64_t chunk = 0; chunk < partial.size(0); ++chunk) dgain_D.add_(partial[chunk]);
  return {dx, dgain_D};
}

at::Tensor rotate_heads(const at::Tensor& x_BTHK, const RotaryAngles& angles) {
  check_numbers(x_BTHK, "rotate_heads");
  const bool fits = x_BTHK.dim() == 4 && angles.cosine_TJ.dim() == 2 &&
                    angles.sine_TJ.sizes() == angles.cosine_TJ.sizes() && angles.cosine_TJ.size(0) >= x_BTHK.size(1) &&
                    2 * angles.cosine_TJ.size(1) == x_BTHK.size(3);
  if (!fits) {
    throw std::invalid_argument("rotate_heads: expected x [B, T, H, K] and angles [>= T, K / 2], found x " +
                                quant::shape_text(x_BTHK) + ", angles " + quant::shape_text(angles.cosine_TJ));
  }
  if (!has_row_kernels(x_BTHK)) return rotate_heads_by_ops(x_BTHK, angles);
  return RotateHeads::apply(x_BTHK, angles.cosine_TJ, angles.sine_TJ);
}

at::Tensor round_input(const at::Tensor& x, const runtime::InputFormat* format) {
  return format == nullptr ? x : RoundInput::apply(x, format);
}

at::Tensor round_made(const at::Tensor& x, const runtime::InputFormat* format) {
  if (format == nullptr || x.requires_grad()) return round_input(x, format);
  return rounded_rows(x, *format, /*in_place=*/true);
}

at::Tensor gated_activation(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation) {
  check_gates(gate_RF, up_RF);
  if (!has_row_kernels(gate_RF)) return gated_activation_by_ops(gate_RF, up_RF, activation);
  if (activation == runtime::Activation::clamped_swiglu) {
    at::Tensor out_RF = at::empty(gate_RF.sizes(), gate_RF.options());
    clamped_swiglu_to(gate_RF, up_RF, out_RF);
    return out_RF;
  }
  return activated(gate_RF, activation).mul_(up_RF);
}

void gated_activation_to(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation,
                         at::Tensor& out_RF) {
  check_gates(gate_RF, up_RF);
  if (activation == runtime::Activation::clamped_swiglu) return clamped_swiglu_to(gate_RF, up_RF, out_RF);
  activate(gate_RF, activation, out_RF);
  out_RF.mul_(up_RF);
}

std::tuple<at::Tensor, at::Tensor> gated_activation_backward(const at::Tensor& gate_RF, const at::Tensor& up_RF,
                                                             runtime::Activation activation, const at::Tensor& dy_RF) {
  if (activation == runtime::Activation::clamped_swiglu) return clamped_swiglu_backward(gate_RF, up_RF, dy_RF);
  return {activation_gradient(dy_RF.mul(up_RF), gate_RF, activation), activated(gate_RF, activation).mul_(dy_RF)};
}

ExpertRows TokenRouting::rows_of(int64_t expert) const {
  const at::Tensor places_S2 = experts_RK.eq(expert).nonzero();
  const at::Tensor rows_S = places_S2.select(1, 0).contiguous();
  return {rows_S, weights_RK.reshape({-1}).index_select(0, rows_S.mul(weights_RK.size(1)).add(places_S2.select(1, 1)))};
}

TokenRouting route_rows(const at::Tensor& logits_RL, const runtime::RoutingDescription& routing,
                        const at::Tensor& correction_E) {
  if (!has_row_kernels(logits_RL)) return route_rows_by_ops(logits_RL, routing, correction_E);
  const std::vector<at::Tensor> found = RouteRows::apply(logits_RL, &routing, &correction_E);
  return {found[0], found[1]};
}

}  // namespace pare::compress
