// Rounds numbers to GGUF's superblocks of 256 (the K formats).
#pragma once

#include <cstdint>

#include "runtime/files/gguf.h"

namespace pare::runtime {

// Q2_K, Q3_K, Q4_K, Q5_K and Q6_K.
bool is_k_encoded(GgufType type);

// Rounds 256 numbers to one superblock, by the weights w (encode_gguf_row).
void encode_k_block(GgufType type, const float* x, const float* w, uint8_t* out);

}  // namespace pare::runtime
