// The neon and dotprod paths of int8_kernels.h, and what the i8mm path shares with them. They differ in the Dot that
// the including file gives: how four products of bytes join each lane of 32 bits.
//
//   Dot::add(sum, weights, x)             sum[lane] += sum over i < 4 of weights[4 lane + i] * x[4 lane + i]
//   Dot::add_lane<kLane>(sum, weights, x) the same with the four bytes of one lane of x in place of each lane's
//
// A register has 4 outputs x 4 positions. int4, few rows: the nibbles of positions 0, 2, 4, 6 and of 1, 3, 5, 7 are
// widened to signed bytes, which have the middle of the grid subtracted; the row's codes stand in the same order.
//
// MANY ROWS: tiles of 8 rows x 16 outputs, 8 outputs after the other 8, so that all sums stay in registers.
//
// Oracle: plain loops, bit for bit (tests/runtime/cpu/int8_kernels_test.cpp).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kQuarter = 4;  // outputs in a register
constexpr int kQuarters = 4;
constexpr int kRowsOfTile = 8;
constexpr int kMaxFewRows = 4;
constexpr int64_t kPrefetchBytes = 4096;
constexpr int kCenter = 8;  // for int4: stored nibbles are codes minus 8

// Loads the scales, or other stored floats, of a quarter of a panel. `values` is the panel's line.
inline float32x4_t load_values(ScaleFormat format, const uint8_t* values, int quarter) {
  if (format == ScaleFormat::f32) return vreinterpretq_f32_u8(vld1q_u8(values + 16 * quarter));
  const uint16x4_t halves = vreinterpret_u16_u8(vld1_u8(values + 8 * quarter));
  if (format == ScaleFormat::f16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
  return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

constexpr int64_t line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

inline int8x16_t load_bytes(const uint8_t* bytes) {
  return vreinterpretq_s8_u8(vld1q_u8(bytes));
}

inline int8x16_t broadcast_word(const uint8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

inline void store_lanes(float* p, float32x4_t v, int64_t n) {
  if (n >= kQuarter) return vst1q_f32(p, v);
  float values[kQuarter];
  vst1q_f32(values, v);
  for (int64_t i = 0; i < n; ++i) p[i] = values[i];
}

// Returns the zeros of 4 outputs less the middle of the grid.
inline int32x4_t load_zeros(const uint8_t* zeros, int quarter) {
  uint32_t four;
  std::memcpy(&four, zeros + kQuarter * quarter, 4);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))))) - kCenter;
}

// The signed nibbles of a line's quarter: of positions 0, 2, 4, 6 and of 1, 3, 5, 7.
struct Nibbles {
  int8x16_t even, odd;
};
inline Nibbles load_nibbles(const uint8_t* line, int quarter) {
  const int8x16_t word = load_bytes(line + 16 * quarter);
  return {(word << 4) >> 4, word >> 4};
}

// Writes y of kRows rows and 4 outputs from their totals. The outliers' sum starts from the bias, then the scaled total
// is added.
template <int kRows>
[[gnu::always_inline]] inline void write_rows(const float32x4_t* totals, int64_t row, int quarter,
                                              const PanelFinish& finish) {
  float32x4_t start[kRows];
  const float32x4_t bias = finish.bias ? vld1q_f32(finish.bias + kQuarter * quarter) : vdupq_n_f32(0.0f);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) start[r] = bias;
  const float* x = finish.outliers + row;
  const uint8_t* weights = finish.outlier_weights;
  for (int64_t j = 0; j < finish.num_outliers;
       ++j, weights += line_bytes(finish.outlier_format), x += finish.outliers_stride) {
    const float32x4_t weight = load_values(finish.outlier_format, weights, quarter);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) start[r] = vfmaq_n_f32(start[r], weight, x[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    store_lanes(finish.y + (row + r) * finish.y_stride + kQuarter * quarter,
                vfmaq_n_f32(start[r], totals[r], finish.row_scales[row + r]), finish.num_outs - kQuarter * quarter);
  }
}

template <int kRows>
inline void finish_rows(const int32_t* acc, int64_t acc_stride, int64_t row, int quarter, const PanelFinish& finish) {
  const float32x4_t scale = load_values(finish.scale_format, finish.scales, quarter);
  const int32x4_t sums = finish.offsets ? vld1q_s32(finish.sums + kQuarter * quarter) : vdupq_n_s32(0);
  float32x4_t totals[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    int32x4_t sum = vld1q_s32(acc + (row + r) * acc_stride + kQuarter * quarter);
    if (finish.offsets) sum = vmlsq_n_s32(sum, sums, finish.offsets[row + r]);
    float* const total = finish.totals + (row + r) * finish.totals_stride + kQuarter * quarter;
    const float32x4_t before = finish.is_first_group ? vdupq_n_f32(0.0f) : vld1q_f32(total);
    const float* const of_row = finish.group_scales;
    const float32x4_t scale_r = of_row ? scale * of_row[(row + r) * finish.group_scales_stride] : scale;
    totals[r] = vfmaq_f32(before, vcvtq_f32_s32(sum), scale_r);
    if (!finish.is_last_group) vst1q_f32(total, totals[r]);
  }
  if (finish.is_last_group) write_rows<kRows>(totals, row, quarter, finish);
}

inline void finish_panel(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish) {
  for (int q = 0; q < kQuarters; ++q) {
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) finish_rows<4>(acc, acc_stride, row, q, finish);
    for (; row < num_rows; ++row) finish_rows<1>(acc, acc_stride, row, q, finish);
  }
}

// Returns the weights' scales of a group times the row's.
inline float32x4_t scale_of_row(const Int8GemvRows& rows, int64_t row, int64_t num_groups, int64_t group,
                                float32x4_t scale) {
  return rows.group_scales == nullptr ? scale : scale * rows.group_scales[row * num_groups + group];
}

// Moves the finish to a gemv's next panel.
inline void advance(PanelFinish& finish) {
  if (finish.bias) finish.bias += kPanel;
  if (finish.num_outliers > 0) finish.outlier_weights += finish.num_outliers * line_bytes(finish.outlier_format);
  finish.y += kPanel;
}

template <class Dot, int kRows>
void gemv_int8(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const int32_t* sums = weights.sums;
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    float32x4_t totals[kQuarters][kRows];
    for (int q = 0; q < kQuarters; ++q) {
      for (int r = 0; r < kRows; ++r) totals[q][r] = vdupq_n_f32(0.0f);
    }
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      int32x4_t sum[kQuarters][kRows];
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[q][r] = vdupq_n_s32(0);
      }
      for (int64_t k = 0; k < run.group_len; k += 4, bytes += 64, x += 4) {
        __builtin_prefetch(bytes + kPrefetchBytes, 0, 3);
        int8x16_t x_r[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) x_r[r] = broadcast_word(x + r * rows.stride);
#pragma GCC unroll 4
        for (int q = 0; q < kQuarters; ++q) {
          const int8x16_t weight = load_bytes(bytes + 16 * q);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) sum[q][r] = Dot::add(sum[q][r], weight, x_r[r]);
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        const float32x4_t scale = load_values(run.scale_format, scales, q);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32x4_t group_sum = sum[q][r];
          if (rows.offsets) group_sum = vmlsq_n_s32(group_sum, vld1q_s32(sums + kQuarter * q), rows.offsets[r]);
          const float32x4_t scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
          totals[q][r] = vfmaq_f32(totals[q][r], vcvtq_f32_s32(group_sum), scale_r);
        }
      }
      scales += line_bytes(run.scale_format);
      sums += kPanel;
    }
    finish.num_outs = run.num_outs - out;
    for (int q = 0; q < kQuarters; ++q) write_rows<kRows>(totals[q], 0, q, finish);
    advance(finish);
  }
}

// kHasOffsets: the rows have zeros, so the weights of a group are summed on the way.
template <class Dot, int kRows, bool kHasOffsets>
void gemv_int4_run(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    float32x4_t totals[kQuarters][kRows];
    for (int q = 0; q < kQuarters; ++q) {
      for (int r = 0; r < kRows; ++r) totals[q][r] = vdupq_n_f32(0.0f);
    }
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      int32x4_t sum[kQuarters][kRows], code_sums[kQuarters];
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        code_sums[q] = vdupq_n_s32(0);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[q][r] = vdupq_n_s32(0);
      }
      for (int64_t k = 0; k < run.group_len; k += 8, bytes += 64, x += 8) {
        __builtin_prefetch(bytes + kPrefetchBytes, 0, 3);
#pragma GCC unroll 4
        for (int q = 0; q < kQuarters; ++q) {
          const Nibbles codes = load_nibbles(bytes, q);
          if constexpr (kHasOffsets) code_sums[q] = Dot::add(code_sums[q], codes.even + codes.odd, vdupq_n_s8(1));
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const uint8_t* const x_r = x + r * rows.stride;
            sum[q][r] = Dot::add(sum[q][r], codes.even, broadcast_word(x_r));
            sum[q][r] = Dot::add(sum[q][r], codes.odd, broadcast_word(x_r + 4));
          }
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        const float32x4_t scale = load_values(run.scale_format, scales, q);
        const int32x4_t zero = zeros ? load_zeros(zeros, q) : vdupq_n_s32(0);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32x4_t group_sum = vmlsq_n_s32(sum[q][r], zero, rows.group_sums[r * run.num_groups + group]);
          if constexpr (kHasOffsets) {
            const int32x4_t weight_sums = vmlsq_n_s32(code_sums[q], zero, static_cast<int>(run.group_len));
            group_sum = vmlsq_n_s32(group_sum, weight_sums, rows.offsets[r]);
          }
          const float32x4_t scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
          totals[q][r] = vfmaq_f32(totals[q][r], vcvtq_f32_s32(group_sum), scale_r);
        }
      }
      scales += line_bytes(run.scale_format);
      if (zeros) zeros += kPanel;
    }
    finish.num_outs = run.num_outs - out;
    for (int q = 0; q < kQuarters; ++q) write_rows<kRows>(totals[q], 0, q, finish);
    advance(finish);
  }
}

template <class Dot, int kRows>
void gemv_int4(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  (rows.offsets ? gemv_int4_run<Dot, kRows, true> : gemv_int4_run<Dot, kRows, false>)(weights, rows, first);
}

inline void prepare_int8(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t*) {
  std::memcpy(x, codes, static_cast<size_t>(num_groups * group_len));
}

inline void prepare_int4(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t* group_sums) {
  for (int64_t k = 0; k < num_groups * group_len; k += 8) {
    const int8x8_t eight = vld1_s8(codes + k);
    const int8x8x2_t apart = vuzp_s8(eight, eight);
    vst1_u8(x + k,
            vreinterpret_u8_s32(vzip1_s32(vreinterpret_s32_s8(apart.val[0]), vreinterpret_s32_s8(apart.val[1]))));
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    int32_t sum = 0;
    for (int64_t k = 0; k < group_len; ++k) sum += codes[group * group_len + k];
    group_sums[group] = sum;
  }
}

template <class Dot>
void expand_int4(const PanelRun& run, int64_t begin_group, int64_t end_group, int64_t padded_len, uint8_t* lines,
                 int32_t* sums) {
  const uint8_t* bytes = run.lines + begin_group * run.group_len / 8 * 64;
  for (int64_t group = begin_group; group < end_group; ++group, sums += kPanel) {
    for (int q = 0; q < kQuarters; ++q) {
      const int32x4_t zero = run.zeros ? load_zeros(run.zeros + group * kPanel, q) : vdupq_n_s32(0);
      // The same byte four times in each lane; zeros below the middle of the grid have a sign.
      const int8x16_t zero_bytes = vreinterpretq_s8_s32((zero & 0xFF) * 0x01010101);
      int32x4_t sum = vdupq_n_s32(0);
      uint8_t* out = lines + 16 * q;
      for (int64_t k = 0; k < run.group_len; k += 8, out += 128) {
        const Nibbles codes = load_nibbles(bytes + k * 8, q);
        const int8x16_t even = codes.even - zero_bytes, odd = codes.odd - zero_bytes;
        // Two outputs each, with their 8 positions in order.
        const int32x4_t two = vreinterpretq_s32_s8(vzip1q_s8(even, odd));
        const int32x4_t others = vreinterpretq_s32_s8(vzip2q_s8(even, odd));
        vst1q_u8(out, vreinterpretq_u8_s32(vuzp1q_s32(two, others)));
        vst1q_u8(out + 64, vreinterpretq_u8_s32(vuzp2q_s32(two, others)));
        sum = Dot::add(Dot::add(sum, even, vdupq_n_s8(1)), odd, vdupq_n_s8(1));
      }
      for (int64_t k = run.group_len; k < padded_len; k += 4, out += 64) vst1q_u8(out, vdupq_n_u8(0));
      vst1q_s32(sums + kQuarter * q, sum);
    }
    bytes += run.group_len * 8;
    lines += padded_len * 16;
  }
}

// Writes strip[k / 4][row]: four codes of a row. Groups are whole units of 4.
inline void pack_words(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t, uint8_t* strip) {
  for (int64_t k = 0; k < num_k; k += 4) {
    for (int64_t r = 0; r < num_rows; ++r, strip += 4) std::memcpy(strip, codes + r * stride + k, 4);
  }
}

// sums[r][q] += the products of row r with two quarters of a line, for rows [kFirst, kFirst + 4) of x.
template <class Dot, int kFirst, int... kLane>
[[gnu::always_inline]] inline void add_four_rows(int8x16_t x, const int8x16_t (&weights)[2], int32x4_t (*sums)[2],
                                                 std::integer_sequence<int, kLane...>) {
  ((sums[kFirst + kLane][0] = Dot::template add_lane<kLane>(sums[kFirst + kLane][0], weights[0], x),
    sums[kFirst + kLane][1] = Dot::template add_lane<kLane>(sums[kFirst + kLane][1], weights[1], x)),
   ...);
}

// Tiles that multiply by Dot: sums of 8 outputs, [row][quarter]. `bytes` are every other half of lines of 64 bytes.
template <class Dot>
struct DotProducts {
  static constexpr int64_t kUnitK = 4;
  static constexpr int64_t kUnitRows = 1;
  static constexpr Int8StripKernel kStrip = pack_words;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k, int32x4_t (*sums)[2]) {
    constexpr auto kLanes = std::make_integer_sequence<int, 4>();
    for (int64_t k = 0; k < num_k; k += 4, bytes += 64, x += 4 * kNumRows) {
      const int8x16_t weights[2] = {load_bytes(bytes), load_bytes(bytes + 16)};
      if constexpr (kNumRows >= 4) add_four_rows<Dot, 0>(load_bytes(x), weights, sums, kLanes);
      if constexpr (kNumRows == 8) add_four_rows<Dot, 4>(load_bytes(x + 16), weights, sums, kLanes);
#pragma GCC unroll 4
      for (int r = kNumRows / 4 * 4; r < kNumRows; ++r) {
        const int8x16_t x_r = broadcast_word(x + 4 * r);
        sums[r][0] = Dot::add(sums[r][0], weights[0], x_r);
        sums[r][1] = Dot::add(sums[r][1], weights[1], x_r);
      }
    }
  }
};

// Products::add<kNumRows> adds the products of a strip to sums, whose rows may be padded to a multiple of kUnitRows.
template <class Products, int kNumRows>
void tile(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate, const int32_t* starts,
          int32_t* acc, int64_t acc_stride) {
  for (int half = 0; half < 2; ++half, acc += 8, starts += 8) {
    int32x4_t sums[kNumRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      const int32_t* const before = accumulate ? acc + r * acc_stride : starts;
      sums[r][0] = vld1q_s32(before);
      sums[r][1] = vld1q_s32(before + 4);
    }
    Products::template add<kNumRows>(strip, panels[0] + 32 * half, num_k, sums);
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      vst1q_s32(acc + r * acc_stride, sums[r][0]);
      vst1q_s32(acc + r * acc_stride + 4, sums[r][1]);
    }
  }
}

template <class Products, int kNumRows>
void groups(const Int8Groups& run) {
  constexpr int64_t kStripRows = (kNumRows + Products::kUnitRows - 1) / Products::kUnitRows * Products::kUnitRows;
  const uint8_t* strip = run.strip;
  const uint8_t* bytes = run.panels[0];
  const uint8_t* scales = run.scales[0];
  for (int64_t group = 0; group < run.num_groups; ++group) {
    const bool is_first = run.is_first_group && group == 0;
    for (int half = 0; half < 2; ++half) {
      int32x4_t sums[kNumRows][2];
      const int32_t* const starts = run.starts + group * kPanel + 8 * half;
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        sums[r][0] = vld1q_s32(starts);
        sums[r][1] = vld1q_s32(starts + 4);
      }
      Products::template add<kNumRows>(strip, bytes + 32 * half, run.num_k, sums);
      const float* const of_row = run.group_scales ? run.group_scales + group : nullptr;
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const float32x4_t scale = load_values(run.scale_format, scales, 2 * half + q);
        float* total = run.totals + 8 * half + kQuarter * q;
#pragma GCC unroll 8
        for (int r = 0; r < kNumRows; ++r, total += run.totals_stride) {
          const float32x4_t before = is_first ? vdupq_n_f32(0.0f) : vld1q_f32(total);
          const float32x4_t scale_r = of_row ? scale * of_row[r * run.group_scales_stride] : scale;
          vst1q_f32(total, vfmaq_f32(before, vcvtq_f32_s32(sums[r][q]), scale_r));
        }
      }
    }
    strip += run.num_k * kStripRows;
    bytes += run.num_k * kPanel;
    scales += line_bytes(run.scale_format);
  }
}

template <class Products, int... kIndex>
void set_tiles(Int8Tiles& tiles, std::integer_sequence<int, kIndex...>) {
  ((tiles.tile[kIndex] = tile<Products, kIndex + 1>, tiles.groups[kIndex] = groups<Products, kIndex + 1>), ...);
}

template <class Products>
Int8Tiles make_tiles() {
  Int8Tiles tiles{};
  tiles.strip_offset = 0;
  tiles.rows = kRowsOfTile;
  tiles.panels = 1;
  tiles.strip_unit_rows = static_cast<int>(Products::kUnitRows);
  tiles.k_unit = Products::kUnitK;
  tiles.strip_k_bytes = 1;
  tiles.block_k = 1024;
  tiles.strip = Products::kStrip;
  set_tiles<Products>(tiles, std::make_integer_sequence<int, kRowsOfTile>());
  return tiles;
}

template <class Dot, int... kIndex>
void set_gemvs(Int8Kernels& kernels, std::integer_sequence<int, kIndex...>) {
  ((kernels.gemv_int8[kIndex] = gemv_int8<Dot, kIndex + 1>, kernels.gemv_int4[kIndex] = gemv_int4<Dot, kIndex + 1>),
   ...);
}

template <class Dot>
Int8Kernels make_kernels(std::string_view name) {
  Int8Kernels kernels{};
  kernels.name = name;
  kernels.max_gemv_rows = kMaxFewRows;
  kernels.gemv_k_bytes = 1;
  set_gemvs<Dot>(kernels, std::make_integer_sequence<int, kMaxFewRows>());
  kernels.prepare_int8 = prepare_int8;
  kernels.prepare_int4 = prepare_int4;
  kernels.expand_int4 = expand_int4<Dot>;
  kernels.tiles_int8 = kernels.tiles_int4 = make_tiles<DotProducts<Dot>>();
  kernels.finish = finish_panel;
  return kernels;
}

}  // namespace
}  // namespace pare::runtime
