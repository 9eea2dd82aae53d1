// Checks distances of hidden states against plain loops, and their gradients against finite differences.
#include "distill/hidden_states.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "tests/expect_error.h"

namespace pare {
using namespace distill;
namespace {

constexpr int64_t kRows = 7, kWidth = 12;

at::Tensor random_RD(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  at::Tensor x_RD = at::empty({kRows, kWidth}, at::kDouble);
  for (int64_t i = 0; i < x_RD.numel(); ++i) x_RD.data_ptr<double>()[i] = normal(random);
  x_RD.select(0, 2).mul_(500.0);  // this token would decide a mean alone
  return x_RD;
}

double plain_distance(const double* student, const double* teacher) {
  double distance = 0.0, size = 0.0;
  for (int64_t i = 0; i < kWidth; ++i) {
    distance += (student[i] - teacher[i]) * (student[i] - teacher[i]);
    size += teacher[i] * teacher[i];
  }
  return size == 0.0 ? 0.0 : distance / size;
}

TEST(HiddenStates, DistancesAreWhatPlainLoopsGiveWhateverTheNorm) {
  const at::Tensor student_RD = random_RD(1), teacher_RD = random_RD(2);
  teacher_RD.select(0, 4).zero_();
  const at::Tensor distances_R = hidden_distances(student_RD, teacher_RD);
  const at::Tensor single_R = hidden_distances(student_RD.to(at::kFloat), teacher_RD.to(at::kFloat));
  for (int64_t r = 0; r < kRows; ++r) {
    const double expected =
        plain_distance(student_RD.data_ptr<double>() + r * kWidth, teacher_RD.data_ptr<double>() + r * kWidth);
    EXPECT_NEAR(distances_R[r].item<double>(), expected, 1e-13 * (1.0 + expected));
    // There are two sums of kWidth products, each rounded to 2^-24.
    EXPECT_NEAR(single_R[r].item<double>(), expected, 4.0 * kWidth * 0x1p-24 * (1.0 + expected));
  }
  EXPECT_EQ(hidden_distances(teacher_RD, teacher_RD).abs().max().item<double>(), 0.0);
}

TEST(HiddenStates, GradientsAreThoseOfFiniteDifferences) {
  const at::AutoGradMode enabled(true);
  const at::Tensor teacher_RD = random_RD(4);
  const at::Tensor student_RD = random_RD(3).requires_grad_(true);
  const at::Tensor gradient_RD =
      torch::autograd::grad({hidden_distances(student_RD, teacher_RD).sum()}, {student_RD}).front();
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kWidth; ++i) {
      at::Tensor moved = student_RD.detach().clone();
      // The function is quadratic, so a central difference has no error but that of rounding.
      const double step = 1e-3 * (1.0 + std::abs(moved[r][i].item<double>()));
      double* const place = moved.data_ptr<double>() + r * kWidth + i;
      *place += step;
      const double above = hidden_distances(moved, teacher_RD).sum().item<double>();
      *place -= 2.0 * step;
      const double below = hidden_distances(moved, teacher_RD).sum().item<double>();
      EXPECT_NEAR(gradient_RD[r][i].item<double>(), (above - below) / (2.0 * step), 1e-8);
    }
  }
}

TEST(HiddenStates, BlocksAreComparedAtTheSameShareOfTheModel) {
  for (int64_t b = 0; b < 6; ++b) EXPECT_EQ(teacher_block(b, 6, 6), b);
  for (int64_t b = 0; b < 10; ++b) EXPECT_EQ(teacher_block(b, 10, 30), 3 * b + 2);
  // A share at which no block of the teacher ends is rounded up, and the last blocks belong together.
  EXPECT_EQ(teacher_block(0, 2, 5), 2);
  EXPECT_EQ(teacher_block(1, 2, 5), 4);
  EXPECT_EQ(teacher_block(0, 5, 2), 0);
  EXPECT_EQ(teacher_block(4, 5, 2), 1);
}

TEST(HiddenStates, RefuseWhatCannotBeCompared) {
  const at::Tensor x_RD = random_RD(5);
  expect_error<std::invalid_argument>([&] { hidden_distances(x_RD, x_RD.narrow(1, 0, 5)); }, {"[7, 12]", "[7, 5]"});
  expect_error<std::invalid_argument>([&] { hidden_distances(x_RD, x_RD.to(at::kFloat)); }, {"of one shape"});
  expect_error<std::invalid_argument>([&] { hidden_distances(at::Tensor(), x_RD); }, {"none"});
  expect_error<std::invalid_argument>([] { teacher_block(3, 3, 3); }, {"0 .. 2", "found 3"});
}

}  // namespace
}  // namespace pare
