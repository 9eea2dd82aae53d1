// Rounds numbers to GGUF's superblocks of 256 (the K formats).
#pragma once

#include "runtime/blocks/gguf_parts.h"

namespace pare::runtime {

// Rounds 256 numbers to one superblock of Q2_K, Q3_K, Q4_K, Q5_K or Q6_K, by the weights w (encode_gguf_row). Throws
// std::invalid_argument for another type.
GgufParts search_super_block(GgufType type, const float* x, const float* w);

}  // namespace pare::runtime
