// Formulas in float64 of what a block's functions compute, and the comparison with them by values and gradients.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "compress/model/row_functions.h"
#include "compress/model/stage_products.h"

namespace pare::test {
using namespace compress;
using namespace runtime;

inline constexpr double kEpsilon = 1e-5;

inline at::Tensor draw(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

// Returns the tolerance. float32 results are sums of up to 300 products in lanes, with a handful of roundings each.
// bfloat16 rounds once at the end, by at most half of 2^-7 of an element.
inline double tolerance(at::ScalarType type) {
  return type == at::kFloat ? 2e-6 : std::ldexp(1.0, -8) + 1e-5;
}

// Expects every element within `relative` of its own size or of the typical one, whichever is larger, because sums
// cancel.
inline void expect_near(const at::Tensor& found, const at::Tensor& expected, double relative, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const at::Tensor error = found.to(at::kDouble).sub(expected).abs();
  const double typical = expected.pow(2).mean().sqrt().item<double>();
  const at::Tensor allowed = expected.abs().clamp_min(typical).mul(relative);
  EXPECT_LE(error.div(allowed).max().item<double>(), 1.0) << what;
}

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// Returns the value first, then the gradients of sum(value * weight) with respect to each input.
inline Tensors with_gradients(const Function& function, const Tensors& inputs, const at::Tensor& weight) {
  const at::AutoGradMode enabled(true);
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  // Weights may be held in less than the type in which they are multiplied. Their gradients have that type.
  for (const at::Tensor& leaf : leaves) leaf.set_grad_dtype(std::nullopt);
  const at::Tensor value = function(leaves);
  Tensors results = {value.detach()};
  for (at::Tensor& gradient : torch::autograd::grad({value}, leaves, {weight.to(value.scalar_type())})) {
    results.push_back(std::move(gradient));
  }
  return results;
}

// Compares the function in the types of `inputs` with the formula in float64 on the same (rounded) numbers.
inline void compare(const Function& function, const Function& formula, const Tensors& inputs, const at::Tensor& weight,
                    double relative) {
  const at::Tensor rounded_weight = weight.to(function(inputs).scalar_type());
  Tensors exact;
  for (const at::Tensor& input : inputs) exact.push_back(input.to(at::kDouble));
  const Tensors found = with_gradients(function, inputs, rounded_weight);
  const Tensors expected = with_gradients(formula, exact, rounded_weight.to(at::kDouble));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    expect_near(found[i], expected[i], relative, i == 0 ? "value" : "gradient of input " + std::to_string(i));
  }
}

inline at::Tensor norm_formula(const Tensors& xg) {
  return xg[0].mul(xg[0].pow(2).mean(-1, /*keepdim=*/true).add(kEpsilon).rsqrt()).mul(xg[1]);
}

inline at::Tensor rotation_formula(const at::Tensor& x_BTHK, const RotaryAngles& angles) {
  const int64_t half = x_BTHK.size(3) / 2;
  const at::Tensor low = x_BTHK.narrow(3, 0, half), high = x_BTHK.narrow(3, half, half);
  const at::Tensor cosine = angles.cosine_TJ.to(at::kDouble).narrow(0, 0, x_BTHK.size(1)).unsqueeze(1);
  const at::Tensor sine = angles.sine_TJ.to(at::kDouble).narrow(0, 0, x_BTHK.size(1)).unsqueeze(1);
  return at::cat({low.mul(cosine).sub(high.mul(sine)), high.mul(cosine).add(low.mul(sine))}, 3);
}

inline at::Tensor gate_formula(const Tensors& inputs, Activation activation) {
  const at::Tensor& gate = inputs[0];
  if (activation == Activation::clamped_swiglu) {
    const at::Tensor least = gate.clamp_max(7.0), up = inputs[1].clamp(-7.0, 7.0);
    return up.add(1.0).mul(least).mul(at::sigmoid(least.mul(1.702)));
  }
  const at::Tensor active = activation == Activation::silu ? gate.mul(at::sigmoid(gate))
                            : activation == Activation::relu
                                ? gate.mul(gate.gt(0))
                                : at::gelu(gate, activation == Activation::gelu ? "none" : "tanh");
  return active.mul(inputs[1]);
}

inline RotaryAngles angles_of(int64_t num_tokens, int64_t half) {
  const at::Tensor angles_TJ = draw({num_tokens, half}, 7).mul(3.0);
  return {at::cos(angles_TJ).to(at::kFloat), at::sin(angles_TJ).to(at::kFloat)};
}

inline constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// Returns the product of gate and up, by a linear that changes nothing.
inline at::Tensor gated_through_identity(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  return stage_product(StageInput::gated(gate, up, activation), /*format=*/nullptr,
                       {at::eye(gate.size(-1), gate.options()), {}});
}

}  // namespace pare::test
