// What the files of the avx2 path of int8_kernels.h share. Everything is in an anonymous namespace, as in simd_avx2.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kHalf = 8;    // outputs in a register
constexpr int kHalves = 2;  // per panel

// Loads the scales, or other stored floats, of a half of a panel. `values` is the panel's line.
inline __m256 load_values(ScaleFormat format, const uint8_t* values, int half) {
  if (format == ScaleFormat::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(values) + kHalf * half);
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values) + half);
  if (format == ScaleFormat::f16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

constexpr int64_t line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

inline __m256i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

inline __m256i load_ints(const void* ints) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(ints));
}

// These give positions 0 and 2, or 1 and 3, of 8 outputs as 16-bit pairs.
inline __m256i even_bytes(__m256i line) {
  return _mm256_srai_epi16(_mm256_slli_epi16(line, 8), 8);
}
inline __m256i odd_bytes(__m256i line) {
  return _mm256_srai_epi16(line, 8);
}

inline __m256i add_products(__m256i sum, __m256i even, __m256i odd, const uint8_t* x) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, broadcast_word(x)));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, broadcast_word(x + 4)));
}

// Returns 16 codes as 16 bits, per four in the order 0 2 1 3.
inline __m256i widen(const int8_t* codes) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  return _mm256_shuffle_epi8(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))), order);
}

}  // namespace
}  // namespace pare::runtime
