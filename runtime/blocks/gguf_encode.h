// Rounds numbers to the blocks of GGUF's formats. gguf_blocks.cpp describes the blocks.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/blocks/gguf_type.h"

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

}  // namespace pare::runtime
