// ggml's block formats. A block stores a run of consecutive elements of a row. d and m are fp16; the comment at each
// decoder shows where codes lie. Source: the format's definition in ggml (ggml-common.h, ggml-quants.c). The arithmetic
// here is float32 in the same order, so that values are equal bit for bit (tests compare with the gguf package).
#include <cstring>
#include <stdexcept>

#include "runtime/blocks/gguf_iq_blocks.h"
#include "runtime/blocks/gguf_type.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {
namespace {

struct BlockType {
  GgufType type;
  GgufBlock block;
  void (*decode)(const uint8_t* block, float* out);
};

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return f16_to_float(bits);
}

void decode_f32(const uint8_t* block, float* out) {
  std::memcpy(out, block, sizeof(float));
}

void decode_f16(const uint8_t* block, float* out) {
  *out = half_at(block);
}

void decode_bf16(const uint8_t* block, float* out) {
  uint16_t bits;
  std::memcpy(&bits, block, sizeof bits);
  *out = bf16_to_float(bits);
}

// d | 16 bytes: byte j holds elements j (low nibble) and j + 16 (high). x = (q - 8) d
void decode_q4_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((block[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((block[2 + j] >> 4) - 8) * d;
  }
}

// d m | 16 bytes as Q4_0. x = q d + m
void decode_q4_1(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(block[4 + j] & 15) * d + m;
    out[j + 16] = static_cast<float>(block[4 + j] >> 4) * d + m;
  }
}

// Returns the fifth bits of 32 elements as one 32-bit word, with element j's at bit j.
uint32_t fifth_bits(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// d | fifth bits | 16 bytes as Q4_0. x = (q - 16) d
void decode_q5_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const uint32_t high = fifth_bits(block + 2);
  for (int j = 0; j < 16; ++j) {
    const int low_code = (block[6 + j] & 15) | static_cast<int>((high >> j & 1) << 4);
    const int high_code = (block[6 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = static_cast<float>(low_code - 16) * d;
    out[j + 16] = static_cast<float>(high_code - 16) * d;
  }
}

// d m | fifth bits | 16 bytes. x = q d + m
void decode_q5_1(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  const uint32_t high = fifth_bits(block + 4);
  for (int j = 0; j < 16; ++j) {
    const int low_code = (block[8 + j] & 15) | static_cast<int>((high >> j & 1) << 4);
    const int high_code = (block[8 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = static_cast<float>(low_code) * d + m;
    out[j + 16] = static_cast<float>(high_code) * d + m;
  }
}

// d | 32 signed bytes. x = q d
void decode_q8_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
}

// One of the K formats' eight 6-bit scales and eight 6-bit mins, which share 12 bytes.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin scale_and_min(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4};
}

// 16 bytes, each a scale and a min of 16 elements | 64 bytes: per 128 elements 32 bytes, two bits of each quarter | d
// dmin. x = d sc q - dmin m
void decode_q2_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 80);
  const float dmin = half_at(block + 82);
  for (int group = 0; group < 16; ++group) {
    const uint8_t* codes = block + 16 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = 2 * (group % 8 / 2);
    const float scale = d * static_cast<float>(block[group] & 15);
    const float min = dmin * static_cast<float>(block[group] >> 4);
    for (int j = 0; j < 16; ++j) *out++ = scale * static_cast<float>(codes[j] >> shift & 3) - min;
  }
}

// 32 bytes of third bits, one bit for each 32 elements | 64 bytes as Q2_K | 12 bytes: low nibbles of 16 scales, then
// their two high bits | d. x = d (sc - 32) (q - 4 if the third bit is unset)
void decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 96;
  const float d = half_at(block + 108);
  for (int group = 0; group < 16; ++group) {
    const uint8_t* codes = block + 32 + 32 * (group / 8) + 16 * (group % 2);
    const uint8_t* third = block + 16 * (group % 2);
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int code = low | (scales[8 + group % 4] >> (2 * (group / 4)) & 3) << 4;
    const float scale = d * static_cast<float>(code - 32);
    for (int j = 0; j < 16; ++j) {
      const int q = codes[j] >> (2 * (group % 8 / 2)) & 3;
      *out++ = scale * static_cast<float>(q - ((third[j] >> (group / 2) & 1) != 0 ? 0 : 4));
    }
  }
}

// d dmin | 12 bytes of scales and mins | 128 bytes: per 64 elements 32 bytes, low nibbles first. x = d sc q - dmin m
void decode_q4_k(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  const uint8_t* codes = block + 16;
  for (int part = 0; part < 4; ++part, codes += 32, out += 64) {
    const ScaleAndMin first = scale_and_min(block + 4, 2 * part);
    const ScaleAndMin second = scale_and_min(block + 4, 2 * part + 1);
    const float d1 = d * static_cast<float>(first.scale);
    const float m1 = dmin * static_cast<float>(first.min);
    const float d2 = d * static_cast<float>(second.scale);
    const float m2 = dmin * static_cast<float>(second.min);
    for (int j = 0; j < 32; ++j) {
      out[j] = d1 * static_cast<float>(codes[j] & 15) - m1;
      out[j + 32] = d2 * static_cast<float>(codes[j] >> 4) - m2;
    }
  }
}

// d dmin | 12 bytes as Q4_K | 32 bytes of fifth bits: bit 2p for the first, 2p + 1 for the second half of part p | 128
// bytes
void decode_q5_k(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* codes = block + 48;
  for (int part = 0; part < 4; ++part, codes += 32, out += 64) {
    const ScaleAndMin first = scale_and_min(block + 4, 2 * part);
    const ScaleAndMin second = scale_and_min(block + 4, 2 * part + 1);
    const float d1 = d * static_cast<float>(first.scale);
    const float m1 = dmin * static_cast<float>(first.min);
    const float d2 = d * static_cast<float>(second.scale);
    const float m2 = dmin * static_cast<float>(second.min);
    for (int j = 0; j < 32; ++j) {
      const int q1 = (codes[j] & 15) | (high[j] >> (2 * part) & 1) << 4;
      const int q2 = (codes[j] >> 4) | (high[j] >> (2 * part + 1) & 1) << 4;
      out[j] = d1 * static_cast<float>(q1) - m1;
      out[j + 32] = d2 * static_cast<float>(q2) - m2;
    }
  }
}

// 128 bytes of low nibbles | 64 bytes of two high bits | 16 signed scales, one per 16 elements | d. x = d sc (q - 32)
void decode_q6_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    const uint8_t* high = block + 128 + 32 * half;
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192 + 8 * half);
    for (int j = 0; j < 32; ++j) {
      const int codes[4] = {(low[j] & 15) | (high[j] & 3) << 4, (low[j + 32] & 15) | (high[j] >> 2 & 3) << 4,
                            (low[j] >> 4) | (high[j] >> 4 & 3) << 4, (low[j + 32] >> 4) | (high[j] >> 6 & 3) << 4};
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int group = 2 * quarter + j / 16;
        const float scale = d * static_cast<float>(scales[group]);
        out[128 * half + 32 * quarter + j] = scale * static_cast<float>(codes[quarter] - 32);
      }
    }
  }
}

// A byte holds five ternary digits as a fraction of 256: the first is its third, the next that of three times it.
int ternary_digit(uint8_t byte, int place) {
  constexpr int kPowers[] = {1, 3, 9, 27, 81};
  return (static_cast<uint8_t>(byte * kPowers[place]) * 3 >> 8) - 1;
}

// 32 bytes: five digits of each, by place | 16 bytes likewise | 4 bytes: four digits of each | d. x = q d
void decode_tq1_0(const uint8_t* block, float* out) {
  const float d = half_at(block + 52);
  const auto decode = [&](int first, int num_bytes, int num_places) {
    for (int place = 0; place < num_places; ++place) {
      for (int j = 0; j < num_bytes; ++j) *out++ = d * static_cast<float>(ternary_digit(block[first + j], place));
    }
  };
  decode(0, 32, 5);
  decode(32, 16, 5);
  decode(48, 4, 4);
}

// 64 bytes: per 128 elements 32 bytes, two bits of each quarter | d. x = (q - 1) d
void decode_tq2_0(const uint8_t* block, float* out) {
  const float d = half_at(block + 64);
  for (int quarter = 0; quarter < 8; ++quarter) {
    const uint8_t* codes = block + 32 * (quarter / 4);
    for (int j = 0; j < 32; ++j) *out++ = d * static_cast<float>((codes[j] >> (2 * (quarter % 4)) & 3) - 1);
  }
}

// d | 16 bytes: byte j holds the bits of elements 8 j to 8 j + 7. x = d for a bit of 1, -d for one of 0
void decode_q1_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 128; ++j) out[j] = (block[2 + j / 8] >> (j % 8) & 1) != 0 ? d : -d;
}

// d | 16 bytes: byte j holds two bits of elements 4 j to 4 j + 3. x = (q - 1) d
void decode_q2_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 64; ++j) out[j] = static_cast<float>((block[2 + j / 4] >> (2 * (j % 4)) & 3) - 1) * d;
}

constexpr BlockType kBlockTypes[] = {
    {GgufType::F32, {"F32", 1, 4}, decode_f32},
    {GgufType::F16, {"F16", 1, 2}, decode_f16},
    {GgufType::BF16, {"BF16", 1, 2}, decode_bf16},
    {GgufType::Q4_0, {"Q4_0", 32, 18}, decode_q4_0},
    {GgufType::Q4_1, {"Q4_1", 32, 20}, decode_q4_1},
    {GgufType::Q5_0, {"Q5_0", 32, 22}, decode_q5_0},
    {GgufType::Q5_1, {"Q5_1", 32, 24}, decode_q5_1},
    {GgufType::Q8_0, {"Q8_0", 32, 34}, decode_q8_0},
    {GgufType::Q4_K, {"Q4_K", 256, 144}, decode_q4_k},
    {GgufType::Q5_K, {"Q5_K", 256, 176}, decode_q5_k},
    {GgufType::Q6_K, {"Q6_K", 256, 210}, decode_q6_k},
    {GgufType::Q2_K, {"Q2_K", 256, 84}, decode_q2_k},
    {GgufType::Q3_K, {"Q3_K", 256, 110}, decode_q3_k},
    {GgufType::IQ1_S, {"IQ1_S", 256, 50}, decode_iq1_s},
    {GgufType::IQ1_M, {"IQ1_M", 256, 56}, decode_iq1_m},
    {GgufType::IQ2_XXS, {"IQ2_XXS", 256, 66}, decode_iq2_xxs},
    {GgufType::IQ2_XS, {"IQ2_XS", 256, 74}, decode_iq2_xs},
    {GgufType::IQ2_S, {"IQ2_S", 256, 82}, decode_iq2_s},
    {GgufType::IQ3_XXS, {"IQ3_XXS", 256, 98}, decode_iq3_xxs},
    {GgufType::IQ3_S, {"IQ3_S", 256, 110}, decode_iq3_s},
    {GgufType::IQ4_NL, {"IQ4_NL", 32, 18}, decode_iq4_nl},
    {GgufType::IQ4_XS, {"IQ4_XS", 256, 136}, decode_iq4_xs},
    {GgufType::TQ1_0, {"TQ1_0", 256, 54}, decode_tq1_0},
    {GgufType::TQ2_0, {"TQ2_0", 256, 66}, decode_tq2_0},
    {GgufType::MXFP4, {"MXFP4", 32, 17}, decode_mxfp4},
    {GgufType::NVFP4, {"NVFP4", 64, 36}, decode_nvfp4},
    {GgufType::Q1_0, {"Q1_0", 128, 18}, decode_q1_0},
    {GgufType::Q2_0, {"Q2_0", 64, 18}, decode_q2_0},
};

const BlockType& block_type(uint32_t type) {
  for (const BlockType& known : kBlockTypes) {
    if (static_cast<uint32_t>(known.type) == type) return known;
  }
  std::string names;
  for (const BlockType& known : kBlockTypes) names += (names.empty() ? "" : ", ") + std::string(known.block.name);
  throw std::invalid_argument("ggml type number " + std::to_string(type) + " is not read; known: " + names);
}

}  // namespace

GgufBlock gguf_block(uint32_t type) {
  return block_type(type).block;
}

int64_t gguf_row_bytes(GgufType type, int64_t width) {
  const GgufBlock block = gguf_block(static_cast<uint32_t>(type));
  return width / block.num_elements * block.size_bytes;
}

void decode_gguf_blocks(GgufType type, std::span<const std::byte> blocks, std::span<float> out) {
  const BlockType& known = block_type(static_cast<uint32_t>(type));
  const auto num_blocks = static_cast<int64_t>(out.size()) / known.block.num_elements;
  if (num_blocks * known.block.num_elements != static_cast<int64_t>(out.size()) ||
      num_blocks * known.block.size_bytes != static_cast<int64_t>(blocks.size())) {
    throw std::invalid_argument(std::to_string(out.size()) + " elements of " + std::string(known.block.name) +
                                " do not fill " + std::to_string(blocks.size()) + " bytes");
  }
  const auto* source = reinterpret_cast<const uint8_t*>(blocks.data());
  for (int64_t b = 0; b < num_blocks; ++b) {
    known.decode(source + b * known.block.size_bytes, out.data() + b * known.block.num_elements);
  }
}

}  // namespace pare::runtime
