// The losses of distill/ by plain loops in float64, from their definitions. The tests compare against them. Also here:
// random logits, and gradients by central differences.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/quant/random_layer.h"

namespace pare {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline at::Tensor tensor_of(const Rows& rows, at::ScalarType type = at::kDouble) {
  const auto num_columns = static_cast<int64_t>(rows.front().size());
  at::Tensor matrix = at::empty({static_cast<int64_t>(rows.size()), num_columns}, at::kDouble);
  double* values = matrix.mutable_data_ptr<double>();
  for (const Row& row : rows) values = std::copy(row.begin(), row.end(), values);
  return matrix.to(type);
}

inline Rows rows_of(const at::Tensor& matrix) {
  const at::Tensor wide = matrix.detach().to(at::kDouble).contiguous();
  const double* values = wide.const_data_ptr<double>();
  Rows rows;
  for (int64_t r = 0; r < wide.size(0); ++r)
    rows.emplace_back(values + r * wide.size(1), values + (r + 1) * wide.size(1));
  return rows;
}

inline Row row_of(const at::Tensor& vector) {
  return rows_of(vector.unsqueeze(0)).front();
}

inline at::Tensor labels_of(const std::vector<int64_t>& labels) {
  at::Tensor result = at::empty({static_cast<int64_t>(labels.size())}, at::kLong);
  std::copy(labels.begin(), labels.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

// Returns normals of deviation 3. Probabilities differ by some factors of 1000, as a language model's do.
inline Rows random_logits(int64_t num_tokens, int64_t num_vocabulary, uint32_t seed) {
  const std::vector<double> normals = random_normals(num_tokens * num_vocabulary, seed);
  Rows rows(num_tokens, Row(num_vocabulary));
  for (int64_t i = 0; i < num_tokens * num_vocabulary; ++i)
    rows[i / num_vocabulary][i % num_vocabulary] = 3.0 * normals[i];
  return rows;
}

inline Row plain_softmax(const Row& logits, double temperature = 1.0) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  Row result;
  double sum = 0.0;
  for (const double logit : logits) {
    result.push_back(std::exp((logit - largest) / temperature));
    sum += result.back();
  }
  for (double& value : result) value /= sum;
  return result;
}

inline double plain_kl(const Row& a, const Row& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] > 0.0) sum += a[i] * std::log(a[i] / b[i]);
  }
  return sum;
}

inline Row plain_mixture(const Row& a, const Row& b, double share_of_b) {
  Row result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back((1.0 - share_of_b) * a[i] + share_of_b * b[i]);
  return result;
}

inline double plain_total_variation(const Row& a, const Row& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += 0.5 * std::abs(a[i] - b[i]);
  return sum;
}

// Returns the masses of the ids, and after them that of all others.
inline Row merged(const Row& masses, const std::vector<int64_t>& ids) {
  Row result;
  std::vector<bool> kept(masses.size(), false);
  for (const int64_t id : ids) {
    result.push_back(masses[id]);
    kept[id] = true;
  }
  double rest = 0.0;
  for (size_t i = 0; i < masses.size(); ++i) rest += kept[i] ? 0.0 : masses[i];
  result.push_back(rest);
  return result;
}

// Returns the gradient of the sum of losses(logits), by autograd.
using Losses = std::function<at::Tensor(const at::Tensor&)>;
inline at::Tensor gradient_of(const Losses& losses, const at::Tensor& logits) {
  const at::Tensor leaf = logits.detach().clone().set_requires_grad(true);
  losses(leaf).sum().backward();
  return leaf.grad();
}

// Compares the gradient with central differences in float64. With step h, a difference has an error of h^2 / 6 times
// the third derivative, and one of the rounding of the losses / h. At h = 2^-17 (7.6e-6) the first is 1e-11 times a
// third derivative. For log-softmax, its exponentials and their products with differences of logarithms (below 40
// here), that derivative stays below 100 at temperatures from 1/2. The second is 1e-15 * (sum of losses, below 100) / h
// = 1e-8 at most.
inline void expect_gradient(const Losses& losses, const at::Tensor& logits, const std::string& what) {
  constexpr double kStep = 1.0 / (1 << 17), kTolerance = 2e-8;
  ASSERT_EQ(logits.scalar_type(), at::kDouble);
  const at::Tensor gradient = gradient_of(losses, logits).contiguous();
  const at::Tensor moved = logits.detach().clone().contiguous();
  double* values = moved.mutable_data_ptr<double>();
  for (int64_t i = 0; i < moved.numel(); ++i) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = losses(moved).sum().item<double>();
    values[i] = value - kStep;
    const double below = losses(moved).sum().item<double>();
    values[i] = value;
    EXPECT_NEAR(gradient.const_data_ptr<double>()[i], (above - below) / (2.0 * kStep), kTolerance)
        << what << " at " << i;
  }
}

}  // namespace pare
