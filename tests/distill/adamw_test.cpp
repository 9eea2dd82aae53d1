// Checks AdamW against its equations in float64 and against PyTorch's, and warm-up and cosine against their closed
// forms.
#include "distill/adamw.h"

#include "distill/by_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace pare {
using namespace distill;
namespace {

at::Tensor random_tensor(int64_t size, uint64_t seed, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(scale));
  at::Tensor tensor = at::zeros({size}, at::kFloat);
  for (int64_t i = 0; i < size; ++i) tensor.data_ptr<float>()[i] = normal(random);
  return tensor;
}

// Runs ten steps of algorithm 2 in float64, element by element. float32 rounds each operation by at most 2^-24
// relatively. There are some ten operations a step and ten steps, so 1e-5 of the largest change covers all of it.
class AdamW : public testing::TestWithParam<decltype(&adamw_step)> {};
INSTANTIATE_TEST_SUITE_P(OnACpuAndByOperators, AdamW, testing::Values(adamw_step, adamw_step_by_ops));

TEST_P(AdamW, IsTheAlgorithm) {
  constexpr int64_t kSize = 1000;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
  at::Tensor value = random_tensor(kSize, 1, 1.0);
  at::Tensor first = at::zeros({kSize}, at::kFloat), second = at::zeros({kSize}, at::kFloat);
  std::vector<double> w(kSize), m(kSize), v(kSize);
  for (int64_t i = 0; i < kSize; ++i) w[static_cast<size_t>(i)] = value.data_ptr<float>()[i];
  for (int64_t step = 1; step <= 10; ++step) {
    const at::Tensor gradient = random_tensor(kSize, 100 + static_cast<uint64_t>(step), 0.3);
    GetParam()(gradient, 0.5, step, 1e-2, options, value, first, second);
    for (size_t i = 0; i < kSize; ++i) {
      const double g = 0.5 * gradient.data_ptr<float>()[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      const double m_hat = m[i] / (1.0 - std::pow(0.9, static_cast<double>(step)));
      const double v_hat = v[i] / (1.0 - std::pow(0.99, static_cast<double>(step)));
      w[i] -= 1e-2 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * w[i]);
    }
  }
  for (size_t i = 0; i < kSize; ++i) EXPECT_NEAR(value.data_ptr<float>()[i], w[i], 1e-5) << i;
}

// The first step of Adam moves by the learning rate against the gradient's sign, whatever the gradient's size.
TEST(AdamWStep, FirstStepIsTheLearningRate) {
  at::Tensor value = at::zeros({3}, at::kFloat), first = at::zeros({3}, at::kFloat),
             second = at::zeros({3}, at::kFloat);
  at::Tensor gradient = at::zeros({3}, at::kFloat);
  gradient.data_ptr<float>()[0] = 1e-3f;
  gradient.data_ptr<float>()[1] = -50.0f;
  adamw_step(gradient, 1.0, 1, 0.25, AdamWOptions{}, value, first, second);
  EXPECT_NEAR(value.data_ptr<float>()[0], -0.25, 1e-5);
  EXPECT_NEAR(value.data_ptr<float>()[1], 0.25, 1e-5);
  EXPECT_EQ(value.data_ptr<float>()[2], 0.0f);  // without a gradient there is no step: 0 stays 0
}

TEST(AdamWStep, SameBitsForAnyNumberOfThreads) {
  const auto run = [](int num_threads) {
    at::set_num_threads(num_threads);
    at::Tensor value = random_tensor(300001, 7, 1.0), first = at::zeros_like(value), second = at::zeros_like(value);
    for (int64_t step = 1; step <= 3; ++step) {
      adamw_step(random_tensor(300001, 10 + static_cast<uint64_t>(step), 1.0), 1.0, step, 1e-3, AdamWOptions{}, value,
                 first, second);
    }
    return std::pair(value, gradient_norm(std::vector<at::Tensor>{value, second}));
  };
  const auto one = run(1), three = run(3);
  EXPECT_TRUE(one.first.equal(three.first));
  EXPECT_EQ(one.second, three.second);
}

TEST(AdamWStep, RefusesWhatDoesNotFit) {
  at::Tensor value = at::zeros({4}, at::kFloat), moment = at::zeros({4}, at::kFloat);
  EXPECT_THROW(adamw_step(at::zeros({3}, at::kFloat), 1.0, 1, 1e-3, AdamWOptions{}, value, moment, moment),
               std::invalid_argument);
  EXPECT_THROW(adamw_step(at::zeros({4}, at::kDouble), 1.0, 1, 1e-3, AdamWOptions{}, value, moment, moment),
               std::invalid_argument);
  EXPECT_THROW(adamw_step(at::zeros({4}, at::kFloat), 1.0, 0, 1e-3, AdamWOptions{}, value, moment, moment),
               std::invalid_argument);
}

TEST(GradientNorm, IsThatOfAllTogether) {
  const std::vector<at::Tensor> gradients = {at::full({100000}, 0.5, at::kFloat), at::full({7}, 2.0, at::kFloat)};
  EXPECT_DOUBLE_EQ(gradient_norm(gradients), std::sqrt(100000 * 0.25 + 7 * 4.0));
  EXPECT_EQ(clip_factor(4.0, 1.0), 0.25);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(4.0, 0.0), 1.0);
}

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  EXPECT_DOUBLE_EQ(learning_rate_at(1, 100, 10, 2.0, 0.1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(10, 100, 10, 2.0, 0.1), 2.0);
  EXPECT_NEAR(learning_rate_at(55, 100, 10, 2.0, 0.1), 2.0 * 0.55, 1e-12);  // half way it is the middle of 1 and 0.1
  EXPECT_NEAR(learning_rate_at(100, 100, 10, 2.0, 0.1), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate_at(1, 1, 0, 2.0, 0.1), 0.2, 1e-12);
  EXPECT_THROW(learning_rate_at(0, 100, 10, 2.0, 0.1), std::invalid_argument);
  EXPECT_THROW(learning_rate_at(101, 100, 10, 2.0, 0.1), std::invalid_argument);
}

}  // namespace
}  // namespace pare
