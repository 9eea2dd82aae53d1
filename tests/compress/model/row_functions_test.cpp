// Checks norms, rotations, gates and routes against autograd of their formulas in float64, and against plain loops.
#include "compress/model/row_functions.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "compress/model/row_functions_by_ops.h"
#include "runtime/engine/routing.h"
#include "tests/compress/model/formulas.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

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
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    for (const at::ScalarType type : kTypes) {
      // In bfloat16 activation and product are rounded one after the other, and so are the parts of the gradient.
      const double relative = type == at::kFloat ? 4e-6 : 3.0 * tolerance(type);
      for (const auto& gated : {gated_through_identity, gated_activation_by_ops}) {
        compare([&](const Tensors& in) { return gated(in[0], in[1], activation); },
                [&](const Tensors& in) { return gate_formula(in, activation); },
                {draw({7, 45}, 10).mul(3.0).to(type), draw({7, 45}, 11).to(type)}, draw({7, 45}, 12), relative);
      }
    }
  }
}

// Many gates and ups lie beyond their clamps, where they have no gradient.
TEST(RowFunctions, ClampedGatesEqualTheFormulaAndTheirGradients) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& gated : {gated_through_identity, gated_activation_by_ops}) {
      compare([&](const Tensors& in) { return gated(in[0], in[1], Activation::clamped_swiglu); },
              [&](const Tensors& in) { return gate_formula(in, Activation::clamped_swiglu); },
              {draw({7, 45}, 10).mul(6.0).to(type), draw({7, 45}, 11).mul(6.0).to(type)}, draw({7, 45}, 12),
              type == at::kFloat ? 4e-6 : 3.0 * tolerance(type));
    }
  }
}

TEST(RowFunctions, GatesEqualPlainLoops) {
  const at::Tensor gate = draw({40}, 13).mul(4.0).to(at::kFloat), up = draw({40}, 14).to(at::kFloat);
  const at::Tensor silu = gated_through_identity(gate, up, Activation::silu);
  const at::Tensor gelu = gated_through_identity(gate, up, Activation::gelu);
  const at::Tensor tanh = gated_through_identity(gate, up, Activation::gelu_tanh);
  for (int64_t i = 0; i < 40; ++i) {
    const double g = gate[i].item<double>(), u = up[i].item<double>();
    EXPECT_NEAR(silu[i].item<double>(), g / (1.0 + std::exp(-g)) * u, 2e-5);
    EXPECT_NEAR(gelu[i].item<double>(), g * 0.5 * std::erfc(-g / std::sqrt(2.0)) * u, 2e-5);
    EXPECT_NEAR(tanh[i].item<double>(),
                0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g))) * u, 2e-5);
  }
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
      {[](const Tensors& in) { return gated_through_identity(in[0], in[1], Activation::silu); }, {x, y}},
      {[](const Tensors& in) { return gated_through_identity(in[0], in[1], Activation::gelu_tanh); }, {x, y}}};
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
    for (const Activation activation :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::clamped_swiglu}) {
      cases.push_back(
          {[activation](const Tensors& in) { return gated_through_identity(in[0], in[1], activation); }, {x, y}});
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
  const auto gate_refused = [&](const at::Tensor& gate, const at::Tensor& up,
                                std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { gated_activation(gate, up, Activation::silu); }, words);
  };
  gate_refused(x, at::ones({2, 5}), {"gated_activation", "[2, 4]", "[2, 5]"});
  gate_refused(x, x.to(at::kBFloat16), {"of one type"});
  gate_refused(x.to(at::kHalf), x.to(at::kHalf), {"float32"});
  gate_refused(x, {}, {"none"});
}

// Routes are the runtime's, bit for bit, and their gradients those of the formula: the weights of the experts that were
// chosen, as shares of softmax or divided by their sum.
TEST(RowFunctions, RoutesAreTheRuntimesWithTheGradientsOfTheFormula) {
  at::Tensor logits_RE = draw({40, 6}, 50).to(at::kFloat);
  logits_RE[3].fill_(0.25);  // among equals the lower ones are chosen
  for (const bool normalizes : {false, true}) {
    const RoutingDescription routing{.experts_per_token = 2, .normalizes_top_weights = normalizes};
    const TokenRouting found = route_rows(logits_RE, routing);
    for (int64_t r = 0; r < 40; ++r) {
      int32_t experts_K[2];
      float weights_K[2];
      route_row({logits_RE.const_data_ptr<float>() + r * 6, 6}, routing, {}, experts_K, weights_K);
      for (int64_t k = 0; k < 2; ++k) {
        EXPECT_EQ(found.experts_RK[r][k].item<int64_t>(), experts_K[k]);
        EXPECT_EQ(found.weights_RK[r][k].item<float>(), weights_K[k]);
      }
    }
    const auto formula = [&](const Tensors& in) {
      const at::Tensor top_RK = at::softmax(in[0], -1).gather(-1, found.experts_RK);
      return normalizes ? top_RK.div(top_RK.sum(-1, true)) : top_RK;
    };
    compare([&](const Tensors& in) { return route_rows(in[0], routing).weights_RK; }, formula, {logits_RE},
            draw({40, 2}, 51), 2e-6);
    // By operators the experts of a row come in another order.
    const auto dense = [](const TokenRouting& chosen) {
      return at::zeros({40, 6}).scatter(-1, chosen.experts_RK, chosen.weights_RK);
    };
    compare([&](const Tensors& in) { return dense(route_rows_by_ops(in[0], routing)); },
            [&](const Tensors& in) {
              return at::zeros({40, 6}, at::kDouble).scatter(-1, found.experts_RK, formula(in));
            },
            {logits_RE}, draw({40, 6}, 52), 2e-6);
  }
}

// The same of scores by sigmoid that a correction and groups choose among, with a shared expert.
TEST(RowFunctions, CorrectedScoresOfGroupsAndASharedExpertHaveTheGradientsOfTheFormula) {
  const at::Tensor logits_RL = draw({40, 9}, 60).to(at::kFloat), correction_E = draw({8}, 61).to(at::kFloat).mul(0.2);
  for (const bool normalizes : {false, true}) {
    const RoutingDescription routing{.experts_per_token = 4,
                                     .normalizes_top_weights = normalizes,
                                     .scores = RouterScores::sigmoid,
                                     .smallest_sum = 1.5f,  // of some rows
                                     .weight_factor = 2.5f,
                                     .num_groups = 4,
                                     .groups_per_token = 2,
                                     .has_shared = true,
                                     .weighs_shared = true};
    const TokenRouting found = route_rows(logits_RL, routing, correction_E);
    const at::Tensor chosen_RK = found.experts_RK.narrow(1, 0, 3);
    EXPECT_TRUE(found.experts_RK.select(1, 3).eq(8).all().item<bool>());
    const auto formula = [&](const Tensors& in) {
      const at::Tensor top_RK = at::sigmoid(in[0].narrow(1, 0, 8)).gather(-1, chosen_RK);
      const at::Tensor shared_R1 = at::sigmoid(in[0].narrow(1, 8, 1));
      const at::Tensor sum_R1 = top_RK.sum(-1, true).clamp_min(1.5);
      return at::cat({(normalizes ? top_RK.div(sum_R1) : top_RK).mul(2.5), shared_R1}, -1);
    };
    compare([&](const Tensors& in) { return route_rows(in[0], routing, correction_E).weights_RK; }, formula,
            {logits_RL}, draw({40, 4}, 62), 1e-5);
    const auto dense = [](const TokenRouting& chosen) {
      return at::zeros({40, 9}).scatter(-1, chosen.experts_RK, chosen.weights_RK);
    };
    compare([&](const Tensors& in) { return dense(route_rows_by_ops(in[0], routing, correction_E)); },
            [&](const Tensors& in) {
              return at::zeros({40, 9}, at::kDouble).scatter(-1, found.experts_RK, formula(in));
            },
            {logits_RL}, draw({40, 9}, 63), 1e-5);
  }
}

TEST(RowFunctions, RowsOfAnExpertAreTheTokensThatGoToIt) {
  const TokenRouting routing{at::tensor({0, 2, 1, 2, 0, 1}, at::kLong).view({3, 2}),
                             at::tensor({0.75f, 0.25f, 0.5f, 0.5f, 0.875f, 0.125f}).view({3, 2})};
  const ExpertRows rows = routing.rows_of(2);
  EXPECT_TRUE(at::equal(rows.rows_S, at::tensor({0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.weights_S, at::tensor({0.25f, 0.5f})));
  EXPECT_EQ(routing.rows_of(3).rows_S.size(0), 0);
}

}  // namespace
}  // namespace pare::test
