// Values that no weight or scale has: NaN, infinity, zeros and the like.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// Holds what is in a tensor of floats.
struct ValueCounts {
  int64_t num_values = 0, num_nan = 0, num_infinite = 0, num_negative = 0, num_zero = 0;
  int64_t num_largest = 0;    // of the magnitude 65504, in F16
  int64_t num_subnormal = 0;  // in F16, and not 0
  float smallest = 0.0f;      // of the positive values; 0: there is none
  double magnitude = 0.0;     // the sum of the magnitudes of finite values
  bool are_finite() const { return num_nan == 0 && num_infinite == 0; }
};
// `dtype` may be F32, F16, BF16, F64, F8_E4M3 or F8_E8M0. Throws what convert_to_float throws.
ValueCounts count_values(DType dtype, std::span<const std::byte> bytes);

// Reads every tensor of floats in the files. Modules whose scales or weights are ill are put into `explained`, by the
// names in the files. `step` is called after each tensor.
void examine_values(const Patient& patient, std::vector<Finding>& findings, std::set<std::string>& explained,
                    const std::function<void()>& step);

}  // namespace pare::runtime
