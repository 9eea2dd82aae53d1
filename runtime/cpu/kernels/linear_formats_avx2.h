// What the AVX2 + FMA + F16C kernels of packed linears share: how the values, scales and zeros of each format become
// floats. linear_kernels.h gives the layouts. A panel is two halves of 8 outputs.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {
namespace {

constexpr int64_t kHalf = 8;

inline __m256i load_half(const uint8_t* line, int half) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(line + 32 * half));
}

// In each format, value(unit, j, half) gives the 8 values of one half of position j of the unit times 1 / kFactor.
struct Bf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256i pair = load_half(unit + 64 * (j / 2), half);
    return _mm256_castsi256_ps(j % 2 == 0 ? _mm256_slli_epi32(pair, 16)
                                          : _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

struct F16 {
  static constexpr WeightFormat kFormat = WeightFormat::f16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(unit + 32 * j + 16 * half)));
  }
};

struct F32 {
  static constexpr WeightFormat kFormat = WeightFormat::f32;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    return _mm256_load_ps(reinterpret_cast<const float*>(unit + 64 * j + 32 * half));
  }
};

struct Int2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256 table = _mm256_setr_ps(0, 1, -2, -1, 0, 1, -2, -1);
    return _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(load_half(unit, half), 2 * j));
  }
};

struct Int3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  // vpermps ignores all bits above the third.
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256 table = _mm256_setr_ps(0, 1, 2, 3, -4, -3, -2, -1);
    const int top = int3_top(j);
    const __m256i low = _mm256_srli_epi32(load_half(unit + 64 * (j / 16), half), j % 16 * 2);
    const __m256i line = load_half(unit + 128, half);
    const __m256i high = top >= 2 ? _mm256_srli_epi32(line, top - 2) : _mm256_slli_epi32(line, 2 - top);
    return _mm256_permutevar8x32_ps(table, _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(3)),
                                                           _mm256_and_si256(high, _mm256_set1_epi32(4))));
  }
};

struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 0x1p-28f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256i top = _mm256_and_si256(_mm256_slli_epi32(load_half(unit, half), 28 - 4 * j),
                                         _mm256_set1_epi32(static_cast<int>(0xF0000000u)));
    return _mm256_cvtepi32_ps(top);
  }
};

struct Int8 {
  static constexpr WeightFormat kFormat = WeightFormat::int8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 0x1p-24f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256i top = _mm256_and_si256(_mm256_slli_epi32(load_half(unit, half), 24 - 8 * j),
                                         _mm256_set1_epi32(static_cast<int>(0xFF000000u)));
    return _mm256_cvtepi32_ps(top);
  }
};

// E4M3's sign, exponent and mantissa move to where bfloat16 has them, two codes at once: the compiler does so once for
// positions 0 and 2, and for 1 and 3. That is the value times 2^-120, since the biases differ by 120. Subnormals stay
// exact, being subnormal there as well.
struct Fp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  static __m256 value(const uint8_t* unit, int j, int half) {
    const __m256i word = load_half(unit, half);
    const __m256i codes = j % 2 == 0 ? _mm256_slli_epi16(word, 8) : word;  // in the upper bytes of 16 bits
    // The arithmetic shift leaves the sign where it is.
    const __m256i pair = _mm256_and_si256(_mm256_srai_epi16(codes, 4), _mm256_set1_epi16(static_cast<int16_t>(0x87F0)));
    const __m256i bits =
        j < 2 ? _mm256_slli_epi32(pair, 16) : _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
  }
};

// A table of 16 values in two registers, from the run. vpermps reads the lowest three bits of an index, and the fourth
// chooses the register.
struct Table4 {
  static constexpr WeightFormat kFormat = WeightFormat::table4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  explicit Table4(const PanelRun& run) : low(_mm256_loadu_ps(run.values)), high(_mm256_loadu_ps(run.values + 8)) {}
  __m256 value(const uint8_t* unit, int j, int half) const {
    const __m256i word = load_half(unit, half);
    const __m256i index = _mm256_srli_epi32(word, 4 * j);
    const __m256i fourth = _mm256_slli_epi32(word, 28 - 4 * j);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            _mm256_castsi256_ps(fourth));
  }

  __m256 low, high;
};

// Returns what a format needs besides its lines: a table of values, or nothing.
template <class Format>
inline Format format_of(const PanelRun& run) {
  if constexpr (Format::kFormat == WeightFormat::table4) return Format(run);
  if constexpr (Format::kFormat != WeightFormat::table4) return {};
}

inline __m256 load_scales(const PanelRun& run, const uint8_t* scales, int half) {
  if (run.scale_format == ScaleFormat::f32)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + kHalf * half);
  if (scale_bytes(run.scale_format) == 1) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + kHalf * half));
    // The exponent alone; 2^-127 is a subnormal.
    if (run.scale_format == ScaleFormat::e8m0)
      return _mm256_castsi256_ps(
          _mm256_max_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23), _mm256_set1_epi32(0x400000)));
    // As in Fp8, without a sign.
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 20)),
                         _mm256_set1_ps(0x1p120f));
  }
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * half));
  if (run.scale_format == ScaleFormat::f16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline int64_t scale_line_bytes(const PanelRun& run) {
  return scale_bytes(run.scale_format) * kPanel;
}

// Loads zeros relative to the centre 2^(bits-1), which stored codes already have subtracted.
template <class Format>
inline __m256 load_zeros(const uint8_t* zeros, int half) {
  constexpr UnitShape kUnit = unit_shape(value_format(Format::kFormat));
  constexpr int kBits = static_cast<int>(kUnit.num_bytes * 8 / kPanel / kUnit.num_k);
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + kHalf * half)));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(bytes, _mm256_set1_epi32(1 << (kBits - 1))));
}

inline __m256i lane_mask(int64_t num_lanes) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int limit = num_lanes > kHalf ? static_cast<int>(kHalf) : num_lanes < 0 ? 0 : static_cast<int>(num_lanes);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), lanes);
}

// Returns a weight as dequantize() computes it: scale * (code - zero), rounded once.
template <class Format>
inline __m256 scaled(__m256 value, __m256 zero, __m256 scale) {
  if constexpr (!Format::kQuantized) return value;
  if constexpr (Format::kFactor != 1.0f) value = _mm256_mul_ps(value, _mm256_set1_ps(Format::kFactor));
  return _mm256_mul_ps(_mm256_sub_ps(value, zero), scale);
}

}  // namespace
}  // namespace pare::runtime
