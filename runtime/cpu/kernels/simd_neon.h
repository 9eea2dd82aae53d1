// The vector operations of simd_avx2.h for NEON, with the same names and meanings: 8 lanes, as two registers. Two of
// them hide the latency of an addition, and sums are added in the order of AVX2.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace pare::runtime {
namespace {

constexpr int64_t kLanes = 8;
// For register tiles: the vectors of the right operand that one pass of attention's value product holds (of 32
// registers, which are 16 vectors).
constexpr int kMaxValueVectors = 2;
constexpr int kScoreKeys = 4;

struct Vec {
  float32x4_t low, high;
};
struct Mask {
  uint32x4_t low, high;
};

inline Vec set1(float x) {
  return {vdupq_n_f32(x), vdupq_n_f32(x)};
}
inline Vec zero() {
  return set1(0.0f);
}
inline Vec load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}
inline void store(float* p, Vec v) {
  vst1q_f32(p, v.low);
  vst1q_f32(p + 4, v.high);
}

inline Vec load_part(const float* p, int64_t n) {
  if (n >= kLanes) return load(p);
  float values[kLanes] = {};
  __builtin_memcpy(values, p, static_cast<size_t>(n > 0 ? n : 0) * sizeof(float));
  return load(values);
}
inline void store_part(float* p, Vec v, int64_t n) {
  if (n >= kLanes) return store(p, v);
  float values[kLanes];
  store(values, v);
  __builtin_memcpy(p, values, static_cast<size_t>(n > 0 ? n : 0) * sizeof(float));
}

inline Vec load_int8(const int8_t* p, int64_t n) {
  int64_t bytes = 0;
  __builtin_memcpy(&bytes, p, static_cast<size_t>(n >= kLanes ? kLanes : n));
  const int16x8_t wide = vmovl_s8(vcreate_s8(static_cast<uint64_t>(bytes)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}

inline Vec load_bf16(const uint16_t* p) {
  const uint16x8_t bits = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}
inline Vec load_bf16_part(const uint16_t* p, int64_t n) {
  uint16_t bits[kLanes] = {};
  __builtin_memcpy(bits, p, static_cast<size_t>(n >= kLanes ? kLanes : n) * sizeof(uint16_t));
  return load_bf16(bits);
}

inline Vec add(Vec a, Vec b) {
  return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
inline Vec sub(Vec a, Vec b) {
  return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
inline Vec mul(Vec a, Vec b) {
  return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
inline Vec div(Vec a, Vec b) {
  return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
// FMAX gives NaN if either operand is, hence comparisons.
inline float32x4_t larger(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline float32x4_t smaller(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline Vec max(Vec a, Vec b) {
  return {larger(a.low, b.low), larger(a.high, b.high)};
}
inline Vec min(Vec a, Vec b) {
  return {smaller(a.low, b.low), smaller(a.high, b.high)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
inline Vec round(Vec a) {
  return {vrndnq_f32(a.low), vrndnq_f32(a.high)};
}
inline Vec absolute(Vec a) {
  return {vabsq_f32(a.low), vabsq_f32(a.high)};
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  return {vbslq_f32(bit, sign.low, magnitude.low), vbslq_f32(bit, sign.high, magnitude.high)};
}
inline Mask less(Vec a, Vec b) {
  return {vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high)};
}
inline Mask less_equal(Vec a, Vec b) {
  return {vcleq_f32(a.low, b.low), vcleq_f32(a.high, b.high)};
}
inline Mask both(Mask a, Mask b) {
  return {vandq_u32(a.low, b.low), vandq_u32(a.high, b.high)};
}
inline Vec select(Mask mask, Vec yes, Vec no) {
  return {vbslq_f32(mask.low, yes.low, no.low), vbslq_f32(mask.high, yes.high, no.high)};
}
inline int first_equal(Vec a, Vec b) {
  const uint16x8_t lanes = vcombine_u16(vmovn_u32(vceqq_f32(a.low, b.low)), vmovn_u32(vceqq_f32(a.high, b.high)));
  const uint64_t bytes = vget_lane_u64(vreinterpret_u64_u8(vmovn_u16(lanes)), 0);
  return bytes == 0 ? -1 : __builtin_ctzll(bytes) / 8;
}

inline float32x4_t scale_by_power(float32x4_t p, float32x4_t n) {
  const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
  const float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const float32x4_t second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23));
  return vmulq_f32(vmulq_f32(p, first), second);
}
inline Vec scale_by_power(Vec p, Vec n) {
  return {scale_by_power(p.low, n.low), scale_by_power(p.high, n.high)};
}

inline float32x4_t scale_by_normal_power(float32x4_t p, float32x4_t n) {
  const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
}
inline Vec scale_by_normal_power(Vec p, Vec n) {
  return {scale_by_normal_power(p.low, n.low), scale_by_normal_power(p.high, n.high)};
}

inline float reduce_add(Vec v) {
  const float32x4_t four = vaddq_f32(v.low, v.high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(Vec v) {
  const float32x4_t four = larger(v.low, v.high);
  const float32x4_t two = larger(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}
inline float32x4_t reduce_add4(Vec a, Vec b, Vec c, Vec d) {
  const float32x4_t low = vpaddq_f32(vpaddq_f32(a.low, b.low), vpaddq_f32(c.low, d.low));
  const float32x4_t high = vpaddq_f32(vpaddq_f32(a.high, b.high), vpaddq_f32(c.high, d.high));
  return vaddq_f32(low, high);
}
inline void store4(float* p, float32x4_t four) {
  vst1q_f32(p, four);
}
inline void prefetch_line(const char* byte) {
  __builtin_prefetch(byte, 0, 3);
}
inline double square_root(double x) {
  return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0);
}

struct WideSum {
  float64x2_t sums[4] = {vdupq_n_f64(0.0), vdupq_n_f64(0.0), vdupq_n_f64(0.0), vdupq_n_f64(0.0)};
  void add(Vec v) {
    sums[0] = vaddq_f64(sums[0], vcvt_f64_f32(vget_low_f32(v.low)));
    sums[1] = vaddq_f64(sums[1], vcvt_high_f64_f32(v.low));
    sums[2] = vaddq_f64(sums[2], vcvt_f64_f32(vget_low_f32(v.high)));
    sums[3] = vaddq_f64(sums[3], vcvt_high_f64_f32(v.high));
  }
  void add_product(Vec a, Vec b) {
    sums[0] = vfmaq_f64(sums[0], vcvt_f64_f32(vget_low_f32(a.low)), vcvt_f64_f32(vget_low_f32(b.low)));
    sums[1] = vfmaq_f64(sums[1], vcvt_high_f64_f32(a.low), vcvt_high_f64_f32(b.low));
    sums[2] = vfmaq_f64(sums[2], vcvt_f64_f32(vget_low_f32(a.high)), vcvt_f64_f32(vget_low_f32(b.high)));
    sums[3] = vfmaq_f64(sums[3], vcvt_high_f64_f32(a.high), vcvt_high_f64_f32(b.high));
  }
  double total() const {
    const float64x2_t two = vaddq_f64(vaddq_f64(sums[0], sums[2]), vaddq_f64(sums[1], sums[3]));
    return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
  }
};

}  // namespace
}  // namespace pare::runtime
