// Rounds numbers to the blocks of GGUF's formats, and writes codes that are given into them. gguf_blocks.cpp describes
// the blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/files/gguf.h"

namespace pare::runtime {

// The types that a row can be rounded to: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K
// and Q6_K.
bool is_encoded(GgufType type);

// Rounds one row. The sum of importance_I[i] (x_i - y_i)^2 is made small, with y what the blocks stand for; without
// importance_I every weight is 1. The scales of a block are searched for: starting from several, codes and the scales
// that fit them best (weighted least squares) are computed in turn, with scales as the file holds them. Floats are
// rounded to nearest even.
// x_I fills whole blocks; importance_I is empty, or of x_I's size with finite values that are not negative; blocks has
// the size that gguf_block says. Throws std::invalid_argument for another size or type, and
// std::runtime_error for blocks with a number that is beyond float16 or none.
void encode_gguf_row(GgufType type, std::span<const float> x_I, std::span<const float> importance_I,
                     std::span<std::byte> blocks);

// A block of 32 codes as the formats with 32 elements hold them: y = scale * level(code) + minimum. Codes have 4, 5 or
// 8 bits. Those of Q4_0, Q5_0 and Q8_0 stand for themselves less 8, 16 and 128, and those of IQ4_NL for its levels.
// Q4_1 and Q5_1 alone have a minimum. Scale and minimum are written as float16.
struct GgufCodes {
  std::array<uint8_t, 32> codes = {};
  float scale = 0.0f;
  float minimum = 0.0f;
};
// Writes such a block of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or IQ4_NL.
void put_gguf_codes(GgufType type, const GgufCodes& block, std::span<std::byte> out);

}  // namespace pare::runtime
