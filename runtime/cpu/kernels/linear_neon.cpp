// NEON kernels of packed linears. linear_kernels.h gives the layout and each parameter's meaning.
//
// A panel is four quarters of 4 outputs. VALUES: codes are moved to the top of their lane and back, which gives them
// their sign, and are converted as integers. 2:4: TBL picks the kept one of a four of x for each output. Sums are added
// in the order of linear_avx2.cpp, so that both give the same bits.
//
// FEW: 4 rows x 16 outputs, 16 accumulators. PREFILL: 6 rows x 16 outputs, 24 accumulators.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_neon.h"

namespace pare::runtime {
namespace {

constexpr int64_t kPrefetchBytes = 2048;

// The 2:4 format whose kept values are those of the dense format Values.
template <class Values, WeightFormat kTwoOfFour>
struct TwoOfFour : Values {
  static constexpr WeightFormat kFormat = kTwoOfFour;
  static_assert(value_format(kTwoOfFour) == Values::kFormat);

  // Returns one quarter of the i-th of the unit's kept values.
  static float32x4_t kept(const uint8_t* unit, int i, int quarter) {
    constexpr UnitShape kValues = unit_shape(Values::kFormat);
    constexpr int kUnit = static_cast<int>(kValues.num_k);
    return Values::value(unit + kPlacesBytes + i / kUnit * kValues.num_bytes, i % kUnit, quarter);
  }
};
using Bf16TwoOfFour = TwoOfFour<Bf16, WeightFormat::bf16_24>;
using F16TwoOfFour = TwoOfFour<F16, WeightFormat::f16_24>;
using Int8TwoOfFour = TwoOfFour<Int8, WeightFormat::int8_24>;
using Int4TwoOfFour = TwoOfFour<Int4, WeightFormat::int4_24>;

// Returns where each output's i-th kept value stands in its four.
inline uint32x4_t place_of(const uint8_t* unit, int i, int quarter) {
  return (vreinterpretq_u32_s32(load_quarter(unit, quarter)) >> (2 * i)) & 3u;
}

// chain[r] += the products of row r with a unit of a dense format.
template <class Format, int kRows, int kChains>
inline void add_unit(const Format& format, const uint8_t* bytes, const float* x, int64_t x_stride,
                     float32x4_t (&chain)[kRows][kQuarters][kChains]) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
#pragma GCC unroll 32
  for (int j = 0; j < kUnit; ++j) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      const float32x4_t value = format.value(bytes, j, q);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        chain[r][q][j % kChains] = vfmaq_n_f32(chain[r][q][j % kChains], value, x[r * x_stride + j]);
      }
    }
  }
}

// The same with a unit of a 2:4 format. `zero` is subtracted from each kept value.
template <class Format, bool kHasZeros, int kRows, int kChains>
inline void add_unit_of_kept(const uint8_t* bytes, const float* x, int64_t x_stride,
                             const float32x4_t (&zero)[kQuarters], float32x4_t (&chain)[kRows][kQuarters][kChains]) {
#pragma GCC unroll 16
  for (int i = 0; i < kKeptPerUnit; ++i) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      float32x4_t value = Format::kept(bytes, i, q);
      if constexpr (kHasZeros) value = value - zero[q];
      const uint8x16_t place = bytes_of_floats(place_of(bytes, i, q));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const uint8x16_t four = vreinterpretq_u8_f32(vld1q_f32(x + r * x_stride + i / 2 * 4));
        const float32x4_t x_r = vreinterpretq_f32_u8(vqtbl1q_u8(four, place));
        chain[r][q][i % kChains] = vfmaq_f32(chain[r][q][i % kChains], value, x_r);
      }
    }
  }
}

// kChains sums of products side by side hide an addition's latency where there are few rows.
template <class Format, int kRows, int kChains>
void gemv(const PanelRun& run, const float* x, int64_t x_stride, const float* sums, int64_t sums_stride, float* y,
          int64_t y_stride) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  constexpr bool kTwoOfFour = is_two_of_four(Format::kFormat);
  const int64_t units_per_group = run.group_len / kUnit;
  const int64_t line_bytes = scale_line_bytes(run);
  const Format format = format_of<Format>(run);
  const bool has_tensor_scale = Format::kQuantized && run.tensor_scale != 1.0f;
  const float32x4_t nothing = vdupq_n_f32(0.0f);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    float32x4_t total[kRows][kQuarters], bias[kQuarters];
    for (int q = 0; q < kQuarters; ++q) {
      bias[q] = run.bias ? vld1q_f32(run.bias + out + kQuarter * q) : nothing;
      for (int r = 0; r < kRows; ++r) total[r][q] = has_tensor_scale ? nothing : bias[q];
    }
    const float* x_k = x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      float32x4_t chain[kRows][kQuarters][kChains];
      float32x4_t zero[kQuarters];
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        zero[q] = Format::kQuantized && zeros ? load_zeros<Format>(zeros, q) : nothing;
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
          for (int c = 0; c < kChains; ++c) chain[r][q][c] = nothing;
        }
      }
      for (int64_t u = 0; u < units_per_group; ++u) {
        for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(bytes + kPrefetchBytes + line, 0, 3);
        if constexpr (kTwoOfFour) {
          if (Format::kQuantized && zeros) {
            add_unit_of_kept<Format, Format::kQuantized>(bytes, x_k, x_stride, zero, chain);
          } else {
            add_unit_of_kept<Format, false>(bytes, x_k, x_stride, zero, chain);
          }
        } else {
          add_unit(format, bytes, x_k, x_stride, chain);
        }
        bytes += kBytes;
        x_k += kUnit;
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        float32x4_t scale = nothing;
        if constexpr (Format::kQuantized) scale = load_scales(run, scales, q);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          float32x4_t sum = chain[r][q][0];
          if constexpr (kChains == 2) sum = sum + chain[r][q][1];
          if constexpr (Format::kQuantized) {
            if constexpr (Format::kFactor != 1.0f) sum = sum * Format::kFactor;
            if (!kTwoOfFour && zeros) sum = vfmsq_f32(sum, zero[q], vdupq_n_f32(sums[r * sums_stride + group]));
            total[r][q] = vfmaq_f32(total[r][q], scale, sum);
          } else {
            total[r][q] = total[r][q] + sum;
          }
        }
      }
      if constexpr (Format::kQuantized) {
        scales += line_bytes;
        if (zeros) zeros += kPanel;
      }
    }
    for (int q = 0; q < kQuarters; ++q) {
      for (int r = 0; r < kRows; ++r) {
        if (has_tensor_scale) total[r][q] = vfmaq_n_f32(bias[q], total[r][q], 1.0f / run.tensor_scale);
        store_lanes(y + r * y_stride + out + kQuarter * q, total[r][q], run.num_outs - out - kQuarter * q);
      }
    }
  }
}

// Expands one quarter of a unit of a 2:4 format to 32 dense positions.
template <class Format>
inline void expand_kept(const uint8_t* bytes, int quarter, float32x4_t zero, float32x4_t scale, float* dst,
                        int64_t dst_stride) {
#pragma GCC unroll 8
  for (int i = 0; i < kKeptPerUnit; i += 2) {
    const float32x4_t first = scaled<Format>(Format::kept(bytes, i, quarter), zero, scale);
    const float32x4_t second = scaled<Format>(Format::kept(bytes, i + 1, quarter), zero, scale);
    const uint32x4_t first_place = place_of(bytes, i, quarter), second_place = place_of(bytes, i + 1, quarter);
#pragma GCC unroll 4
    for (uint32_t place = 0; place < 4; ++place) {
      const uint32x4_t here = vdupq_n_u32(place);
      const float32x4_t if_second = vbslq_f32(vceqq_u32(second_place, here), second, vdupq_n_f32(0.0f));
      vst1q_f32(dst, vbslq_f32(vceqq_u32(first_place, here), first, if_second));
      dst += dst_stride;
    }
  }
}

template <class Format>
void expand(const PanelRun& run, int64_t begin_k, int64_t end_k, float* dst, int64_t dst_stride) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  const int64_t line_bytes = scale_line_bytes(run);
  const Format format = format_of<Format>(run);
  for (int64_t k = begin_k; k < end_k;) {
    const int64_t group = k / run.group_len;
    const int64_t group_end = (group + 1) * run.group_len < end_k ? (group + 1) * run.group_len : end_k;
    float32x4_t scale[kQuarters], zero[kQuarters];
    for (int q = 0; q < kQuarters; ++q) {
      scale[q] = zero[q] = vdupq_n_f32(0.0f);
      if constexpr (Format::kQuantized) {
        scale[q] = load_scales(run, run.scales + group * line_bytes, q);
        if (run.tensor_scale != 1.0f) scale[q] = scale[q] / run.tensor_scale;
        if (run.zeros) zero[q] = load_zeros<Format>(run.zeros + group * kPanel, q);
      }
    }
    for (; k < group_end; k += kUnit) {
      const uint8_t* const bytes = run.lines + k / kUnit * kBytes;
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        float* const dst_q = dst + kQuarter * q;
        if constexpr (is_two_of_four(Format::kFormat)) {
          expand_kept<Format>(bytes, q, zero[q], scale[q], dst_q, dst_stride);
        } else {
#pragma GCC unroll 32
          for (int j = 0; j < kUnit; ++j) {
            vst1q_f32(dst_q + j * dst_stride, scaled<Format>(format.value(bytes, j, q), zero[q], scale[q]));
          }
        }
      }
      dst += kUnit * dst_stride;
    }
  }
}

template <int kRows>
void tile(const float* a, const float* b, int64_t num_k, const float* start, int64_t start_stride, float* y,
          int64_t y_stride, int64_t num_outs) {
  float32x4_t sum[kRows][kQuarters];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) sum[r][q] = vdupq_n_f32(0.0f);
  }
  for (int64_t k = 0; k < num_k; ++k, a += kRows, b += kPanel) {
    const float32x4_t weights[kQuarters] = {vld1q_f32(b), vld1q_f32(b + 4), vld1q_f32(b + 8), vld1q_f32(b + 12)};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) sum[r][q] = vfmaq_n_f32(sum[r][q], weights[q], a[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      const int64_t first = kQuarter * q;
      const float32x4_t start_r =
          start ? load_lanes(start + r * start_stride + first, num_outs - first) : vdupq_n_f32(0.0f);
      store_lanes(y + r * y_stride + first, sum[r][q] + start_r, num_outs - first);
    }
  }
}

template <class Format>
void add_format(LinearKernels& kernels) {
  const int format = static_cast<int>(Format::kFormat);
  kernels.expand[format] = expand<Format>;
  kernels.few[format][0] = gemv<Format, 1, 1>;
  kernels.few[format][1] = gemv<Format, 2, 1>;
  kernels.few[format][2] = gemv<Format, 3, 1>;
  kernels.few[format][3] = gemv<Format, 4, 1>;
  kernels.gemv[format][0] = gemv<Format, 1, 2>;
  kernels.gemv[format][1] = gemv<Format, 2, 2>;
}

LinearKernels make_kernels() {
  LinearKernels kernels{};
  kernels.max_gemv_rows = 2;
  kernels.max_few_rows = 16;
  kernels.tile_rows = 6;
  kernels.tile_panels = 1;
  add_format<Bf16>(kernels);
  add_format<F16>(kernels);
  add_format<F32>(kernels);
  add_format<Int2>(kernels);
  add_format<Int3>(kernels);
  add_format<Int4>(kernels);
  add_format<Int8>(kernels);
  add_format<Fp8>(kernels);
  add_format<Table4>(kernels);
  add_format<Bf16TwoOfFour>(kernels);
  add_format<F16TwoOfFour>(kernels);
  add_format<Int8TwoOfFour>(kernels);
  add_format<Int4TwoOfFour>(kernels);
  const TileKernel tiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  for (int rows = 0; rows < 6; ++rows) kernels.tile[rows] = tiles[rows];
  return kernels;
}

}  // namespace

// Four rows of 4 positions are transposed at a time. All rows of 4 positions come before the next 4, so that a line of
// the strip is written while it is in L1.
void pack_strip(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, float* strip) {
  const int64_t num_fours = num_k / 4 * 4;
  for (int64_t k = 0; k < num_fours; k += 4) {
    float* const dst = strip + k * num_rows;
    int64_t r = 0;
    for (; r + 4 <= num_rows; r += 4) {
      const float* const row = x + r * x_stride + k;
      const float32x4x2_t rows_01 = vtrnq_f32(vld1q_f32(row), vld1q_f32(row + x_stride));
      const float32x4x2_t rows_23 = vtrnq_f32(vld1q_f32(row + 2 * x_stride), vld1q_f32(row + 3 * x_stride));
      for (int c = 0; c < 2; ++c) {
        vst1q_f32(dst + c * num_rows + r, vcombine_f32(vget_low_f32(rows_01.val[c]), vget_low_f32(rows_23.val[c])));
        vst1q_f32(dst + (c + 2) * num_rows + r,
                  vcombine_f32(vget_high_f32(rows_01.val[c]), vget_high_f32(rows_23.val[c])));
      }
    }
    for (; r < num_rows; ++r) {
      for (int64_t c = 0; c < 4; ++c) dst[c * num_rows + r] = x[r * x_stride + k + c];
    }
  }
  for (int64_t k = num_fours; k < num_k; ++k) {
    for (int64_t r = 0; r < num_rows; ++r) strip[k * num_rows + r] = x[r * x_stride + k];
  }
}

const LinearKernels& linear_kernels_neon() {
  static const LinearKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
