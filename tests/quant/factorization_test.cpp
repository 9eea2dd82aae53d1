#include "quant/factorization.h"

#include <ATen/Parallel.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <stdexcept>

#include "quant/row_chunks.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
namespace {

at::Tensor damped_hessian(int64_t size, uint32_t seed) {
  const at::Tensor matrix = random_hessian(size, seed).to(at::kDouble);
  const at::Tensor symmetric = matrix.add(matrix.t()).mul_(0.5);
  symmetric.diagonal().add_(0.01 * symmetric.diagonal().mean().item<double>());
  return symmetric;
}

TEST(InverseUpperFactor, MakesTheMatrixTheIdentity) {
  for (const int64_t size : {1, 2, 40, 128, 129, 300}) {
    const at::Tensor matrix = damped_hessian(size, 1);
    const std::optional<at::Tensor> upper = inverse_upper_factor(matrix);
    ASSERT_TRUE(upper.has_value());
    EXPECT_TRUE(upper->equal(upper->triu()));
    EXPECT_GT(upper->diagonal().min().item<double>(), 0.0);
    const at::Tensor identity = at::eye(size, at::kDouble);
    // The error is size * eps64 * condition, and the damping bounds the condition by size / 0.01.
    const double tolerance = double(size) * 2.2e-16 * (double(size) / 0.01) + 1e-14;
    EXPECT_LE(upper->matmul(matrix).matmul(upper->t()).sub(identity).norm().item<double>(), tolerance);
    EXPECT_LE(upper->t().matmul(*upper).matmul(matrix).sub(identity).norm().item<double>(), 100 * tolerance);
  }
}

TEST(InverseUpperFactor, TakesThePlaceOfItsMatrix) {
  const int threads = omp_get_max_threads();
  for (const int64_t size : {5, 128, 300, 700}) {
    const at::Tensor matrix = damped_hessian(size, 4);
    const at::Tensor expected = *inverse_upper_factor(matrix);
    for (const int num_threads : {1, 2, 3}) {
      omp_set_num_threads(num_threads);
      const at::Tensor found = matrix.clone();
      EXPECT_TRUE(invert_to_upper_factor(found));
      EXPECT_TRUE(found.equal(expected)) << size << " columns, " << num_threads << " threads";
    }
    omp_set_num_threads(threads);
  }
}

TEST(InverseUpperFactor, IsEmptyForMatricesThatAreNotPositiveDefinite) {
  const at::Tensor ones = at::ones({150, 150}, at::kDouble);
  EXPECT_FALSE(inverse_upper_factor(ones).has_value());
  for (const int64_t position : {0, 60, 149}) {
    const at::Tensor indefinite = damped_hessian(150, 2);
    indefinite.diagonal().select(0, position).fill_(-1.0);
    EXPECT_FALSE(inverse_upper_factor(indefinite).has_value());
  }
  // The matrix is numerically singular: it has rank 30 plus dirt far below what float64 resolves.
  const at::Tensor x = random_weight(30, 150, 3).to(at::kDouble);
  const at::Tensor singular = x.t().matmul(x);
  singular.diagonal().add_(1e-17 * singular.diagonal().mean().item<double>());
  EXPECT_FALSE(inverse_upper_factor(singular).has_value());
}

TEST(RowChunks, CoverEveryRowOnceAndRestoreTheThreads) {
  const int torch_threads = at::get_num_threads();  // must come first: this call sets OpenMP's number of threads to
                                                    // MKL's
  const int omp_threads = omp_get_max_threads();
  for (const int64_t num_rows : {0, 1, 10, 11}) {
    std::vector<int> visits(num_rows, 0);
    for_row_chunks(num_rows, 5, [&](int64_t first_row, int64_t count) {
      EXPECT_EQ(first_row % 5, 0);
      EXPECT_EQ(at::get_num_threads(), 1);
      for (int64_t row = first_row; row < first_row + count; ++row) ++visits[row];
    });
    EXPECT_EQ(visits, std::vector<int>(num_rows, 1));
  }
  EXPECT_EQ(omp_get_max_threads(), omp_threads);
  EXPECT_EQ(at::get_num_threads(), torch_threads);
}

TEST(RowChunks, PassOnAWorkersException) {
  const int torch_threads = at::get_num_threads();
  EXPECT_THROW(for_row_chunks(10, 1,
                              [](int64_t first_row, int64_t) {
                                if (first_row == 7) throw std::runtime_error("row 7");
                              }),
               std::runtime_error);
  EXPECT_EQ(at::get_num_threads(), torch_threads);
}

}  // namespace
}  // namespace pare
