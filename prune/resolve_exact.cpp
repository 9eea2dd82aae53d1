// With K the kept live columns of a row and D the dropped ones, Z_K = W_K + (H_KK)^-1 H_KD W_D.
#include <ATen/ops/empty.h>

#include <Eigen/Cholesky>
#include <Eigen/QR>
#include <stdexcept>

#include "prune/mask.h"
#include "prune/resolve.h"
#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::prune {
namespace {

constexpr int64_t kSolvedRows = 4;  // a worker's share: each row is a system of its own
// Below this the Cholesky factorization of a matrix with a diagonal of ones says nothing more about the solution.
constexpr double kSmallestReciprocalCondition = 1e-13;

// Returns the x of smallest |x| that minimizes |M x - b|.
Eigen::VectorXd solve(const Eigen::MatrixXd& matrix, const Eigen::VectorXd& right) {
  {
    const Eigen::LLT<Eigen::MatrixXd> cholesky(matrix);
    if (cholesky.info() == Eigen::Success && cholesky.rcond() > kSmallestReciprocalCondition) {
      return cholesky.solve(right);
    }
  }
  return Eigen::CompleteOrthogonalDecomposition<Eigen::MatrixXd>(matrix).solve(right);
}

}  // namespace

at::Tensor resolve_exact(const at::Tensor& target_OI, const at::Tensor& kept_OI, const NormalizedHessian& hessian) {
  const at::Tensor target = quant::checked_weight(target_OI), kept = checked_mask(kept_OI, target);
  const int64_t num_out = target.size(0), num_in = target.size(1);
  if (hessian.hessian_II.size(0) != num_in) {
    throw std::invalid_argument("re-solving: expected a Hessian of the weight's " + std::to_string(num_in) +
                                " columns, found " + quant::shape_text(hessian.hessian_II));
  }
  at::Tensor result_OI = masked(target, kept);
  const float* values = hessian.hessian_II.const_data_ptr<float>();
  quant::for_row_chunks(num_out, kSolvedRows, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      const float* weights_I = target.const_data_ptr<float>() + row * num_in;
      const bool* kept_I = kept.const_data_ptr<bool>() + row * num_in;
      float* result_I = result_OI.mutable_data_ptr<float>() + row * num_in;
      std::vector<int64_t> columns_K;
      for (int64_t i = 0; i < num_in; ++i) {
        if (kept_I[i] && values[i * num_in + i] != 0.0f) columns_K.push_back(i);
      }
      const auto num_kept = static_cast<Eigen::Index>(columns_K.size());
      if (num_kept == 0) continue;
      Eigen::MatrixXd matrix_KK(num_kept, num_kept);
      Eigen::VectorXd right_K = Eigen::VectorXd::Zero(num_kept);
      for (Eigen::Index a = 0; a < num_kept; ++a) {
        const float* hessian_I = values + columns_K[a] * num_in;
        for (Eigen::Index b = 0; b < num_kept; ++b) matrix_KK(b, a) = hessian_I[columns_K[b]];
        matrix_KK(a, a) += hessian.damping;
        for (int64_t i = 0; i < num_in; ++i) {
          if (!kept_I[i]) right_K(a) += static_cast<double>(hessian_I[i]) * weights_I[i];
        }
      }
      const Eigen::VectorXd scale_K = matrix_KK.diagonal().cwiseSqrt().cwiseInverse();
      const Eigen::VectorXd change_K = scale_K.cwiseProduct(
          solve(scale_K.asDiagonal() * matrix_KK * scale_K.asDiagonal(), scale_K.cwiseProduct(right_K)));
      for (Eigen::Index a = 0; a < num_kept; ++a) {
        result_I[columns_K[a]] = static_cast<float>(weights_I[columns_K[a]] + change_K(a));
      }
    }
  });
  return result_OI;
}

}  // namespace pare::prune
