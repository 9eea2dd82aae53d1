// Decoders of ggml's blocks whose codes point into grids or tables, each of one block. gguf_blocks.cpp has the others,
// and the table of all.
#pragma once

#include <cstdint>

namespace pare::runtime {

void decode_iq2_xxs(const uint8_t* block, float* out);
void decode_iq2_xs(const uint8_t* block, float* out);
void decode_iq2_s(const uint8_t* block, float* out);
void decode_iq3_xxs(const uint8_t* block, float* out);
void decode_iq3_s(const uint8_t* block, float* out);
void decode_iq1_s(const uint8_t* block, float* out);
void decode_iq1_m(const uint8_t* block, float* out);
void decode_iq4_nl(const uint8_t* block, float* out);
void decode_iq4_xs(const uint8_t* block, float* out);
void decode_mxfp4(const uint8_t* block, float* out);
void decode_nvfp4(const uint8_t* block, float* out);

}  // namespace pare::runtime
