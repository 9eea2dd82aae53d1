// NEON kernels of column panels. linear_kernels.h gives the layout and each parameter's meaning.
//
// As column_avx512.cpp, with four quarters of 4 outputs for each panel, and up to 16 sums in registers.
//
// Oracle: tests/runtime/cpu/column_linear_test.cpp (plain loops in double). Speed: tests/bench/zero_inputs_bench.cpp.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_neon.h"

namespace pare::runtime {
namespace {

constexpr int kMaxSums = 16;
constexpr int64_t kBlockPositions = 128;
constexpr int64_t kGroupsAhead = 4;  // whose scales are prefetched
constexpr int64_t kPrefetchBytes = 2048;

inline void prefetch(const uint8_t* bytes, int64_t num_bytes) {
  for (int64_t line = 0; line < num_bytes; line += 64) {
    __builtin_prefetch(bytes + line, 0, 3);
  }
}

// sums[r][p] += the products at entries [begin, end) of the list of positions, for kCount panels from kFirst on.
template <class Format, int kRows, int kFirst, int kCount, bool kSkips>
inline void add_products(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin, int64_t end,
                         float32x4_t (&sums)[kRows][unit_shape(Format::kFormat).num_k][kQuarters]) {
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  float32x4_t sum[kRows][kCount][kQuarters];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) sum[r][p][q] = sums[r][kFirst + p][q];
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = kSkips ? x.positions[i] : i;
    if constexpr (kFirst == 0) {
      if constexpr (kSkips) prefetch(lines + x.positions[i + kPositionsAhead] * kBytes, kBytes);
      if constexpr (!kSkips) prefetch(lines + k * kBytes + kPrefetchBytes, kBytes);
    }
    const uint8_t* const unit = lines + k * kBytes;
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) {
        const float32x4_t value = format.value(unit, kFirst + p, q);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sum[r][p][q] = vfmaq_n_f32(sum[r][p][q], value, x.x[r * x.x_stride + k]);
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) sums[r][kFirst + p][q] = sum[r][p][q];
    }
  }
}

template <class Format, int kRows, bool kSkips, int kFirst = 0>
inline void add_to_all_panels(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin,
                              int64_t end, float32x4_t (&sums)[kRows][unit_shape(Format::kFormat).num_k][kQuarters]) {
  constexpr int kPanels = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int kCount = kMaxSums / kQuarters / kRows;
  static_assert(kPanels % kCount == 0);
  add_products<Format, kRows, kFirst, kCount, kSkips>(format, lines, x, begin, end, sums);
  if constexpr (kFirst + kCount < kPanels) {
    add_to_all_panels<Format, kRows, kSkips, kFirst + kCount>(format, lines, x, begin, end, sums);
  }
}

template <class Format, int kRows, bool kSkips>
void gemv_columns(const PanelRun& run, const ColumnInput& x, float* y, int64_t y_stride) {
  constexpr int kPanels = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  const Format format = format_of<Format>(run);
  const bool has_tensor_scale = Format::kQuantized && run.tensor_scale != 1.0f;
  const float32x4_t nothing = vdupq_n_f32(0.0f);
  const int64_t line_bytes = scale_line_bytes(run);
  const uint8_t* lines = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanels * kPanel) {
    float32x4_t total[kRows][kPanels][kQuarters];
    for (int p = 0; p < kPanels; ++p) {
      const bool starts_at_bias = run.bias != nullptr && !has_tensor_scale && out + p * kPanel < run.num_outs;
      for (int q = 0; q < kQuarters; ++q) {
        for (int r = 0; r < kRows; ++r) {
          total[r][p][q] = starts_at_bias ? vld1q_f32(run.bias + out + p * kPanel + q * kQuarter) : nothing;
        }
      }
    }
    for (int64_t group = 0; group < run.num_groups; ++group) {
      const int64_t first = kSkips ? x.first_of_group[group] : group * run.group_len;
      const int64_t end = kSkips ? x.first_of_group[group + 1] : first + run.group_len;
      if constexpr (Format::kQuantized) {
        prefetch(scales + (group + kGroupsAhead) * kPanels * line_bytes, kPanels * line_bytes);
      }
      if (first == end) continue;  // every term is zero
      float32x4_t sums[kRows][kPanels][kQuarters];
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) {
          for (int q = 0; q < kQuarters; ++q) sums[r][p][q] = nothing;
        }
      }
      for (int64_t begin = first; begin < end; begin += kBlockPositions) {
        const int64_t block_end = begin + kBlockPositions < end ? begin + kBlockPositions : end;
        add_to_all_panels<Format, kRows, kSkips>(format, lines, x, begin, block_end, sums);
      }
      for (int p = 0; p < kPanels; ++p) {
        for (int q = 0; q < kQuarters; ++q) {
          if constexpr (Format::kQuantized) {
            const int64_t place = group * kPanels + p;
            const float32x4_t scale = load_scales(run, scales + place * line_bytes, q);
            const float32x4_t zero = zeros ? load_zeros<Format>(zeros + place * kPanel, q) : nothing;
            for (int r = 0; r < kRows; ++r) {
              float32x4_t sum = sums[r][p][q] * Format::kFactor;
              if (zeros) sum = vfmsq_f32(sum, zero, vdupq_n_f32(x.sums[r * x.sums_stride + group]));
              total[r][p][q] = vfmaq_f32(total[r][p][q], scale, sum);
            }
          } else {
            for (int r = 0; r < kRows; ++r) total[r][p][q] = total[r][p][q] + sums[r][p][q];
          }
        }
      }
    }
    for (int p = 0; p < kPanels && out + p * kPanel < run.num_outs; ++p) {
      for (int q = 0; q < kQuarters; ++q) {
        const int64_t first_out = out + p * kPanel + q * kQuarter;
        const float32x4_t bias = run.bias ? vld1q_f32(run.bias + first_out) : nothing;
        for (int r = 0; r < kRows; ++r) {
          if (has_tensor_scale) total[r][p][q] = vfmaq_n_f32(bias, total[r][p][q], 1.0f / run.tensor_scale);
          store_lanes(y + r * y_stride + first_out, total[r][p][q], run.num_outs - first_out);
        }
      }
    }
    lines += run.num_groups * run.group_len * kBytes;
    scales += Format::kQuantized ? run.num_groups * kPanels * line_bytes : 0;
    zeros += zeros ? run.num_groups * kPanels * kPanel : 0;
  }
}

template <class Format, int kRows>
void gemv(const PanelRun& run, const ColumnInput& x, float* y, int64_t y_stride) {
  if (x.positions != nullptr) return gemv_columns<Format, kRows, true>(run, x, y, y_stride);
  gemv_columns<Format, kRows, false>(run, x, y, y_stride);
}

template <class Format, int kPanelIndex>
void expand_panel(const PanelRun& run, int64_t begin_k, int64_t end_k, float* dst, int64_t dst_stride) {
  constexpr int64_t kPanels = unit_shape(Format::kFormat).num_k;
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  const Format format = format_of<Format>(run);
  for (int64_t k = begin_k; k < end_k;) {
    const int64_t group = k / run.group_len;
    const int64_t group_end = (group + 1) * run.group_len < end_k ? (group + 1) * run.group_len : end_k;
    float32x4_t scale[kQuarters], zero[kQuarters];
    for (int q = 0; q < kQuarters; ++q) {
      scale[q] = zero[q] = vdupq_n_f32(0.0f);
      if constexpr (Format::kQuantized) {
        const int64_t place = group * kPanels + kPanelIndex;
        scale[q] = load_scales(run, run.scales + place * scale_line_bytes(run), q);
        if (run.tensor_scale != 1.0f) scale[q] = scale[q] / run.tensor_scale;
        if (run.zeros) zero[q] = load_zeros<Format>(run.zeros + place * kPanel, q);
      }
    }
    for (; k < group_end; ++k) {
      for (int q = 0; q < kQuarters; ++q) {
        const float32x4_t value = format.value(run.lines + k * kBytes, kPanelIndex, q);
        vst1q_f32(dst + q * kQuarter, scaled<Format>(value, zero[q], scale[q]));
      }
      dst += dst_stride;
    }
  }
}

template <class Format, int kPanelIndex = 0>
void expand(const PanelRun& run, int64_t panel, int64_t begin_k, int64_t end_k, float* dst, int64_t dst_stride) {
  if (panel == kPanelIndex) return expand_panel<Format, kPanelIndex>(run, begin_k, end_k, dst, dst_stride);
  if constexpr (kPanelIndex + 1 < static_cast<int>(unit_shape(Format::kFormat).num_k)) {
    expand<Format, kPanelIndex + 1>(run, panel, begin_k, end_k, dst, dst_stride);
  }
}

int64_t nonzero_positions(const float* x, int64_t x_stride, int64_t num_rows, int64_t begin_k, int64_t end_k,
                          int32_t* positions) {
  int64_t count = 0;
  for (int64_t k = begin_k; k < end_k; ++k) {
    bool is_nonzero = false;
    for (int64_t r = 0; r < num_rows; ++r) is_nonzero = is_nonzero || x[r * x_stride + k] != 0.0f;
    // Without a branch, which zeros at random places would mislead. There is room behind the last position.
    positions[count] = static_cast<int32_t>(k);
    count += is_nonzero ? 1 : 0;
  }
  return count;
}

template <class Format>
void add_format(ColumnKernels& kernels) {
  const int format = static_cast<int>(Format::kFormat);
  static_assert(panels_of_column(Format::kFormat) > 0);
  kernels.expand[format] = expand<Format>;
  kernels.gemv[format][0] = gemv<Format, 1>;
  kernels.gemv[format][1] = gemv<Format, 2>;
}

ColumnKernels make_kernels() {
  ColumnKernels kernels{};
  add_format<Bf16>(kernels);
  add_format<F16>(kernels);
  add_format<F32>(kernels);
  add_format<Int4>(kernels);
  add_format<Int8>(kernels);
  add_format<Fp8>(kernels);
  add_format<Table4>(kernels);
  kernels.nonzero_positions = nonzero_positions;
  return kernels;
}

}  // namespace

const ColumnKernels& column_kernels_neon() {
  static const ColumnKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
