// The conversions of float16.h by AVX2 and F16C.
#include <immintrin.h>

#include <cstring>

#include "runtime/format/dtype.h"
#include "runtime/format/float16.h"

namespace pare::runtime {

void bf16_to_floats(const std::byte* source, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = bf16_to_float(bits);
  }
}

void f16_to_floats(const std::byte* source, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
  }
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = f16_to_float(bits);
  }
}

void floats_to_f16(const float* source, int64_t count, std::byte* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), bits);
  }
  for (; i < count; ++i) {
    const uint16_t bits = float_to_f16(source[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

float f16_to_float(uint16_t bits) {
  return _cvtsh_ss(bits);
}

uint16_t float_to_f16(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

float fp8_to_float(uint8_t bits) {
  return fp8_by_float16(bits, f16_to_float);
}

}  // namespace pare::runtime
