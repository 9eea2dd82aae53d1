// What the NEON kernels of packed linears share: how the values, scales and zeros of each format become floats.
// linear_kernels.h gives the layouts. A panel is four quarters of 4 outputs.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {
namespace {

constexpr int64_t kQuarter = 4;
constexpr int kQuarters = 4;

inline int32x4_t load_quarter(const uint8_t* line, int quarter) {
  return vreinterpretq_s32_u8(vld1q_u8(line + 16 * quarter));
}
// Returns the kBits lowest bits of each lane of word >> shift, as a signed number.
template <int kBits>
inline float32x4_t signed_bits(int32x4_t word, int shift) {
  return vcvtq_f32_s32((word << (32 - kBits - shift)) >> (32 - kBits));
}
// Loads 4 values of 16 bits.
inline uint16x4_t load_halves(const uint8_t* bytes) {
  return vreinterpret_u16_u8(vld1_u8(bytes));
}
// Loads 4 bytes as lanes.
inline uint32x4_t load_four_bytes(const uint8_t* bytes) {
  uint32_t four;
  __builtin_memcpy(&four, bytes, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
// Returns where TBL finds the bytes of a float of each index.
inline uint8x16_t bytes_of_floats(uint32x4_t index) {
  return vreinterpretq_u8_u32(index * 0x04040404u + 0x03020100u);
}

// In each format, value(unit, j, quarter) gives the 4 values of one quarter of position j of the unit, times
// 1 / kFactor.
struct Bf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    const auto pair = vreinterpretq_u32_s32(load_quarter(unit + 64 * (j / 2), quarter));
    return vreinterpretq_f32_u32(j % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
  }
};

struct F16 {
  static constexpr WeightFormat kFormat = WeightFormat::f16;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(unit + 32 * j + 8 * quarter)));
  }
};

struct F32 {
  static constexpr WeightFormat kFormat = WeightFormat::f32;
  static constexpr bool kQuantized = false;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    return vreinterpretq_f32_s32(load_quarter(unit + 64 * j, quarter));
  }
};

struct Int2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    return signed_bits<2>(load_quarter(unit, quarter), 2 * j);
  }
};

struct Int3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  // The upper bit of a two's complement code counts -4.
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    const int top = int3_top(j);
    const int32x4_t low = (load_quarter(unit + 64 * (j / 16), quarter) >> (j % 16 * 2)) & 3;
    const int32x4_t line = load_quarter(unit + 128, quarter);
    const int32x4_t high = (top >= 2 ? line >> (top - 2) : line << (2 - top)) & 4;
    return vcvtq_f32_s32(low - high);
  }
};

struct Int4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    return signed_bits<4>(load_quarter(unit, quarter), 4 * j);
  }
};

struct Int8 {
  static constexpr WeightFormat kFormat = WeightFormat::int8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    return signed_bits<8>(load_quarter(unit, quarter), 8 * j);
  }
};

struct Fp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 0x1p8f;
  // E4M3's exponent and mantissa are the lower bits of binary16's exponent and the upper ones of its mantissa. The
  // biases differ by 8. Subnormals stay exact.
  static float32x4_t value(const uint8_t* unit, int j, int quarter) {
    const auto code = vreinterpretq_u32_s32(load_quarter(unit, quarter)) >> (8 * j);
    const uint32x4_t halves = (code & 0x7Fu) << 7 | (code & 0x80u) << 8;
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(halves)));
  }
};

// A table of 16 values in four registers, from the run.
struct Table4 {
  static constexpr WeightFormat kFormat = WeightFormat::table4;
  static constexpr bool kQuantized = true;
  static constexpr float kFactor = 1.0f;
  explicit Table4(const PanelRun& run) : table(vld1q_u8_x4(reinterpret_cast<const uint8_t*>(run.values))) {}
  float32x4_t value(const uint8_t* unit, int j, int quarter) const {
    const auto index = (vreinterpretq_u32_s32(load_quarter(unit, quarter)) >> (4 * j)) & 15u;
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, bytes_of_floats(index)));
  }

  uint8x16x4_t table;
};

// Returns what a format needs besides its lines: a table of values, or nothing.
template <class Format>
inline Format format_of(const PanelRun& run) {
  if constexpr (Format::kFormat == WeightFormat::table4) return Format(run);
  if constexpr (Format::kFormat != WeightFormat::table4) return {};
}

inline float32x4_t load_scales(const PanelRun& run, const uint8_t* scales, int quarter) {
  if (run.scale_format == ScaleFormat::f32) return vreinterpretq_f32_s32(load_quarter(scales, quarter));
  if (scale_bytes(run.scale_format) == 1) {
    const uint32x4_t bytes = load_four_bytes(scales + kQuarter * quarter);
    // The exponent alone; 2^-127 is a subnormal.
    if (run.scale_format == ScaleFormat::e8m0) {
      return vreinterpretq_f32_u32(vmaxq_u32(bytes << 23, vdupq_n_u32(0x400000)));
    }
    // As in Fp8, without a sign.
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bytes << 7))) * Fp8::kFactor;
  }
  const uint16x4_t halves = load_halves(scales + 8 * quarter);
  if (run.scale_format == ScaleFormat::f16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
  return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

inline int64_t scale_line_bytes(const PanelRun& run) {
  return scale_bytes(run.scale_format) * kPanel;
}

// Loads zeros relative to the centre 2^(bits-1), which stored codes already have subtracted.
template <class Format>
inline float32x4_t load_zeros(const uint8_t* zeros, int quarter) {
  constexpr UnitShape kUnit = unit_shape(value_format(Format::kFormat));
  constexpr int kBits = static_cast<int>(kUnit.num_bytes * 8 / kPanel / kUnit.num_k);
  const auto bytes = vreinterpretq_s32_u32(load_four_bytes(zeros + kQuarter * quarter));
  return vcvtq_f32_s32(bytes - (1 << (kBits - 1)));
}

// Loads and stores the first n lanes (n may exceed the width or lie below 0). The memory of others is not touched.
inline float32x4_t load_lanes(const float* p, int64_t n) {
  if (n >= kQuarter) return vld1q_f32(p);
  float values[kQuarter] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = p[i];
  return vld1q_f32(values);
}
inline void store_lanes(float* p, float32x4_t v, int64_t n) {
  if (n >= kQuarter) return vst1q_f32(p, v);
  float values[kQuarter];
  vst1q_f32(values, v);
  for (int64_t i = 0; i < n; ++i) p[i] = values[i];
}

// Returns a weight as dequantize() computes it: scale * (code - zero), rounded once.
template <class Format>
inline float32x4_t scaled(float32x4_t value, float32x4_t zero, float32x4_t scale) {
  if constexpr (!Format::kQuantized) return value;
  if constexpr (Format::kFactor != 1.0f) value = value * Format::kFactor;
  return (value - zero) * scale;
}

}  // namespace
}  // namespace pare::runtime
