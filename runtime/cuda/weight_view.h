// The layout of a linear's weights in device memory, which the host writes and kernels read.
#pragma once

#include <cstdint>

namespace pare::runtime {

// Rows are words of 32 bits, little-endian. They are padded to whole vectors of four words with zeros, or for codes
// with the last group's zero. A word holds 1 float32, 2 values of 16 bits, 4 codes of 8 bits, 8 of 4, 10 of 3 (two bits
// stay empty) or 16 of 2, at the places that place_in_word gives.
enum class StoredAs : int32_t { f32, f16, bf16, code8, code4, code3, code2, fp8, table4 };
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
    case StoredAs::table4:
      return 8;
    case StoredAs::code3:
      return 10;
    case StoredAs::code2:
      return 16;
  }
  return 0;
}

constexpr int bits_of(StoredAs stored) {
  return stored == StoredAs::code3 ? 3 : 32 / weights_per_word(stored);
}

constexpr int weights_per_vector(StoredAs stored) {
  return static_cast<int>(kVectorWords) * weights_per_word(stored);
}

// The place of weight `index` in a word, in units of bits_of. Codes of 4 and 2 bits lie so that a mask finds four
// neighbouring ones in the four bytes.
constexpr int place_in_word(StoredAs stored, int index) {
  const bool is_spread = stored == StoredAs::code4 || stored == StoredAs::table4 || stored == StoredAs::code2;
  return is_spread ? index % 4 * (weights_per_word(stored) / 4) + index / 4 : index;
}

// True for the forms that are stored as 2:4. Of every four columns the words hold two, in ascending order, and `places`
// holds two bits for each that say which.
constexpr bool has_kept_form(StoredAs stored) {
  return stored == StoredAs::f16 || stored == StoredAs::bf16 || stored == StoredAs::code8 || stored == StoredAs::code4;
}

// The number of columns that the weights of one vector stand for.
constexpr int columns_of_vector(StoredAs stored, bool is_kept) {
  return weights_per_vector(stored) * (is_kept ? 2 : 1);
}

// Counts what the blocks of the first outputs have met (InputZeros). Each of the first tiles of rows has one.
struct ZeroCounts {
  int64_t num_inputs = 0, num_zeros = 0, num_columns = 0, num_skipped = 0, num_products = 0;
};
inline constexpr int64_t kCountedTiles = 256;

// W[o, i] is the stored value; for codes it is scale[o, g] * (code - zero[o, g]), for fp8 scale[o, g] * value, and for
// table4 scale[o, g] * values[code]. Here g is group_of_I[i], or i / group_size if that is null. All pointers are
// device memory.
struct WeightView {
  StoredAs stored = StoredAs::f32;
  int32_t symmetric_zero = 0;  // 2^(bits-1); for codes without zeros of their own
  int64_t num_out = 0;
  int64_t num_in = 0;
  int64_t first_out = 0;  // the column of y that its first output is written to
  int64_t row_words = 0;
  const uint32_t* words = nullptr;  // [O, row_words]
  // Only for 2:4: [O, row_words / 4], 2 bits for each weight of a vector, in bytes of four. Null: every column is
  // stored.
  const uint8_t* places = nullptr;
  int64_t group_size = 0;  // num_in if there is one group
  int64_t num_groups = 0;
  const float* scales_OG = nullptr;     // null: dense
  const uint8_t* zeros_OG = nullptr;    // null: symmetric
  const int32_t* group_of_I = nullptr;  // null: columns lie in the order of their groups
  const float* values = nullptr;        // [16], for table4
  // Not 0: W is stored by columns, with the outputs in the words: `words` is [I, column_words], scales and zeros are
  // [G, O], and there are counts of zeros.
  int64_t column_words = 0;
  ZeroCounts* zero_counts = nullptr;  // [kCountedTiles]
  const float* bias_O = nullptr;      // null: none
};

// Chooses the kernel that multiplies a weight.
struct WeightForm {
  StoredAs stored = StoredAs::f32;
  bool is_kept = false;  // 2:4, with only the kept weights stored
  int64_t num_out = 0;
  bool by_columns = false;
  bool operator==(const WeightForm&) const = default;
};

}  // namespace pare::runtime
