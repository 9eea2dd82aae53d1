// The types of tensors in GGUF files, and their blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pare::runtime {

// The tensor types that pare reads, by their ggml numbers. gguf_blocks.cpp and
// gguf_iq_blocks.cpp describe each block at its decoder.
enum class GgufType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  Q2_0 = 42
};

struct GgufBlock {
  std::string_view name;
  int64_t num_elements;  // in one block
  int64_t size_bytes;
};
// Throws std::invalid_argument naming the number and the types that are read.
GgufBlock gguf_block(uint32_t type);
// Returns the bytes of a row of `width` elements, which fill whole blocks.
int64_t gguf_row_bytes(GgufType type, int64_t width);

// Decodes whole blocks to float32. out.size() must be a multiple of the block's elements and blocks.size() must match
// it (else std::invalid_argument). The values are those that llama.cpp's own dequantization computes (float32
// arithmetic in its order).
void decode_gguf_blocks(GgufType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace pare::runtime
