// Source: the format's definition in ggml (ggml-common.h, ggml-quants.c). Arithmetic is float32 in its order.
#include "runtime/blocks/gguf_iq_blocks.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/blocks/gguf_grids.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {
namespace {

uint16_t word16(const uint8_t* bytes) {
  uint16_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint32_t word32(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

float half_of(const uint8_t* bytes) {
  return f16_to_float(word16(bytes));
}

// Seven signs; the eighth makes the number of negative ones even.
uint32_t eight_signs(uint32_t seven) {
  return seven | static_cast<uint32_t>(std::popcount(seven) & 1) << 7;
}

float sign_of(uint32_t signs, int j) {
  return (signs >> j & 1) != 0 ? -1.0f : 1.0f;
}

void put_eight(uint16_t word, float scale, uint32_t signs, float* out) {
  for (int j = 0; j < 8; ++j) {
    out[j] = scale * static_cast<float>(kIq2Levels[word >> (2 * j) & 3]) * sign_of(signs, j);
  }
}

// Two words of four levels.
void put_twice_four(const std::array<int, 8>& levels, uint16_t low, uint16_t high, float scale, uint32_t signs,
                    float* out) {
  for (int j = 0; j < 4; ++j) {
    out[j] = scale * static_cast<float>(levels[low >> (3 * j) & 7]) * sign_of(signs, j);
    out[j + 4] = scale * static_cast<float>(levels[high >> (3 * j) & 7]) * sign_of(signs, j + 4);
  }
}

constexpr float kIq1Delta = 0.125f;

void put_eight_ternary(uint16_t word, float scale, float delta, float* out) {
  for (int j = 0; j < 8; ++j) out[j] = scale * (static_cast<float>(kIq1Levels[word >> (2 * j) & 3]) + delta);
}

// Byte j holds elements j (low nibble) and j + 16 (high).
constexpr std::array<int, 16> kMxfp4DoubledLevels = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void put_nibbles(const std::array<int, 16>& levels, const uint8_t* codes, float scale, float* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * static_cast<float>(levels[codes[j] & 15]);
    out[j + 16] = scale * static_cast<float>(levels[codes[j] >> 4]);
  }
}

}  // namespace

// d | per 32 elements: four grid indices, then a word of four times seven signs and a scale in the highest four bits
void decode_iq2_xxs(const uint8_t* block, float* out) {
  const float d = half_of(block);
  for (int part = 0; part < 8; ++part) {
    const uint8_t* codes = block + 2 + 8 * part;
    const uint32_t rest = word32(codes + 4);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
    for (int l = 0; l < 4; ++l, out += 8) put_eight(kIq2Xxs[codes[l]], scale, eight_signs(rest >> (7 * l) & 127), out);
  }
}

// d | per 8 elements a word: 9 bits of index, 7 signs | per 32 elements a byte with the scales of both halves
void decode_iq2_xs(const uint8_t* block, float* out) {
  const float d = half_of(block);
  for (int part = 0; part < 8; ++part) {
    const int scales = block[66 + part];
    for (int l = 0; l < 4; ++l, out += 8) {
      const uint16_t code = word16(block + 2 + 8 * part + 2 * l);
      const float scale = d * (0.5f + static_cast<float>(l < 2 ? scales & 15 : scales >> 4)) * 0.25f;
      put_eight(kIq2Xs[code & 511], scale, eight_signs(code >> 9), out);
    }
  }
}

// d | 32 low bytes of indices | 32 bytes of signs | per 32 elements: a byte of high bits | and one of two scales
void decode_iq2_s(const uint8_t* block, float* out) {
  const float d = half_of(block);
  const uint8_t *codes = block + 2, *signs = block + 34, *high = block + 66, *scales = block + 74;
  for (int part = 0; part < 8; ++part) {
    for (int l = 0; l < 4; ++l, out += 8) {
      const int index = codes[4 * part + l] | (high[part] >> (2 * l) & 3) << 8;
      const float scale = d * (0.5f + static_cast<float>(l < 2 ? scales[part] & 15 : scales[part] >> 4)) * 0.25f;
      put_eight(kIq2S[static_cast<size_t>(index)], scale, signs[4 * part + l], out);
    }
  }
}

// d | 64 indices of four elements | per 32 elements a word of four times seven signs and a scale
void decode_iq3_xxs(const uint8_t* block, float* out) {
  const float d = half_of(block);
  for (int part = 0; part < 8; ++part) {
    const uint8_t* codes = block + 2 + 8 * part;
    const uint32_t rest = word32(block + 66 + 4 * part);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    for (int l = 0; l < 4; ++l, out += 8) {
      put_twice_four(kIq3XxsLevels, kIq3Xxs[codes[2 * l]], kIq3Xxs[codes[2 * l + 1]], scale,
                     eight_signs(rest >> (7 * l) & 127), out);
    }
  }
}

// d | 64 low bytes of indices of four elements | per 32 elements a byte of ninth bits | 32 bytes of signs | 4 bytes of
// scales, two each
void decode_iq3_s(const uint8_t* block, float* out) {
  const float d = half_of(block);
  const uint8_t *codes = block + 2, *high = block + 66, *signs = block + 74, *scales = block + 106;
  for (int part = 0; part < 8; ++part) {
    const int code = part % 2 == 0 ? scales[part / 2] & 15 : scales[part / 2] >> 4;
    const float scale = d * static_cast<float>(1 + 2 * code);
    for (int l = 0; l < 4; ++l, out += 8) {
      const int low = codes[8 * part + 2 * l] | (high[part] >> (2 * l) & 1) << 8;
      const int second = codes[8 * part + 2 * l + 1] | (high[part] >> (2 * l + 1) & 1) << 8;
      put_twice_four(kIq3SLevels, kIq3S[static_cast<size_t>(low)], kIq3S[static_cast<size_t>(second)], scale,
                     signs[4 * part + l], out);
    }
  }
}

// d | 32 low bytes of indices | per 32 elements a word: four times three high bits, a scale, the sign of the delta
void decode_iq1_s(const uint8_t* block, float* out) {
  const float d = half_of(block);
  for (int part = 0; part < 8; ++part) {
    const uint16_t high = word16(block + 34 + 2 * part);
    const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    const float delta = (high & 0x8000) != 0 ? -kIq1Delta : kIq1Delta;
    for (int l = 0; l < 4; ++l, out += 8) {
      const int index = block[2 + 4 * part + l] | (high >> (3 * l) & 7) << 8;
      put_eight_ternary(kIq1S[static_cast<size_t>(index)], scale, delta, out);
    }
  }
}

// 32 low bytes of indices | per 16 elements a byte: two times three high bits and the sign of a delta | four words: per
// word four scales of three bits, and four bits of d
void decode_iq1_m(const uint8_t* block, float* out) {
  const uint8_t *high = block + 32, *scales = block + 48;
  uint16_t d_bits = 0;
  for (int i = 0; i < 4; ++i) d_bits = static_cast<uint16_t>(d_bits | (word16(scales + 2 * i) >> 12) << (4 * i));
  const float d = f16_to_float(d_bits);
  for (int half = 0; half < 16; ++half) {
    const int code = word16(scales + 2 * (half / 4)) >> (3 * (half % 4)) & 7;
    const float scale = d * static_cast<float>(2 * code + 1);
    for (int l = 0; l < 2; ++l, out += 8) {
      const int bits = high[half] >> (4 * l) & 15;
      const int index = block[2 * half + l] | (bits & 7) << 8;
      put_eight_ternary(kIq1S[static_cast<size_t>(index)], scale, (bits & 8) != 0 ? -kIq1Delta : kIq1Delta, out);
    }
  }
}

// d | 16 bytes of codes
void decode_iq4_nl(const uint8_t* block, float* out) {
  put_nibbles(kIq4Levels, block + 2, half_of(block), out);
}

// d | a word of two high bits for each of eight scales | 4 bytes of their low nibbles | 128 bytes of codes
void decode_iq4_xs(const uint8_t* block, float* out) {
  const float d = half_of(block);
  const uint16_t high = word16(block + 2);
  for (int part = 0; part < 8; ++part, out += 32) {
    const int scale = (block[4 + part / 2] >> (4 * (part % 2)) & 15) | (high >> (2 * part) & 3) << 4;
    put_nibbles(kIq4Levels, block + 8 + 16 * part, d * static_cast<float>(scale - 32), out);
  }
}

// An exponent of e8m0 | 16 bytes of e2m1 codes. The table holds twice the values, and the scale is 2^(e - 128).
void decode_mxfp4(const uint8_t* block, float* out) {
  const uint32_t exponent = block[0];
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  put_nibbles(kMxfp4DoubledLevels, block + 1, std::bit_cast<float>(bits), out);
}

// Four scales of e4m3 without a sign, of which the one of NaN stands for 0 | for each 8 bytes of e2m1 codes: elements j
// in the low nibbles, j + 8 in the high ones. A factor of the whole tensor lies in a tensor of its own.
void decode_nvfp4(const uint8_t* block, float* out) {
  constexpr uint8_t kNan = 0x7F;
  for (int group = 0; group < 4; ++group, out += 16) {
    const int exponent = block[group] >> 3 & 15, digits = block[group] & 7;
    const float whole = exponent == 0 ? std::ldexp(static_cast<float>(digits), -9)
                                      : std::ldexp(static_cast<float>(8 + digits), exponent - 10);
    const float scale = block[group] == kNan ? 0.0f : 0.5f * whole;
    const uint8_t* codes = block + 4 + 8 * group;
    for (int j = 0; j < 8; ++j) {
      out[j] = scale * static_cast<float>(kMxfp4DoubledLevels[codes[j] & 15]);
      out[j + 8] = scale * static_cast<float>(kMxfp4DoubledLevels[codes[j] >> 4]);
    }
  }
}

}  // namespace pare::runtime
