// Checks the products of a stage's linears against autograd of their formulas in float64, and against the same
// functions one after the other.
#include "compress/model/stage_products.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>

#include "compress/model/row_functions_by_ops.h"
#include "tests/compress/model/formulas.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

TEST(StageProducts, NormsEqualTheFormulaAndItsGradients) {
  const int64_t width = 48;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = draw({2, 35, width}, 1).mul(2.0).to(at::kFloat);
    const at::Tensor gain_D = draw({width}, 2).add(1.0).to(at::kFloat);
    const auto operand = [&](at::IntArrayRef shape, uint64_t seed) { return draw(shape, seed).to(type); };
    const Tensors inputs = {x, gain_D, operand({30, width}, 3), operand({30}, 4), operand({7, width}, 5)};
    const auto function = [type](const Tensors& in) {
      const std::vector<at::Tensor> products =
          stage_products(StageInput::norm(in[0], in[1], kEpsilon, type), nullptr, {{in[2], in[3]}, {in[4], {}}});
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
TEST(StageProducts, NormsRoundTheirInputs) {
  const InputFormat int8 = {.type = InputType::int8};
  const at::Tensor x = draw({1, 9, 16}, 1).to(at::kFloat), gain_D = at::ones({16}),
                   weight_OI = draw({5, 16}, 2).to(at::kFloat), dy = draw({1, 9, 5}, 3);
  const auto of_one = [&](const Tensors& in) {
    return stage_products(StageInput::norm(in[0], gain_D, kEpsilon, at::kFloat), &int8, {{in[1], {}}})[0];
  };
  const auto of_several = [&](const Tensors& in) {
    return at::linear(round_input(rms_norm_rows(in[0], gain_D, kEpsilon, at::kFloat), &int8), in[1]);
  };
  const Tensors found = with_gradients(of_one, {x, weight_OI}, dy),
                expected = with_gradients(of_several, {x, weight_OI}, dy);
  for (size_t i = 0; i < found.size(); ++i) expect_near(found[i], expected[i].to(at::kDouble), 1e-6, std::to_string(i));
  EXPECT_FALSE(at::equal(
      found[0], stage_products(StageInput::norm(x, gain_D, kEpsilon, at::kFloat), nullptr, {{weight_OI, {}}})[0]));
}

TEST(StageProducts, RefuseWhatDoesNotFit) {
  const at::Tensor x = at::ones({2, 8}), gain_D = at::ones({8});
  expect_error<std::invalid_argument>(
      [&] { stage_products(StageInput::norm(x, gain_D, kEpsilon, at::kFloat), nullptr, {}); }, {"none"});
  expect_error<std::invalid_argument>(
      [&] {
        stage_products(StageInput::norm(x, gain_D, kEpsilon, at::kFloat), nullptr,
                       {{at::ones({3, 8}), {}}, {at::ones({3, 9}), {}}});
      },
      {"[2, 8] in Float", "[3, 9]"});
  expect_error<std::invalid_argument>(
      [&] {
        stage_products(StageInput::norm(x, gain_D, kEpsilon, at::kBFloat16), nullptr,
                       {{at::ones({3, 8}).to(at::kBFloat16), {}}, {at::ones({3, 8}), {}}});
      },
      {"narrower", "[2, 8] in BFloat16", "Float"});
  const auto gates_refused = [](const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight_OI,
                                std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>(
        [&] {
          stage_product(StageInput::gated(gate, up, Activation::silu), nullptr, {weight_OI, {}});
        },
        words);
  };
  const at::Tensor weight_OI = at::ones({3, 8});
  gates_refused(x, at::ones({2, 5}), weight_OI, {"gated_activation", "[2, 8]", "[2, 5]"});
  gates_refused(x, x, weight_OI.to(at::kDouble), {"of its type", "Double"});
  gates_refused(x, x, {}, {"none"});
  gates_refused(x.to(at::kHalf), x.to(at::kHalf), weight_OI.to(at::kHalf), {"float32"});
}

// In float32 the products are our own, and add up to 24 products in another order than LibTorch's: 24 times half a unit
// in the last place of their sizes, on both sides. In bfloat16 both are LibTorch's.
void expect_same_products(const Tensors& found, const Tensors& parts) {
  ASSERT_EQ(found.size(), parts.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].scalar_type() == at::kFloat) {
      expect_near(found[i], parts[i].to(at::kDouble), 3e-6, std::to_string(i));
    } else {
      EXPECT_TRUE(at::equal(found[i], parts[i])) << i;
    }
  }
}

// Values and gradients of all four inputs must be those of the same functions one after the other. What is computed
// again is what was multiplied, rounded inputs included.
TEST(StageProducts, GatesEqualTheirParts) {
  const InputFormat rounding{.type = InputType::int8};
  for (const at::ScalarType type : kTypes) {
    const Tensors inputs = {draw({2, 5, 24}, 30).mul(2.0).to(type), draw({2, 5, 24}, 31).to(type),
                            draw({7, 24}, 32).to(type), draw({7}, 33).to(type)};
    const at::Tensor weight = draw({2, 5, 7}, 34).to(type);
    for (const InputFormat* const format : {static_cast<const InputFormat*>(nullptr), &rounding}) {
      const Tensors found = with_gradients(
          [&](const Tensors& in) {
            return stage_product(StageInput::gated(in[0], in[1], Activation::silu), format, {in[2], in[3]});
          },
          inputs, weight);
      const Tensors parts = with_gradients(
          [&](const Tensors& in) {
            return at::linear(round_input(gated_activation_by_ops(in[0], in[1], Activation::silu), format), in[2],
                              in[3]);
          },
          inputs, weight);
      expect_same_products(found, parts);
    }
    // Here weight and bias need no gradients, and then there is no bias.
    const Tensors two = with_gradients(
        [&](const Tensors& in) {
          return stage_product(StageInput::gated(in[0], in[1], Activation::silu), nullptr, {inputs[2], {}});
        },
        {inputs[0], inputs[1]}, weight);
    const Tensors parts = with_gradients(
        [&](const Tensors& in) {
          return at::linear(gated_activation_by_ops(in[0], in[1], Activation::silu), inputs[2]);
        },
        {inputs[0], inputs[1]}, weight);
    expect_same_products(two, parts);
  }
}

// A weight in half the width gives the bits of the same weight widened beforehand. This holds for the values, and for
// the gradients, which are float32, the weight's own included.
TEST(StageProducts, WeightsHeldInLessGiveTheBitsOfWideOnes) {
  const at::Tensor gain_D = draw({24}, 40).to(at::kFloat);
  const Function behind_norm = [](const Tensors& in) {
    return at::cat(
        stage_products(StageInput::norm(in[0], in[1], kEpsilon, at::kFloat), nullptr, {{in[2], in[3]}, {in[2], {}}}),
        -1);
  };
  const Function plain = [](const Tensors& in) {
    return stage_product(StageInput::plain(in[0]), nullptr, {in[2], in[3]}).add(in[1].sum());
  };
  const Function gated = [](const Tensors& in) {
    return stage_product(StageInput::gated(in[0], in[0].mul(in[1]), Activation::silu), nullptr, {in[2], in[3]});
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

TEST(StageProducts, HeldWeightsEqualTheFormulaAndItsGradients) {
  const Function function = [](const Tensors& in) {
    return stage_product(StageInput::plain(in[0]), nullptr, {in[1], in[2]});
  };
  const Function formula = [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); };
  compare(function, formula,
          {draw({3, 4, 20}, 45).to(at::kFloat), draw({9, 20}, 46).to(at::kBFloat16), draw({9}, 47).to(at::kFloat)},
          draw({3, 4, 9}, 48), 2e-6);
  expect_error<std::invalid_argument>(
      [&] {
        stage_product(StageInput::plain(at::ones({2, 4})), nullptr, {at::ones({3, 5}), {}});
      },
      {"[2, 4]", "[3, 5]"});
  expect_error<std::invalid_argument>(
      [&] {
        stage_product(StageInput::plain(at::ones({2, 4}).to(at::kBFloat16)), nullptr, {at::ones({3, 4}), {}});
      },
      {"narrower", "Float"});
}

}  // namespace
}  // namespace pare::test
