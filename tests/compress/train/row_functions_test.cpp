// Checks norms, rotations and gated linears against autograd of their formulas in float64, and against plain loops.
#include "compress/train/row_functions.h"

#include "compress/train/norm_linears.h"
#include "compress/train/row_functions_by_ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "tests/expect_error.h"

namespace pare {
namespace {

constexpr double kEpsilon = 1e-5;

at::Tensor draw(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

// Returns the tolerance. float32 results are sums of up to 300 products in lanes, with a handful of roundings each.
// bfloat16 rounds once at the end, by at most half of 2^-7 of an element.
double tolerance(at::ScalarType type) {
  return type == at::kFloat ? 2e-6 : std::ldexp(1.0, -8) + 1e-5;
}

// Expects every element within `relative` of its own size or of the typical one, whichever is larger, because sums
// cancel.
void expect_near(const at::Tensor& found, const at::Tensor& expected, double relative, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const at::Tensor error = found.to(at::kDouble).sub(expected).abs();
  const double typical = expected.pow(2).mean().sqrt().item<double>();
  const at::Tensor allowed = expected.abs().clamp_min(typical).mul(relative);
  EXPECT_LE(error.div(allowed).max().item<double>(), 1.0) << what;
}

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// Returns the value first, then the gradients of sum(value * weight) with respect to each input.
Tensors with_gradients(const Function& function, const Tensors& inputs, const at::Tensor& weight) {
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
void compare(const Function& function, const Function& formula, const Tensors& inputs, const at::Tensor& weight,
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

at::Tensor norm_formula(const Tensors& xg) {
  return xg[0].mul(xg[0].pow(2).mean(-1, /*keepdim=*/true).add(kEpsilon).rsqrt()).mul(xg[1]);
}

at::Tensor rotation_formula(const at::Tensor& x_BTHK, const RotaryAngles& angles) {
  const int64_t half = x_BTHK.size(3) / 2;
  const at::Tensor low = x_BTHK.narrow(3, 0, half), high = x_BTHK.narrow(3, half, half);
  const at::Tensor cosine = angles.cosine_TJ.to(at::kDouble).narrow(0, 0, x_BTHK.size(1)).unsqueeze(1);
  const at::Tensor sine = angles.sine_TJ.to(at::kDouble).narrow(0, 0, x_BTHK.size(1)).unsqueeze(1);
  return at::cat({low.mul(cosine).sub(high.mul(sine)), high.mul(cosine).add(low.mul(sine))}, 3);
}

at::Tensor gate_formula(const Tensors& inputs, Activation activation) {
  const at::Tensor& gate = inputs[0];
  const at::Tensor active = activation == Activation::silu
                                ? gate.mul(at::sigmoid(gate))
                                : at::gelu(gate, activation == Activation::gelu ? "none" : "tanh");
  return active.mul(inputs[1]);
}

RotaryAngles angles_of(int64_t num_tokens, int64_t half) {
  const at::Tensor angles_TJ = draw({num_tokens, half}, 7).mul(3.0);
  return {at::cos(angles_TJ).to(at::kFloat), at::sin(angles_TJ).to(at::kFloat)};
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// Returns the product of gate and up, by a linear that changes nothing.
at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  return gated_linear(gate, up, activation, /*format=*/nullptr, at::eye(gate.size(-1), gate.options()), {});
}

TEST(RowFunctions, NormsEqualTheFormulaAndItsGradients) {
  // Widths are below, equal to and not a multiple of whole vectors. Rows are fewer and more than one partial sum takes.
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 5}, {3, 64}, {70, 48}, {200, 300}}) {
    const at::Tensor gain_D = draw({width}, 2).add(1.0).to(at::kFloat);
    for (const at::ScalarType type : kTypes) {
      for (const at::ScalarType out : kTypes) {
        const at::Tensor x_RD = draw({rows, width}, 1).mul(2.0).to(type);
        // A gain's gradient sums over rows and is float32 in either case. bfloat16 x and outputs round the rest.
        for (const auto& norm : {rms_norm_rows, rms_norm_rows_by_ops}) {
          compare([&](const Tensors& in) { return norm(in[0], in[1], kEpsilon, out); }, norm_formula, {x_RD, gain_D},
                  draw({rows, width}, 3), std::max(tolerance(type), tolerance(out)) * (rows > 100 ? 2.0 : 1.0));
        }
      }
    }
  }
}

TEST(RowFunctions, NormsEqualPlainLoops) {
  const at::Tensor x_RD = draw({4, 21}, 4).to(at::kFloat);
  const at::Tensor gain_D = draw({21}, 5).to(at::kFloat);
  const at::Tensor y_RD = rms_norm_rows(x_RD, gain_D, kEpsilon, at::kFloat);
  for (int64_t r = 0; r < 4; ++r) {
    double squares = 0.0;
    for (int64_t i = 0; i < 21; ++i) squares += std::pow(x_RD[r][i].item<double>(), 2.0);
    for (int64_t i = 0; i < 21; ++i) {
      const double expected =
          x_RD[r][i].item<double>() / std::sqrt(squares / 21.0 + kEpsilon) * gain_D[i].item<double>();
      EXPECT_NEAR(y_RD[r][i].item<double>(), expected, 2e-6 * std::max(1.0, std::fabs(expected)));
    }
  }
  // Only epsilon is there to divide by.
  EXPECT_TRUE(at::equal(rms_norm_rows(at::zeros({2, 3}), at::ones({3}), kEpsilon, at::kFloat), at::zeros({2, 3})));
}

TEST(NormLinears, EqualTheFormulaAndItsGradients) {
  const int64_t width = 48;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = draw({2, 35, width}, 1).mul(2.0).to(at::kFloat);
    const at::Tensor gain_D = draw({width}, 2).add(1.0).to(at::kFloat);
    const auto operand = [&](at::IntArrayRef shape, uint64_t seed) { return draw(shape, seed).to(type); };
    const Tensors inputs = {x, gain_D, operand({30, width}, 3), operand({30}, 4), operand({7, width}, 5)};
    const auto function = [type](const Tensors& in) {
      const std::vector<at::Tensor> products =
          norm_linears(in[0], {in[1], kEpsilon, type}, nullptr, {{in[2], in[3]}, {in[4], {}}});
      return at::cat({products[0], products[1]}, -1);
    };
    const auto formula = [](const Tensors& in) {
      const at::Tensor normalized = norm_formula(in);
      return at::cat({at::linear(normalized, in[2], in[3]), at::linear(normalized, in[4])}, -1);
    };
    // The inputs, the products and the gradients of each linear are rounded one after the other.
    compare(function, formula, inputs, draw({2, 35, 37}, 6), type == at::kFloat ? 4e-6 : 3.0 * tolerance(type));
  }
}

// One node gives what several nodes would give. Rounded inputs let gradients through, and what is not asked for is not
// made.
TEST(NormLinears, RoundTheirInputs) {
  const InputFormat int8 = {.type = InputType::int8};
  const at::Tensor x = draw({1, 9, 16}, 1).to(at::kFloat), gain_D = at::ones({16}),
                   weight_OI = draw({5, 16}, 2).to(at::kFloat), dy = draw({1, 9, 5}, 3);
  const auto of_one = [&](const Tensors& in) {
    return norm_linears(in[0], {gain_D, kEpsilon, at::kFloat}, &int8, {{in[1], {}}})[0];
  };
  const auto of_several = [&](const Tensors& in) {
    return at::linear(round_input(rms_norm_rows(in[0], gain_D, kEpsilon, at::kFloat), &int8), in[1]);
  };
  const Tensors found = with_gradients(of_one, {x, weight_OI}, dy),
                expected = with_gradients(of_several, {x, weight_OI}, dy);
  for (size_t i = 0; i < found.size(); ++i) expect_near(found[i], expected[i].to(at::kDouble), 1e-6, std::to_string(i));
  EXPECT_TRUE(at::equal(found[0], expected[0]));
  EXPECT_FALSE(at::equal(found[0], norm_linears(x, {gain_D, kEpsilon, at::kFloat}, nullptr, {{weight_OI, {}}})[0]));
}

TEST(NormLinears, RefuseWhatDoesNotFit) {
  const at::Tensor x = at::ones({2, 8}), gain_D = at::ones({8});
  expect_error<std::invalid_argument>([&] { norm_linears(x, {gain_D, kEpsilon, at::kFloat}, nullptr, {}); }, {"none"});
  expect_error<std::invalid_argument>(
      [&] {
        norm_linears(x, {gain_D, kEpsilon, at::kFloat}, nullptr, {{at::ones({3, 8}), {}}, {at::ones({3, 9}), {}}});
      },
      {"[O, 8]", "[3, 9]"});
  expect_error<std::invalid_argument>(
      [&] {
        norm_linears(x, {gain_D, kEpsilon, at::kBFloat16}, nullptr,
                     {{at::ones({3, 8}).to(at::kBFloat16), {}}, {at::ones({3, 8}), {}}});
      },
      {"BFloat16 or narrower", "Float"});
}

TEST(RowFunctions, RotationsEqualTheFormulaAndItsGradients) {
  for (const auto& [heads, size] : {std::pair<int64_t, int64_t>{1, 2}, {3, 16}, {2, 34}}) {
    const RotaryAngles angles = angles_of(/*num_tokens=*/12, size / 2);
    for (const at::ScalarType type : kTypes) {
      for (const auto& rotate : {rotate_heads, rotate_heads_by_ops}) {
        compare([&](const Tensors& in) { return rotate(in[0], angles); },
                [&](const Tensors& in) { return rotation_formula(in[0], angles); },
                {draw({2, 9, heads, size}, 6).to(type)}, draw({2, 9, heads, size}, 8), tolerance(type));
      }
    }
  }
}

TEST(RowFunctions, RotationsEqualPlainLoops) {
  const RotaryAngles angles = angles_of(5, 3);
  const at::Tensor x = draw({2, 5, 2, 6}, 9).to(at::kFloat);
  const at::Tensor y = rotate_heads(x, angles);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t j = 0; j < 3; ++j) {
          const double c = angles.cosine_TJ[t][j].item<double>(), s = angles.sine_TJ[t][j].item<double>();
          const double low = x[b][t][h][j].item<double>(), high = x[b][t][h][j + 3].item<double>();
          EXPECT_NEAR(y[b][t][h][j].item<double>(), low * c - high * s, 1e-6);
          EXPECT_NEAR(y[b][t][h][j + 3].item<double>(), high * c + low * s, 1e-6);
        }
      }
    }
  }
}

TEST(RowFunctions, GatesEqualTheFormulaAndTheirGradients) {
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    for (const at::ScalarType type : kTypes) {
      // In bfloat16 activation and product are rounded one after the other, and so are the parts of the gradient.
      const double relative = type == at::kFloat ? 4e-6 : 3.0 * tolerance(type);
      for (const auto& gated : {gated_activation, gated_activation_by_ops}) {
        compare([&](const Tensors& in) { return gated(in[0], in[1], activation); },
                [&](const Tensors& in) { return gate_formula(in, activation); },
                {draw({7, 45}, 10).mul(3.0).to(type), draw({7, 45}, 11).to(type)}, draw({7, 45}, 12), relative);
      }
    }
  }
}

TEST(RowFunctions, GatesEqualPlainLoops) {
  const at::Tensor gate = draw({40}, 13).mul(4.0).to(at::kFloat), up = draw({40}, 14).to(at::kFloat);
  const at::Tensor silu = gated_activation(gate, up, Activation::silu);
  const at::Tensor gelu = gated_activation(gate, up, Activation::gelu);
  const at::Tensor tanh = gated_activation(gate, up, Activation::gelu_tanh);
  for (int64_t i = 0; i < 40; ++i) {
    const double g = gate[i].item<double>(), u = up[i].item<double>();
    EXPECT_NEAR(silu[i].item<double>(), g / (1.0 + std::exp(-g)) * u, 2e-5);
    EXPECT_NEAR(gelu[i].item<double>(), g * 0.5 * std::erfc(-g / std::sqrt(2.0)) * u, 2e-5);
    EXPECT_NEAR(tanh[i].item<double>(),
                0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g))) * u, 2e-5);
  }
}

// Values and gradients of all four inputs must be those of the same functions one after the other, bit for bit. What is
// computed again is what was multiplied, rounded inputs included.
TEST(RowFunctions, GatedLinearsEqualTheirParts) {
  const InputFormat rounding{.type = InputType::int8};
  for (const at::ScalarType type : kTypes) {
    const Tensors inputs = {draw({2, 5, 24}, 30).mul(2.0).to(type), draw({2, 5, 24}, 31).to(type),
                            draw({7, 24}, 32).to(type), draw({7}, 33).to(type)};
    const at::Tensor weight = draw({2, 5, 7}, 34).to(type);
    for (const InputFormat* const format : {static_cast<const InputFormat*>(nullptr), &rounding}) {
      const Tensors found = with_gradients(
          [&](const Tensors& in) { return gated_linear(in[0], in[1], Activation::silu, format, in[2], in[3]); }, inputs,
          weight);
      const Tensors parts = with_gradients(
          [&](const Tensors& in) {
            return at::linear(round_input(gated_activation_by_ops(in[0], in[1], Activation::silu), format), in[2],
                              in[3]);
          },
          inputs, weight);
      ASSERT_EQ(found.size(), parts.size());
      for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], parts[i])) << i;
    }
    // Here weight and bias need no gradients, and then there is no bias.
    const Tensors two = with_gradients(
        [&](const Tensors& in) { return gated_linear(in[0], in[1], Activation::silu, nullptr, inputs[2], {}); },
        {inputs[0], inputs[1]}, weight);
    const Tensors parts = with_gradients(
        [&](const Tensors& in) {
          return at::linear(gated_activation_by_ops(in[0], in[1], Activation::silu), inputs[2]);
        },
        {inputs[0], inputs[1]}, weight);
    for (size_t i = 0; i < two.size(); ++i) EXPECT_TRUE(at::equal(two[i], parts[i])) << i;
  }
}

// A weight in half the width gives the bits of the same weight widened beforehand. This holds for the values, and for
// the gradients, which are float32, the weight's own included.
TEST(RowFunctions, WeightsHeldInLessGiveTheBitsOfWideOnes) {
  const at::Tensor gain_D = draw({24}, 40).to(at::kFloat);
  const Function behind_norm = [](const Tensors& in) {
    return at::cat(norm_linears(in[0], {in[1], kEpsilon, at::kFloat}, nullptr, {{in[2], in[3]}, {in[2], {}}}), -1);
  };
  const Function plain = [](const Tensors& in) { return held_linear(in[0], in[2], in[3]).add(in[1].sum()); };
  const Function gated = [](const Tensors& in) {
    return gated_linear(in[0], in[0].mul(in[1]), Activation::silu, nullptr, in[2], in[3]);
  };
  for (const auto& [function, width] : {std::pair<Function, int64_t>{behind_norm, 14}, {plain, 7}, {gated, 7}}) {
    for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
      Tensors inputs = {draw({2, 5, 24}, 41).to(at::kFloat), gain_D, draw({7, 24}, 42).to(narrow),
                        draw({7}, 43).to(at::kFloat)};
      const at::Tensor weight = draw({2, 5, width}, 44);
      const Tensors found = with_gradients(function, inputs, weight);
      inputs[2] = inputs[2].to(at::kFloat);
      const Tensors expected = with_gradients(function, inputs, weight);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), at::kFloat) << i;
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
      }
    }
  }
}

TEST(RowFunctions, HeldLinearsEqualTheFormulaAndItsGradients) {
  const Function function = [](const Tensors& in) { return held_linear(in[0], in[1], in[2]); };
  const Function formula = [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); };
  compare(function, formula,
          {draw({3, 4, 20}, 45).to(at::kFloat), draw({9, 20}, 46).to(at::kBFloat16), draw({9}, 47).to(at::kFloat)},
          draw({3, 4, 9}, 48), 2e-6);
  expect_error<std::invalid_argument>(
      [&] {
        held_linear(at::ones({2, 4}), at::ones({3, 5}), {});
      },
      {"[2, 4]", "[3, 5]"});
  expect_error<std::invalid_argument>(
      [&] {
        held_linear(at::ones({2, 4}).to(at::kBFloat16), at::ones({3, 4}), {});
      },
      {"narrower", "Float"});
}

// Another layout in memory holds the same numbers, for inputs and gradients alike.
TEST(RowFunctions, ViewsGiveWhatCopiesGive) {
  const RotaryAngles angles = angles_of(10, 8);
  const at::Tensor gain_D = draw({32}, 15).to(at::kFloat).slice(0, 0, 32, 2);
  const at::Tensor x = draw({10, 2, 3, 16}, 16).to(at::kFloat).transpose(0, 1);  // [2, 10, 3, 16]
  const at::Tensor y = draw({16, 3, 10, 2}, 17).to(at::kFloat).permute({3, 2, 1, 0});
  const at::Tensor weight = draw({1, 10, 1, 1}, 18).to(at::kFloat).expand({2, 10, 3, 16});
  ASSERT_FALSE(x.is_contiguous() || y.is_contiguous() || gain_D.is_contiguous() || weight.is_contiguous());
  const std::vector<std::pair<Function, Tensors>> cases = {
      {[](const Tensors& in) { return rms_norm_rows(in[0], in[1], kEpsilon, at::kFloat); }, {x, gain_D}},
      {[&](const Tensors& in) { return rotate_heads(in[0], angles); }, {x}},
      {[](const Tensors& in) { return gated_activation(in[0], in[1], Activation::silu); }, {x, y}},
      {[](const Tensors& in) { return gated_activation(in[0], in[1], Activation::gelu_tanh); }, {x, y}}};
  for (const auto& [function, inputs] : cases) {
    Tensors copies;
    for (const at::Tensor& input : inputs) copies.push_back(input.contiguous());
    const Tensors found = with_gradients(function, inputs, weight);
    const Tensors expected = with_gradients(function, copies, weight.contiguous());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].sizes(), expected[i].sizes());
      // Whole vectors and single elements go through functions that may differ in the last place.
      EXPECT_LE(found[i].sub(expected[i]).abs().max().item<double>(), 4e-6 * expected[i].abs().max().item<double>());
    }
  }
}

// Neither rows nor elements of these shapes divide evenly among threads.
TEST(RowFunctions, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads_before = at::get_num_threads();
  const RotaryAngles angles = angles_of(331, 13);
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = draw({1, 331, 11, 26}, 19).to(type), y = draw({1, 331, 11, 26}, 20).to(type);
    const at::Tensor gain_D = draw({26}, 21).to(at::kFloat), weight = draw({1, 331, 11, 26}, 22).to(type);
    std::vector<std::pair<Function, Tensors>> cases = {
        {[&](const Tensors& in) { return rms_norm_rows(in[0], in[1], kEpsilon, type); }, {x, gain_D}},
        {[&](const Tensors& in) { return rotate_heads(in[0], angles); }, {x}}};
    for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
      cases.push_back({[activation](const Tensors& in) { return gated_activation(in[0], in[1], activation); }, {x, y}});
    }
    for (size_t c = 0; c < cases.size(); ++c) {
      at::set_num_threads(1);
      const Tensors single = with_gradients(cases[c].first, cases[c].second, weight);
      at::set_num_threads(3);
      const Tensors three = with_gradients(cases[c].first, cases[c].second, weight);
      at::set_num_threads(threads_before);
      for (size_t i = 0; i < single.size(); ++i) {
        EXPECT_TRUE(at::equal(single[i], three[i])) << "case " << c << ", tensor " << i << ", " << at::toString(type);
      }
    }
  }
}

TEST(RowFunctions, RefuseOtherShapesAndTypes) {
  const at::Tensor x = at::ones({2, 4}), gain = at::ones({4});
  const auto norm_refused = [](const at::Tensor& rows, const at::Tensor& gain_D, at::ScalarType out) {
    expect_error<std::invalid_argument>([&] { rms_norm_rows(rows, gain_D, kEpsilon, out); }, {"rms_norm_rows"});
  };
  norm_refused(x.to(at::kDouble), gain, at::kFloat);
  norm_refused({}, gain, at::kFloat);
  norm_refused(x, {}, at::kFloat);
  norm_refused(x, gain.to(at::kBFloat16), at::kFloat);
  norm_refused(x, at::ones({5}), at::kFloat);
  norm_refused(x, gain, at::kHalf);
  expect_error<std::invalid_argument>([&] { rms_norm_rows(x, at::ones({5}), kEpsilon, at::kFloat); },
                                      {"[2, 4]", "[5]"});
  const RotaryAngles angles = angles_of(6, 2);
  const auto rotation_refused = [&](const at::Tensor& heads) {
    expect_error<std::invalid_argument>([&] { rotate_heads(heads, angles); }, {"rotate_heads"});
  };
  rotation_refused(at::ones({1, 7, 1, 4}));  // more tokens than angles
  rotation_refused(at::ones({1, 6, 1, 6}));  // another head size
  rotation_refused(at::ones({6, 1, 4}));
  rotation_refused(at::ones({1, 6, 1, 4}, at::kHalf));
  const auto gate_refused = [&](const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                                std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { gated_linear(gate, up, Activation::silu, nullptr, weight, {}); }, words);
  };
  const at::Tensor weight = at::ones({3, 4});
  gate_refused(x, at::ones({2, 5}), weight, {"gated_linear", "[2, 4]", "[2, 5]"});
  gate_refused(x, x.to(at::kBFloat16), weight, {"of one type"});
  gate_refused(x.to(at::kBFloat16), x.to(at::kBFloat16), weight, {"of one type"});
  gate_refused(x, x, weight.to(at::kDouble), {"of one type"});
  gate_refused(x, x, at::ones({3, 5}), {"[3, 5]"});
  gate_refused(x.to(at::kHalf), x, weight, {"float32"});
}

}  // namespace
}  // namespace pare
