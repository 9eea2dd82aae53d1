#include "quant/checked_tensor.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace pare::quant {
namespace {

// H may differ from its transpose by this share of sqrt(H_ii H_jj). Rounding in float32 sums stays far below it, and a
// wrong matrix is far above it.
constexpr float kSymmetryTolerance = 1e-3f;
constexpr int64_t kSquareColumns = 16;

void check_hessian(const at::Tensor& hessian_II) {
  const int64_t size = hessian_II.size(0);
  if (hessian_II.size(1) != size) {
    throw std::invalid_argument("Hessian: expected a square matrix, found shape " + shape_text(hessian_II));
  }
  check_finite(hessian_II, "Hessian", "an activation overflowed during calibration");
  const float* hessian = hessian_II.const_data_ptr<float>();
  const auto refuse = [](int64_t i, int64_t j, float value, const std::string& expected) {
    std::ostringstream message;
    message << "Hessian[" << i << ", " << j << "] is " << value << "; expected " << expected
            << ": a mean of x x^T is symmetric with a diagonal that is not negative";
    throw std::invalid_argument(message.str());
  };
  std::vector<float> root_I(size);
  for (int64_t i = 0; i < size; ++i) {
    const float diagonal = hessian[i * size + i];
    if (diagonal < 0.0f) refuse(i, i, diagonal, "no negative value");
    root_I[i] = std::sqrt(diagonal);
  }
  // By squares, so that the mirrored values lie in the cache.
  for (int64_t first = 0; first < size; first += kSquareColumns) {
    for (int64_t i = first; i < size; ++i) {
      for (int64_t j = first; j < std::min(i, first + kSquareColumns); ++j) {
        const float value = hessian[i * size + j], mirrored = hessian[j * size + i];
        if (std::abs(value - mirrored) <= kSymmetryTolerance * root_I[i] * root_I[j]) continue;
        refuse(
            i, j, value,
            "the value of Hessian[" + std::to_string(j) + ", " + std::to_string(i) + "], " + std::to_string(mirrored));
      }
    }
  }
}

}  // namespace

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string found_text(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.toString() + " of shape " + shape_text(tensor) : std::string("none");
}

at::Tensor checked_float_matrix(const at::Tensor& matrix, const std::string& name) {
  if (!matrix.defined()) throw std::invalid_argument(name + ": expected a float32 matrix, found none");
  if (matrix.dim() != 2 || matrix.scalar_type() != at::kFloat || !matrix.device().is_cpu() || matrix.numel() == 0) {
    throw std::invalid_argument(name + ": expected a float32 matrix with elements in host memory, found " +
                                matrix.toString() + " of shape " + shape_text(matrix));
  }
  return matrix.detach().contiguous();
}

int64_t find_non_finite(const float* values, int64_t num_values) {
  // x - x is zero for every finite x and NaN for the others, and the sum vectorizes. The element itself is searched
  // only where there is one.
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < num_values; ++i) sum += values[i] - values[i];
  if (sum == 0.0f) return -1;
  return std::find_if(values, values + num_values, [](float value) { return !std::isfinite(value); }) - values;
}

void check_finite(const at::Tensor& matrix, const std::string& name, const std::string& advice) {
  const float* values = matrix.const_data_ptr<float>();
  const int64_t bad = find_non_finite(values, matrix.numel());
  if (bad < 0) return;
  std::ostringstream message;
  message << name << "[" << bad / matrix.size(1) << ", " << bad % matrix.size(1) << "] is " << values[bad]
          << "; expected finite values: " << advice;
  throw std::invalid_argument(message.str());
}

at::Tensor checked_weight(const at::Tensor& weight_OI) {
  at::Tensor weight = checked_float_matrix(weight_OI, "weight");
  check_finite(weight, "weight", "the checkpoint is damaged, or an earlier pass overflowed");
  return weight;
}

void check_kept(const at::Tensor& kept_OI, int64_t num_out, int64_t num_in) {
  if (kept_OI.dim() == 2 && kept_OI.size(0) == num_out && kept_OI.size(1) == num_in &&
      kept_OI.scalar_type() == at::kBool && kept_OI.device().is_cpu()) {
    return;
  }
  throw std::invalid_argument("mask: expected a bool matrix of shape [" + std::to_string(num_out) + ", " +
                              std::to_string(num_in) + "] in host memory, found " + kept_OI.toString() + " of shape " +
                              shape_text(kept_OI));
}

at::Tensor checked_weight(const at::Tensor& weight_OI, const at::Tensor& kept_OI) {
  const at::Tensor weight = checked_weight(weight_OI);
  if (!kept_OI.defined()) return weight;
  check_kept(kept_OI, weight.size(0), weight.size(1));
  return weight.masked_fill(kept_OI.logical_not(), 0.0);
}

void check_num_masks(size_t num_masks, size_t num_weights) {
  if (num_masks == 0 || num_masks == num_weights) return;
  throw std::invalid_argument("masks: expected none or one for each of " + std::to_string(num_weights) +
                              " weights, found " + std::to_string(num_masks));
}

at::Tensor checked_hessian(const at::Tensor& hessian_II) {
  at::Tensor hessian = checked_float_matrix(hessian_II, "Hessian");
  check_hessian(hessian);
  return hessian;
}

}  // namespace pare::quant
