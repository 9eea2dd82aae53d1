// Layers for the tests: weights, and Hessians of correlated inputs. Columns differ in strength by a factor of 30, as
// the inputs of a language model's linears do. Layers are seeded and the same on every machine (std::mt19937 and own
// normals).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace pare {

inline std::vector<double> random_normals(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  const auto uniform = [&] { return (generator() + 0.5) / 4294967296.0; };
  std::vector<double> values(count);
  for (double& value : values) {
    value = std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform());
  }
  return values;
}

inline at::Tensor random_weight(int64_t num_out, int64_t num_in, uint32_t seed) {
  at::Tensor weight_OI = at::empty({num_out, num_in}, at::kFloat);
  const std::vector<double> normals = random_normals(num_out * num_in, seed);
  float* weights = weight_OI.mutable_data_ptr<float>();
  for (size_t i = 0; i < normals.size(); ++i) weights[i] = static_cast<float>(0.05 * normals[i]);
  return weight_OI;
}

// Returns (1/n) sum x x^T over n = 3 I inputs x. Each is a mixture of I / 4 common directions and a little noise of its
// own.
inline at::Tensor random_hessian(int64_t num_in, uint32_t seed) {
  const int64_t num_rows = 3 * num_in, num_directions = (num_in + 3) / 4;
  const std::vector<double> mixture = random_normals(num_directions * num_in, seed);
  const std::vector<double> latent = random_normals(num_rows * num_directions, seed + 1);
  const std::vector<double> noise = random_normals(num_rows * num_in, seed + 2);
  const std::vector<double> strength = random_normals(num_in, seed + 3);
  std::vector<double> hessian(num_in * num_in, 0.0), x(num_in);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < num_in; ++i) {
      double value = 0.3 * noise[row * num_in + i];
      for (int64_t d = 0; d < num_directions; ++d) {
        value += latent[row * num_directions + d] * mixture[d * num_in + i] / std::sqrt(double(num_directions));
      }
      x[i] = value * std::exp(0.8 * strength[i]);
    }
    for (int64_t i = 0; i < num_in; ++i) {
      for (int64_t j = 0; j < num_in; ++j) hessian[i * num_in + j] += x[i] * x[j] / num_rows;
    }
  }
  at::Tensor hessian_II = at::empty({num_in, num_in}, at::kFloat);
  float* out = hessian_II.mutable_data_ptr<float>();
  for (size_t i = 0; i < hessian.size(); ++i) out[i] = static_cast<float>(hessian[i]);
  return hessian_II;
}

inline const float* floats(const at::Tensor& tensor) {
  return tensor.const_data_ptr<float>();
}

// Returns tr((W - W') H (W - W')^T) by plain loops in float64.
inline double plain_trace_error(const at::Tensor& weight_OI, const std::vector<float>& rounded,
                                const at::Tensor& hessian_II) {
  const int64_t num_out = weight_OI.size(0), num_in = weight_OI.size(1);
  double sum = 0.0;
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t i = 0; i < num_in; ++i) {
      const double left = double(floats(weight_OI)[o * num_in + i]) - rounded[o * num_in + i];
      for (int64_t j = 0; j < num_in; ++j) {
        const double right = double(floats(weight_OI)[o * num_in + j]) - rounded[o * num_in + j];
        sum += left * right * floats(hessian_II)[i * num_in + j];
      }
    }
  }
  return sum;
}

}  // namespace pare
