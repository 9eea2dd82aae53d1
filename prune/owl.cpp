#include "prune/owl.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/checked_tensor.h"

namespace pare::prune {

double outlier_share(const std::vector<at::Tensor>& scores, double multiple) {
  if (!(multiple > 0.0) || !std::isfinite(multiple)) {
    throw std::invalid_argument("outlier: expected a multiple of the mean above 0, found " + std::to_string(multiple));
  }
  double sum = 0.0;
  int64_t count = 0, num_outliers = 0;
  std::vector<at::Tensor> checked;
  for (const at::Tensor& layer : scores) {
    checked.push_back(quant::checked_float_matrix(layer, "scores"));
    quant::check_finite(checked.back(), "scores", "the weight or its statistics are damaged");
    const float* values = checked.back().const_data_ptr<float>();
    for (int64_t i = 0; i < layer.numel(); ++i) sum += values[i];
    count += layer.numel();
  }
  if (count == 0) throw std::invalid_argument("scores: expected those of at least one layer, found none");
  const double limit = multiple * sum / static_cast<double>(count);
  for (const at::Tensor& layer : checked) {
    const float* values = layer.const_data_ptr<float>();
    num_outliers += std::count_if(values, values + layer.numel(), [&](float value) { return value > limit; });
  }
  return static_cast<double>(num_outliers) / static_cast<double>(count);
}

std::vector<double> owl_ratios(const std::vector<OwlUnit>& units, double ratio, const OwlOptions& options) {
  if (!(options.bound >= 0.0 && ratio - options.bound >= 0.0 && ratio + options.bound <= 1.0)) {
    throw std::invalid_argument("ratio and owl_bound: expected ratio - bound >= 0 and ratio + bound <= 1, found " +
                                std::to_string(ratio) + " and " + std::to_string(options.bound));
  }
  double sum = 0.0, num_weights = 0.0;
  for (const OwlUnit& unit : units) {
    if (unit.num_weights < 1 || !(unit.outlier_share >= 0.0 && unit.outlier_share <= 1.0)) {
      throw std::invalid_argument("layers for OWL: expected weights and an outlier share of 0 to 1, found " +
                                  std::to_string(unit.num_weights) + " and " + std::to_string(unit.outlier_share));
    }
    sum += unit.outlier_share * static_cast<double>(unit.num_weights);
    num_weights += static_cast<double>(unit.num_weights);
  }
  if (units.empty()) throw std::invalid_argument("layers for OWL: expected at least one, found none");
  const double mean = sum / num_weights;
  double largest = 0.0;
  for (const OwlUnit& unit : units) largest = std::max(largest, std::abs(unit.outlier_share - mean));
  std::vector<double> ratios;
  for (const OwlUnit& unit : units) {
    // Shares that differ by rounding alone are equal.
    const double step = largest > 1e-12 ? options.bound * (unit.outlier_share - mean) / largest : 0.0;
    ratios.push_back(std::clamp(ratio - step, 0.0, 1.0));
  }
  return ratios;
}

}  // namespace pare::prune
