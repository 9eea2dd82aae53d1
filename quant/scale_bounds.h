// Bounds on the scales of an input (quant/awq.h, quant/smoothquant.h). What produces the input holds values that are
// divided by the scales, and the type that stores these values must be able to hold the results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace pare::quant {

// The least and the greatest s of each channel, 0 < least <= 1 <= most. Where s is rounded to powers of two, the bounds
// are powers of two as well. Channels of one producer have equal bounds. Empty: any s will do.
struct ScaleBounds {
  std::vector<float> least_I = {}, most_I = {};

  double kept_within(size_t channel, double scale) const {
    if (least_I.empty()) return scale;
    return std::clamp(scale, static_cast<double>(least_I[channel]), static_cast<double>(most_I[channel]));
  }
  // Throws std::invalid_argument when the number of channels is another.
  void check(int64_t num_channels) const {
    if (least_I.empty() && most_I.empty()) return;
    for (const std::vector<float>* bound_I : {&least_I, &most_I}) {
      if (static_cast<int64_t>(bound_I->size()) == num_channels) continue;
      throw std::invalid_argument("bounds of scales: expected one for each of " + std::to_string(num_channels) +
                                  " channels, found " + std::to_string(bound_I->size()));
    }
  }
};

}  // namespace pare::quant
