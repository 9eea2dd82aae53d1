#include <cmath>
#include <stdexcept>
#include <string>

#include "runtime/engine/backend.h"

namespace pare::runtime {

// transformers multiplies the float32 position by the float32 inverse frequency and takes cos and sin of that rounded
// angle. An angle in float64 would differ by up to 2^-24 of itself, 2e-4 at position 8192. Cos and sin are taken in
// float64 and rounded once, as exact as any float32 library function.
RopeTable make_rope_table(const RopeDescription& rope, int64_t head_size, int64_t num_positions, bool is_long) {
  const std::vector<float>& frequencies = is_long ? rope.long_inverse_frequencies : rope.inverse_frequencies;
  if (head_size <= 0 || head_size % 2 != 0 || num_positions < 0 ||
      static_cast<int64_t>(frequencies.size()) != head_size / 2) {
    throw std::invalid_argument(
        "make_rope_table: expected an even head size, half as many inverse frequencies and no "
        "negative number of positions, found head size " +
        std::to_string(head_size) + ", " + std::to_string(frequencies.size()) + " inverse frequencies, " +
        std::to_string(num_positions) + " positions");
  }
  const int64_t half = head_size / 2;
  RopeTable table{num_positions, head_size, {}, {}};
  table.cosine.resize(static_cast<size_t>(num_positions * half));
  table.sine.resize(static_cast<size_t>(num_positions * half));
  for (int64_t t = 0; t < num_positions; ++t) {
    for (int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(t) * frequencies[j];
      const float factor = frequencies[j] == 0.0f ? 1.0f : rope.attention_factor;  // 0: the pair is left as it is
      table.cosine[t * half + j] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
      table.sine[t * half + j] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
    }
  }
  return table;
}

}  // namespace pare::runtime
