// How a linear's weights lie in device memory: what kernels read and the host lays out.
#pragma once

#include <cstdint>

namespace pare {

// Rows are words of 32 bits, little-endian, the first weight in the lowest bits, padded with zeros to whole vectors of
// four words. A word holds 1 float32, 2 of 16 bits, 4 codes of 8 bits, 8 of 4, 10 of 3 (two bits stay empty), 16 of 2.
enum class StoredAs : int32_t { f32, f16, bf16, code8, code4, code3, code2, fp8 };
inline constexpr int64_t kVectorWords = 4;

constexpr int weights_per_word(StoredAs stored) {
  switch (stored) {
    case StoredAs::f32:
      return 1;
    case StoredAs::f16:
    case StoredAs::bf16:
      return 2;
    case StoredAs::code8:
    case StoredAs::fp8:
      return 4;
    case StoredAs::code4:
      return 8;
    case StoredAs::code3:
      return 10;
    case StoredAs::code2:
      return 16;
  }
  return 0;
}

// W[o, i] is the stored value, or of codes scale[o, g] * (code - zero[o, g]) and of fp8 scale[o, g] * value, with g =
// group_of_I[i], or i / group_size. All pointers are device memory.
struct WeightView {
  StoredAs stored = StoredAs::f32;
  int32_t symmetric_zero = 0;  // 2^(bits-1); of codes without zeros of their own
  int64_t num_out = 0;
  int64_t num_in = 0;
  int64_t row_words = 0;
  const uint32_t* words = nullptr;  // [O, row_words]
  int64_t group_size = 0;           // num_in: one group
  int64_t num_groups = 0;
  const float* scales_OG = nullptr;     // null: dense
  const uint8_t* zeros_OG = nullptr;    // null: symmetric
  const int32_t* group_of_I = nullptr;  // null: columns lie in the order of their groups
  const float* bias_O = nullptr;        // null: none
};

}  // namespace pare
