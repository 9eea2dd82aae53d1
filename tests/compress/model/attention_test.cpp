// Checks attention of grouped heads against plain loops in float64, and its gradients against central differences.
#include "compress/model/attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>

#include "tests/expect_error.h"

namespace pare {
using namespace compress;
namespace {

constexpr double kScale = 0.37;
constexpr int64_t kBatch = 2, kKeys = 7, kHeadSize = 6;

at::Tensor draw(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

at::Tensor by_loops(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionRule& rule) {
  at::Tensor out = at::empty_like(q);
  const auto Q = q.accessor<double, 4>(), K = k.accessor<double, 4>(), V = v.accessor<double, 4>();
  auto O = out.accessor<double, 4>();
  const int64_t heads_of_group = q.size(1) / k.size(1);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(1); ++h) {
      const int64_t g = h / heads_of_group;
      for (int64_t i = 0; i < q.size(2); ++i) {
        double sum = rule.sinks_H.defined() ? std::exp(rule.sinks_H[h].item<double>()) : 0.0;
        std::array<double, kHeadSize> mixed{};
        for (int64_t t = 0; t < kKeys; ++t) {
          const int64_t own = kKeys - q.size(2) + i;  // the queries are those of the last keys
          if (t > own || (rule.window > 0 && t <= own - rule.window)) continue;
          double score = 0.0;
          for (int64_t e = 0; e < kHeadSize; ++e) score += Q[b][h][i][e] * K[b][g][t][e];
          score *= rule.scale;
          if (rule.softcap > 0.0) score = rule.softcap * std::tanh(score / rule.softcap);
          const double weight = std::exp(score);
          sum += weight;
          for (int64_t e = 0; e < kHeadSize; ++e) mixed[static_cast<size_t>(e)] += weight * V[b][g][t][e];
        }
        for (int64_t e = 0; e < kHeadSize; ++e) O[b][h][i][e] = mixed[static_cast<size_t>(e)] / sum;
      }
    }
  }
  return out;
}

struct Case {
  int64_t num_heads, num_groups, num_queries, window;
  double softcap;
  bool has_sinks = false;
};

class Attention : public testing::TestWithParam<AttentionKernel> {};

TEST_P(Attention, EqualsPlainLoopsWithTheirGradients) {
  for (const Case& test : {Case{6, 2, kKeys, 0, 0.0}, Case{6, 2, 4, 3, 0.0}, Case{3, 3, kKeys, 0, 0.0},
                           Case{4, 1, 1, 3, 0.0}, Case{6, 3, kKeys, 3, 0.0}, Case{6, 3, 5, 0, 0.7},
                           Case{6, 2, kKeys, 3, 0.0, true}, Case{4, 1, 1, 0, 0.0, true}}) {
    SCOPED_TRACE(std::to_string(test.num_heads) + " heads, " + std::to_string(test.num_groups) + " groups");
    // In memory, heads follow tokens as the model's do.
    const auto heads = [](int64_t num_tokens, int64_t num_heads, uint64_t seed) {
      return draw({kBatch, num_tokens, num_heads, kHeadSize}, seed).transpose(1, 2);
    };
    const std::array<at::Tensor, 3> inputs = {heads(test.num_queries, test.num_heads, 1),
                                              heads(kKeys, test.num_groups, 2), heads(kKeys, test.num_groups, 3)};
    AttentionRule rule{kScale, test.window, test.softcap};
    if (test.has_sinks) rule.sinks_H = draw({test.num_heads}, 9).mul(3.0);
    const at::Tensor weight = draw(inputs[0].sizes(), 4);
    std::vector<at::Tensor> leaves;
    at::Tensor value;
    std::vector<at::Tensor> gradients;
    {
      const at::AutoGradMode enabled(true);
      for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
      value = attention_of(GetParam(), leaves[0], leaves[1], leaves[2], rule);
      gradients = torch::autograd::grad({value}, leaves, {weight});
    }
    const at::Tensor expected = by_loops(inputs[0], inputs[1], inputs[2], rule);
    EXPECT_LE(value.detach().sub(expected).abs().max().item<double>(), 1e-13);
    // Central differences of sum(weight * out) err by about step^2, and by roundings of its sum over step.
    constexpr double kStep = 1e-4;
    for (size_t n = 0; n < inputs.size(); ++n) {
      for (int64_t place = 0; place < inputs[n].numel(); place += 5) {
        std::array<double, 2> sums{};
        for (const int side : {0, 1}) {
          std::array<at::Tensor, 3> moved = {inputs[0], inputs[1], inputs[2]};
          moved[n] = inputs[n].contiguous().clone();
          moved[n].data_ptr<double>()[place] += side == 0 ? kStep : -kStep;
          sums[static_cast<size_t>(side)] =
              by_loops(moved[0], moved[1], moved[2], rule).mul(weight).sum().item<double>();
        }
        EXPECT_NEAR(gradients[n].contiguous().data_ptr<double>()[place], (sums[0] - sums[1]) / (2.0 * kStep), 1e-6)
            << "input " << n << ", " << place;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Attention, testing::Values(AttentionKernel::fused, AttentionKernel::by_query_blocks));

TEST(AttentionShapes, RefusesWhatDoesNotFit) {
  const at::Tensor q = draw({1, 4, 5, 8}, 1), kv = draw({1, 2, 5, 8}, 2);
  EXPECT_NO_THROW(attention_of(AttentionKernel::fused, q, kv, kv, {.scale = kScale}));
  const auto refused = [&](const at::Tensor& k, const at::Tensor& v) {
    for (const AttentionKernel kernel : {AttentionKernel::fused, AttentionKernel::by_query_blocks}) {
      expect_error<std::invalid_argument>([&] { attention_of(kernel, q, k, v, {.scale = kScale}); },
                                          {"attention_of", "[1, 4, 5, 8]"});
    }
  };
  refused(draw({1, 3, 5, 8}, 3), draw({1, 3, 5, 8}, 3));
  refused(kv, draw({1, 2, 6, 8}, 3));
  refused(draw({1, 2, 4, 8}, 3), draw({1, 2, 4, 8}, 3));
  refused(kv.to(at::kFloat), kv);
}

}  // namespace
}  // namespace pare
