// The vector operations of simd_avx2.h for AVX-512 (F, BW, VL, DQ), with 16 lanes. The names and meanings are the same.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace pare::runtime {
namespace {

constexpr int64_t kLanes = 16;
// For register tiles: the vectors of the right operand that one pass of attention's value product holds (of 32
// registers).
constexpr int kMaxValueVectors = 4;
constexpr int kScoreKeys = 8;

using Vec = __m512;
using Mask = __mmask16;
// GCC 12 warns about the undefined operand inside the unmasked forms of some intrinsics (its bug 105593). With every
// lane selected, the zeroing forms compile to the same instructions.
constexpr Mask kAll = 0xffff;

inline Vec zero() {
  return _mm512_setzero_ps();
}
inline Vec set1(float x) {
  return _mm512_set1_ps(x);
}
inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}

inline Mask first_lanes(int64_t n) {
  return static_cast<Mask>(n >= kLanes ? 0xffff : (1 << n) - 1);
}
inline Vec load_part(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline void store_part(float* p, Vec v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

// Loads n int8 values from p, with zeros after them.
inline Vec load_int8(const int8_t* p, int64_t n) {
  const __m512i values = _mm512_maskz_cvtepi8_epi32(kAll, _mm_maskz_loadu_epi8(first_lanes(n), p));
  return _mm512_maskz_cvtepi32_ps(kAll, values);
}

inline Vec bf16_to_floats(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, bits), 16));
}
inline Vec load_bf16(const uint16_t* p) {
  return bf16_to_floats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bf16_part(const uint16_t* p, int64_t n) {
  return bf16_to_floats(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

inline Vec add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec max(Vec a, Vec b) {
  return _mm512_maskz_max_ps(kAll, a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm512_maskz_min_ps(kAll, a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return _mm512_fnmadd_ps(a, b, c);
}
inline Vec round(Vec a) {
  return _mm512_maskz_roundscale_ps(kAll, a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec absolute(Vec a) {
  return _mm512_abs_ps(a);
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const Vec bit = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}
inline Mask less(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
inline Mask less_equal(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
inline Mask both(Mask a, Mask b) {
  return static_cast<Mask>(a & b);
}
inline Vec select(Mask mask, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(mask, no, yes);
}
inline int first_equal(Vec a, Vec b) {
  const unsigned bits = _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
  return bits == 0 ? -1 : __builtin_ctz(bits);
}

inline Vec scale_by_power(Vec p, Vec n) {
  return _mm512_maskz_scalef_ps(kAll, p, n);
}

inline Vec scale_by_normal_power(Vec p, Vec n) {
  return _mm512_maskz_scalef_ps(kAll, p, n);
}

inline __m256 lower(Vec v) {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 0);
}
inline __m256 upper(Vec v) {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 1);
}
inline __m256 fold(Vec v) {
  return _mm256_add_ps(lower(v), upper(v));
}

inline float reduce_add(Vec v) {
  const __m256 half = fold(v);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec v) {
  const __m256 half = _mm256_max_ps(lower(v), upper(v));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline __m128 reduce_add4(Vec a, Vec b, Vec c, Vec d) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(fold(a), fold(b)), _mm256_hadd_ps(fold(c), fold(d)));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

inline void store4(float* p, __m128 four) {
  _mm_storeu_ps(p, four);
}
[[gnu::always_inline]] inline void prefetch_line(const char* byte) {
  _mm_prefetch(byte, _MM_HINT_T0);
}
inline double square_root(double x) {
  const __m128d wide = _mm_set_sd(x);
  return _mm_cvtsd_f64(_mm_sqrt_sd(wide, wide));
}

struct WideSum {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  static __m512d low_half(Vec v) { return _mm512_maskz_cvtps_pd(0xff, lower(v)); }
  static __m512d high_half(Vec v) { return _mm512_maskz_cvtps_pd(0xff, upper(v)); }
  void add(Vec v) {
    low = _mm512_add_pd(low, low_half(v));
    high = _mm512_add_pd(high, high_half(v));
  }
  void add_product(Vec a, Vec b) {
    low = _mm512_fmadd_pd(low_half(a), low_half(b), low);
    high = _mm512_fmadd_pd(high_half(a), high_half(b), high);
  }
  double total() const {
    const __m512d both = _mm512_add_pd(low, high);
    const __m256d half =
        _mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xf, both, 0), _mm512_maskz_extractf64x4_pd(0xf, both, 1));
    const __m128d x = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(x) + _mm_cvtsd_f64(_mm_unpackhi_pd(x, x));
  }
};

}  // namespace
}  // namespace pare::runtime
