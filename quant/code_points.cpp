#include "quant/code_points.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace pare::quant {

CodePoints::CodePoints(const runtime::WeightCode& code) {
  if (code.values.empty() || code.values.size() > runtime::kTableValues) {
    throw std::invalid_argument("code '" + std::string(code.name) + "': expected a table of at most " +
                                std::to_string(runtime::kTableValues) + " values");
  }
  std::vector<int> order(code.values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return code.values[a] < code.values[b]; });
  for (const int place : order) {
    // The first of the codes with equal values stands for all, as +0 for -0.
    if (num_values_ > 0 && code.values[place] == values_[num_values_ - 1]) continue;
    values_[num_values_] = code.values[place];
    codes_[num_values_++] = static_cast<uint8_t>(place);
  }
  thresholds_.fill(std::numeric_limits<float>::infinity());
  for (int i = 0; i + 1 < num_values_; ++i) {
    const double middle = (static_cast<double>(values_[i]) + values_[i + 1]) / 2.0;
    const auto threshold = static_cast<float>(middle);
    const bool goes_up = threshold > middle || (threshold == middle && codes_[i] % 2 != 0 && codes_[i + 1] % 2 == 0);
    thresholds_[i] = goes_up ? std::nextafter(threshold, -std::numeric_limits<float>::infinity()) : threshold;
  }
}

}  // namespace pare::quant
