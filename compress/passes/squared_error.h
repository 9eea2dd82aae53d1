// Weighted squared errors of rounded weights, summed in the order of the elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pare::compress {

// Sums of m_i (w_i - w'_i)^2 and m_i w_i^2, where m is an importance of each column, or 1.
struct SquaredError {
  double error = 0.0;
  double signal = 0.0;
  double relative() const { return signal > 0.0 ? error / signal : 0.0; }
  void add(std::span<const float> weight, std::span<const float> rounded, const float* importance_I, int64_t num_in) {
    for (size_t i = 0; i < weight.size(); ++i) {
      const double importance = importance_I == nullptr ? 1.0 : importance_I[i % static_cast<size_t>(num_in)];
      const double difference = static_cast<double>(weight[i]) - static_cast<double>(rounded[i]);
      error += importance * difference * difference;
      signal += importance * static_cast<double>(weight[i]) * static_cast<double>(weight[i]);
    }
  }
};

}  // namespace pare::compress
