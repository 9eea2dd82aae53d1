// The levels of a GGUF type, to which weights are rounded in the units of their group's scale: whole numbers, or
// IQ4_NL's table.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "runtime/blocks/gguf_parts.h"

namespace pare::quant {

// Loops over weights that call these functions are vectorized: hence no branch and fixed counts in them.
class GgufLevels {
 public:
  explicit GgufLevels(const runtime::GgufGrid& grid)
      : least_(grid.level(0)), most_(grid.level(grid.num_levels() - 1)), is_table_(grid.has_table()) {
    if (!is_table_) return;
    for (int code = 0; code < kTable; ++code) {
      values_[static_cast<size_t>(code)] = grid.level(code);
      if (code > 0) middles_[static_cast<size_t>(code - 1)] = 0.5f * (grid.level(code - 1) + grid.level(code));
    }
  }

  bool is_table() const { return is_table_; }
  // Returns the nearest whole number in range; half to even.
  float nearest_whole(float x) const { return std::min(std::max(std::nearbyint(x), least_), most_); }
  // Returns the nearest value of the table; of two that are equally near, the lower.
  float nearest_in_table(float x) const {
    float nearest = values_[0];
    for (int i = 0; i < kTable - 1; ++i) {
      nearest += x > middles_[static_cast<size_t>(i)]
                     ? values_[static_cast<size_t>(i + 1)] - values_[static_cast<size_t>(i)]
                     : 0.0f;
    }
    return nearest;
  }
  uint8_t code_of(float level) const {
    if (!is_table_) return static_cast<uint8_t>(level - least_);
    return static_cast<uint8_t>(std::lower_bound(values_.begin(), values_.end(), level) - values_.begin());
  }

 private:
  static constexpr int kTable = 16;
  float least_, most_;
  bool is_table_;
  std::array<float, kTable> values_ = {}, middles_ = {};
};

}  // namespace pare::quant
