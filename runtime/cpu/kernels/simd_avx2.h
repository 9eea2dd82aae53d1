// The vector operations that the kernel templates are written in, for AVX2 with FMA: 8 lanes. simd_avx512.h has the
// same names for 16. A kernel file includes one of the two. Everything is in an anonymous namespace, so that no
// function of one instruction set is ever linked in place of another's.
//
// max(a, b) and min(a, b) return b if either is NaN.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace pare::runtime {
namespace {

constexpr int64_t kLanes = 8;
// For register tiles: the vectors of the right operand that one pass of attention's value product holds (of 16
// registers).
constexpr int kMaxValueVectors = 2;
constexpr int kScoreKeys = 4;

using Vec = __m256;
using Mask = __m256;

inline Vec zero() {
  return _mm256_setzero_ps();
}
inline Vec set1(float x) {
  return _mm256_set1_ps(x);
}
inline Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v);
}

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// Loads the first n lanes (n may exceed the width). The others are zero, and their memory is not touched.
inline Vec load_part(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : _mm256_maskload_ps(p, first_lanes(n));
}
inline void store_part(float* p, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(p, v);
  } else {
    _mm256_maskstore_ps(p, first_lanes(n), v);
  }
}

// Loads n int8 values from p (n may exceed the width), with zeros after them.
inline Vec load_int8(const int8_t* p, int64_t n) {
  int64_t bytes = 0;
  __builtin_memcpy(&bytes, p, n >= kLanes ? kLanes : n);
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes)));
}

// Loads bf16 values, which are the upper halves of floats.
inline Vec load_bf16(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
// Loads n of them (n may exceed the width), with zeros after them.
inline Vec load_bf16_part(const uint16_t* p, int64_t n) {
  uint16_t bits[kLanes] = {};
  __builtin_memcpy(bits, p, static_cast<size_t>(n >= kLanes ? kLanes : n) * sizeof(uint16_t));
  return load_bf16(bits);
}

inline Vec add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm256_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec max(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}  // a b + c
inline Vec fnma(Vec a, Vec b, Vec c) {
  return _mm256_fnmadd_ps(a, b, c);
}  // c - a b
inline Vec round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec absolute(Vec a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const Vec bit = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
inline Mask less(Vec a, Vec b) {
  return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
inline Mask less_equal(Vec a, Vec b) {
  return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
inline Mask both(Mask a, Mask b) {
  return _mm256_and_ps(a, b);
}
inline Vec select(Mask mask, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, mask);
}
// Returns the index of the first lane where a == b, or -1.
inline int first_equal(Vec a, Vec b) {
  const int bits = _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
  return bits == 0 ? -1 : __builtin_ctz(static_cast<unsigned>(bits));
}

// Returns p * 2^n for whole n in [-300, 300], in two steps, so that results may be subnormal.
inline Vec scale_by_power(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const Vec first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Vec second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23));
  return mul(mul(p, first), second);
}

// The same in one step for n in [-126, 127].
inline Vec scale_by_normal_power(Vec p, Vec n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}

inline float reduce_add(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// Returns the sums of the lanes of four vectors.
inline __m128 reduce_add4(Vec a, Vec b, Vec c, Vec d) {
  const Vec sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
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

// As many doubles as a Vec has floats, for long sums.
struct WideSum {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  void add(Vec v) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
  }
  void add_product(Vec a, Vec b) {  // exact products
    low = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_castps256_ps128(b)), low);
    high = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1)),
                           high);
  }
  double total() const {
    const __m256d both = _mm256_add_pd(low, high);
    const __m128d x = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
    return _mm_cvtsd_f64(x) + _mm_cvtsd_f64(_mm_unpackhi_pd(x, x));
  }
};

}  // namespace
}  // namespace pare::runtime
