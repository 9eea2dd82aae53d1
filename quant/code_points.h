// The values of a code with a table, in ascending order, to which weights are rounded.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/format/weight_code.h"

namespace pare::quant {

// Rounds to the nearest value; of two that are equally near, to the one with the even code. Loops over weights that
// call these functions are vectorized: hence the fixed counts.
class CodePoints {
 public:
  // Throws std::invalid_argument for a code without a table.
  explicit CodePoints(const runtime::WeightCode& code);

  int num_values() const { return num_values_; }
  // Returns the place of the value nearest to x among the distinct values.
  int place(float x) const {
    int place = 0;
    for (int i = 0; i < runtime::kTableValues - 1; ++i) place += x > thresholds_[i] ? 1 : 0;
    return place;
  }
  float nearest(float x) const { return values_[place(x)]; }
  float value_at(int place) const { return values_[place]; }
  uint8_t code_at(int place) const { return codes_[place]; }

 private:
  int num_values_ = 0;  // distinct ones: E2M1 has two zeros
  // A value above thresholds_[i] rounds to a place after i. Missing ones are infinite.
  std::array<float, runtime::kTableValues> thresholds_{}, values_{};
  std::array<uint8_t, runtime::kTableValues> codes_{};
};

}  // namespace pare::quant
