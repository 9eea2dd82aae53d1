// Sizes in whole units. Kernels do not include it: each instruction set has functions of its own.
#pragma once

#include <cstdint>

namespace pare::runtime {

// For value >= 0 and divisor or multiple > 0. Returns how many units of `divisor` hold `value`, and the least multiple
// that is not below it.
constexpr int64_t divide_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace pare::runtime
