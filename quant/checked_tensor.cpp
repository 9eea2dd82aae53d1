#include "quant/checked_tensor.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace pare {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
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
  // x - x is zero for every finite x and NaN for the others, and the sum vectorizes: the element itself is looked for
  // only when there is one.
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

}  // namespace pare
