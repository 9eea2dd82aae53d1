// What the AVX-512 (F, BW, VL, DQ) kernels of packed linears share: how the values, scales and zeros of each format
// become floats. linear_kernels.h gives the layouts. A table of 16 code values lies in one register, for integers and
// for codes with values of their own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {
namespace {

// Returns the words of a line shifted right by num_bits. Whole bytes are shifted by loading that much further on, which
// costs no operation. The next word's bits follow a word's own, so only the lowest 32 - num_bits count. Up to 3 bytes
// of the next line are read.
inline __m512i load_shifted(const uint8_t* line, int num_bits) {
  return _mm512_srli_epi32(_mm512_loadu_si512(line + num_bits / 8), num_bits % 8);
}

// Each format has kUnit and kBytes as in linear_kernels.h, and Unit, the loaded unit. value(unit, j) gives the 16
// values of position j of the unit times 1 / kFactor.
struct Bf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    __m512i pairs[2];
  };
  static Unit load(const uint8_t* bytes) { return {{_mm512_load_si512(bytes), _mm512_load_si512(bytes + 64)}}; }
  static __m512 value(const Unit& unit, int j) {
    const __m512i pair = unit.pairs[j / 2];
    return _mm512_castsi512_ps(j % 2 == 0 ? _mm512_slli_epi32(pair, 16)
                                          : _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

struct F16 {
  static constexpr WeightFormat kFormat = WeightFormat::f16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    const uint8_t* bytes;
  };
  static Unit load(const uint8_t* bytes) { return {bytes}; }
  static __m512 value(const Unit& unit, int j) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(unit.bytes + 32 * j)));
  }
};

struct F32 {
  static constexpr WeightFormat kFormat = WeightFormat::f32;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    const uint8_t* bytes;
  };
  static Unit load(const uint8_t* bytes) { return {bytes}; }
  static __m512 value(const Unit& unit, int j) { return _mm512_load_ps(unit.bytes + 64 * j); }
};

struct Int2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    __m512i word;
  };
  static Unit load(const uint8_t* bytes) { return {_mm512_load_si512(bytes)}; }
  static __m512 value(const Unit& unit, int j) {
    const __m512 table = _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(unit.word, 2 * j), table);
  }
};

struct Int3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    __m512i words[3];
  };
  static Unit load(const uint8_t* bytes) {
    return {{_mm512_load_si512(bytes), _mm512_load_si512(bytes + 64), _mm512_load_si512(bytes + 128)}};
  }
  // The fourth bit of an index does not matter, since the table repeats, and vpermps ignores all above it.
  static __m512 value(const Unit& unit, int j) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1);
    constexpr int kLowElseHigh = 0xCA;  // of each bit: the first operand chooses the second or the third
    const int top = int3_top(j);
    const __m512i low = _mm512_srli_epi32(unit.words[j / 16], j % 16 * 2);
    const __m512i high =
        top >= 2 ? _mm512_srli_epi32(unit.words[2], top - 2) : _mm512_slli_epi32(unit.words[2], 2 - top);
    return _mm512_permutexvar_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(3), low, high, kLowElseHigh), table);
  }
};

struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    const uint8_t* line;
  };
  static Unit load(const uint8_t* bytes) { return {bytes}; }
  static __m512 value(const Unit& unit, int j) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_permutexvar_ps(load_shifted(unit.line, 4 * j), table);
  }
};

struct Int8 {
  static constexpr WeightFormat kFormat = WeightFormat::int8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 0x1p-24f;
  struct Unit {
    __m512i word;
  };
  static Unit load(const uint8_t* bytes) { return {_mm512_load_si512(bytes)}; }
  // Moves the byte to the top of a lane, zeros below. As a signed integer that is the code times 2^24, exact in
  // float32.
  static __m512 value(const Unit& unit, int j) {
    const int top = j << 24 | 0x808080;
    const __m512i select =
        _mm512_broadcast_i32x4(_mm_setr_epi32(top, top + (4 << 24), top + (8 << 24), top + (12 << 24)));
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(unit.word, select));
  }
};

// E4M3's sign, exponent and mantissa move to where bfloat16 has them, two codes at once. That is the value times
// 2^-120, since the biases differ by 120. Subnormals stay exact, being subnormal there as well.
struct Fp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    __m512i even, odd;  // positions 0 and 2, and 1 and 3
  };
  static Unit load(const uint8_t* bytes) {
    const __m512i word = _mm512_load_si512(bytes);
    return {moved(_mm512_slli_epi16(word, 8)), moved(word)};
  }
  static __m512 value(const Unit& unit, int j) {
    const __m512i pair = j % 2 == 0 ? unit.even : unit.odd;
    const __m512i bits =
        j < 2 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
  }

 private:
  // Those in the upper bytes of 16 bits. The arithmetic shift leaves the sign where it is.
  static __m512i moved(__m512i codes) {
    return _mm512_and_si512(_mm512_srai_epi16(codes, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87F0)));
  }
};

// A table of 16 values in a register, from the run. vpermps reads the lowest four bits of each index.
struct Table4 {
  static constexpr WeightFormat kFormat = WeightFormat::table4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  struct Unit {
    const uint8_t* line;
  };
  explicit Table4(const PanelRun& run) : table(_mm512_loadu_ps(run.values)) {}
  static Unit load(const uint8_t* bytes) { return {bytes}; }
  __m512 value(const Unit& unit, int j) const { return _mm512_permutexvar_ps(load_shifted(unit.line, 4 * j), table); }

  __m512 table;
};

// Returns what a format needs besides its lines: a table of values, or nothing.
template <class Format>
inline Format format_of(const PanelRun& run) {
  if constexpr (Format::kFormat == WeightFormat::table4) return Format(run);
  if constexpr (Format::kFormat != WeightFormat::table4) return {};
}

inline __m512 load_scales(ScaleFormat format, const uint8_t* scales) {
  if (format == ScaleFormat::f32) return _mm512_loadu_ps(scales);
  if (scale_bytes(format) == 1) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    // The exponent alone; 2^-127 is a subnormal.
    if (format == ScaleFormat::e8m0)
      return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x400000)));
    // As in Fp8, without a sign.
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bytes, 20)), _mm512_set1_ps(0x1p120f));
  }
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  if (format == ScaleFormat::f16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

constexpr int64_t scale_line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

// Loads zeros relative to the centre 2^(bits-1), which stored codes already have subtracted.
template <class Format>
inline __m512 load_zeros(const uint8_t* zeros) {
  constexpr UnitShape kUnit = unit_shape(value_format(Format::kFormat));
  constexpr int kBits = static_cast<int>(kUnit.num_bytes * 8 / kPanel / kUnit.num_k);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(1 << (kBits - 1))));
}

inline __mmask16 lane_mask(int64_t num_lanes) {
  if (num_lanes >= kPanel) return 0xFFFF;
  return num_lanes <= 0 ? 0 : static_cast<__mmask16>((1u << num_lanes) - 1);
}

// Returns a weight as dequantize() computes it: scale * (code - zero), rounded once.
template <class Format>
inline __m512 scaled(__m512 value, __m512 zero, __m512 scale) {
  if constexpr (!Format::kQuantized) return value;
  if constexpr (Format::kFactor != 1.0f) value = _mm512_mul_ps(value, _mm512_set1_ps(Format::kFactor));
  return _mm512_mul_ps(_mm512_sub_ps(value, zero), scale);
}

}  // namespace
}  // namespace pare::runtime
