#include "distill/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "distill/by_ops.h"
#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

constexpr int64_t kChunk = 1 << 16;

void check_tensor(const at::Tensor& tensor, const at::Tensor& like, const char* name) {
  if (tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
      tensor.sizes() == like.sizes()) {
    return;
  }
  throw std::invalid_argument("adamw: expected " + std::string(name) + " as contiguous float32 " +
                              quant::shape_text(like) + ", found " +
                              (tensor.defined() ? tensor.toString() + " " + quant::shape_text(tensor) : "none"));
}

}  // namespace

void adamw_step(const at::Tensor& gradient, double factor, int64_t step, double learning_rate,
                const AdamWOptions& options, at::Tensor& value, at::Tensor& first, at::Tensor& second) {
  check_tensor(value, value, "the value");
  check_tensor(gradient, value, "the gradient");
  check_tensor(first, value, "the first moment");
  check_tensor(second, value, "the second moment");
  if (step < 1) throw std::invalid_argument("adamw: steps count from 1, found " + std::to_string(step));
  if (!value.is_cpu()) {
    return adamw_step_by_ops(gradient, factor, step, learning_rate, options, value, first, second);
  }
  const auto steps = static_cast<double>(step);
  const auto scale = static_cast<float>(factor);
  const auto beta1 = static_cast<float>(options.beta1);
  const auto beta2 = static_cast<float>(options.beta2);
  const auto rest1 = static_cast<float>(1.0 - options.beta1);
  const auto rest2 = static_cast<float>(1.0 - options.beta2);
  const auto rate = static_cast<float>(learning_rate / (1.0 - std::pow(options.beta1, steps)));
  const auto unbias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, steps)));
  const auto epsilon = static_cast<float>(options.epsilon);
  const auto decay = static_cast<float>(1.0 - learning_rate * options.weight_decay);
  const float* const g = gradient.const_data_ptr<float>();
  float* const w = value.data_ptr<float>();
  float* const m = first.data_ptr<float>();
  float* const v = second.data_ptr<float>();
  at::parallel_for(0, value.numel(), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float slope = scale * g[i];
      m[i] = beta1 * m[i] + rest1 * slope;
      v[i] = beta2 * v[i] + rest2 * slope * slope;
      w[i] = decay * w[i] - rate * m[i] / (std::sqrt(v[i]) * unbias2 + epsilon);
    }
  });
}

double gradient_norm(std::span<const at::Tensor> gradients) {
  double sum = 0.0;
  for (const at::Tensor& gradient : gradients) {
    check_tensor(gradient, gradient, "a gradient");
    if (!gradient.is_cpu()) {
      sum += gradient.square().sum(at::kDouble).item<double>();
      continue;
    }
    const int64_t num_chunks = (gradient.numel() + kChunk - 1) / kChunk;
    std::vector<double> sums(static_cast<size_t>(num_chunks));
    const float* const g = gradient.const_data_ptr<float>();
    at::parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        constexpr int64_t kLanes = 8;
        double lanes[kLanes] = {};
        const int64_t last = std::min(gradient.numel(), (chunk + 1) * kChunk);
        int64_t i = chunk * kChunk;
        for (; i + kLanes <= last; i += kLanes) {
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            lanes[lane] += static_cast<double>(g[i + lane]) * static_cast<double>(g[i + lane]);
          }
        }
        for (int64_t lane = 0; i < last; ++i, ++lane)
          lanes[lane] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
        for (const double lane : lanes) sums[static_cast<size_t>(chunk)] += lane;
      }
    });
    for (const double part : sums) sum += part;
  }
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0.0 && norm > max_norm ? max_norm / norm : 1.0;
}

double learning_rate_at(int64_t step, int64_t num_steps, int64_t num_warmup_steps, double peak, double final_share) {
  if (step < 1 || step > num_steps) {
    throw std::invalid_argument("learning rate: expected a step of 1 .. " + std::to_string(num_steps) + ", found " +
                                std::to_string(step));
  }
  if (step <= num_warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(num_warmup_steps);
  const int64_t num_left = num_steps - num_warmup_steps;
  const double progress = static_cast<double>(step - num_warmup_steps) / static_cast<double>(num_left);
  return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace pare::distill
