// AVX-512 (F, BW, VL, DQ) kernels of column panels. linear_kernels.h gives the layout and each parameter's meaning.
//
// A position's input is broadcast and multiplied with 16 outputs per panel, in one FMA each. Up to 16 sums stay in
// registers. A group of more sums goes through its positions several times, kBlockPositions at a time, so that their
// lines are then in L1. Lines are prefetched by the list of positions, which the hardware cannot foresee.
//
// Oracle: tests/runtime/cpu/column_linear_test.cpp (plain loops in double). Speed: tests/bench/zero_inputs_bench.cpp.

// See linear_avx512.cpp.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_avx512.h"

namespace pare::runtime {
namespace {

constexpr int kMaxSums = 16;
constexpr int64_t kBlockPositions = 128;
constexpr int64_t kGroupsAhead = 4;  // whose scales are prefetched
constexpr int64_t kPrefetchBytes = 8192;

inline void prefetch(const uint8_t* bytes, int64_t num_bytes) {
  for (int64_t line = 0; line < num_bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(bytes + line), _MM_HINT_T0);
  }
}

// sums[r][p] += the products at entries [begin, end) of the list of positions, for kCount panels from kFirst on.
template <class Format, int kRows, int kFirst, int kCount, bool kSkips>
inline void add_products(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin, int64_t end,
                         __m512 (&sums)[kRows][unit_shape(Format::kFormat).num_k]) {
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  __m512 sum[kRows][kCount];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) sum[r][p] = sums[r][kFirst + p];
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = kSkips ? x.positions[i] : i;
    if constexpr (kFirst == 0) {
      if constexpr (kSkips) prefetch(lines + x.positions[i + kPositionsAhead] * kBytes, kBytes);
      if constexpr (!kSkips) prefetch(lines + k * kBytes + kPrefetchBytes, kBytes);
    }
    const typename Format::Unit unit = Format::load(lines + k * kBytes);
    __m512 x_R[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) x_R[r] = _mm512_set1_ps(x.x[r * x.x_stride + k]);
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
      const __m512 value = format.value(unit, kFirst + p);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][p] = _mm512_fmadd_ps(value, x_R[r], sum[r][p]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) sums[r][kFirst + p] = sum[r][p];
  }
}

template <class Format, int kRows, bool kSkips, int kFirst = 0>
inline void add_to_all_panels(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin,
                              int64_t end, __m512 (&sums)[kRows][unit_shape(Format::kFormat).num_k]) {
  constexpr int kPanels = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int kAtOnce = kRows == 3 ? 4 : kMaxSums / kRows;
  constexpr int kCount = kAtOnce < kPanels - kFirst ? kAtOnce : kPanels - kFirst;
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
  const __m512 per_tensor = _mm512_set1_ps(1.0f / run.tensor_scale);
  const int64_t line_bytes = scale_line_bytes(run.scale_format);
  const uint8_t* lines = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanels * kPanel) {
    __m512 total[kRows][kPanels];
    for (int p = 0; p < kPanels; ++p) {
      const bool starts_at_bias = run.bias != nullptr && !has_tensor_scale && out + p * kPanel < run.num_outs;
      for (int r = 0; r < kRows; ++r) {
        total[r][p] = starts_at_bias ? _mm512_loadu_ps(run.bias + out + p * kPanel) : _mm512_setzero_ps();
      }
    }
    for (int64_t group = 0; group < run.num_groups; ++group) {
      const int64_t first = kSkips ? x.first_of_group[group] : group * run.group_len;
      const int64_t end = kSkips ? x.first_of_group[group + 1] : first + run.group_len;
      if constexpr (Format::kQuantized) {
        prefetch(scales + (group + kGroupsAhead) * kPanels * line_bytes, kPanels * line_bytes);
      }
      if (first == end) continue;  // every term is zero
      __m512 sums[kRows][kPanels];
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) sums[r][p] = _mm512_setzero_ps();
      }
      for (int64_t begin = first; begin < end; begin += kBlockPositions) {
        const int64_t block_end = begin + kBlockPositions < end ? begin + kBlockPositions : end;
        add_to_all_panels<Format, kRows, kSkips>(format, lines, x, begin, block_end, sums);
      }
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (Format::kQuantized) {
          const int64_t place = group * kPanels + p;
          const __m512 scale = load_scales(run.scale_format, scales + place * line_bytes);
          const __m512 zero = zeros ? load_zeros<Format>(zeros + place * kPanel) : _mm512_setzero_ps();
          for (int r = 0; r < kRows; ++r) {
            __m512 sum = _mm512_mul_ps(sums[r][p], _mm512_set1_ps(Format::kFactor));
            if (zeros) sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(x.sums[r * x.sums_stride + group]), sum);
            total[r][p] = _mm512_fmadd_ps(scale, sum, total[r][p]);
          }
        } else {
          for (int r = 0; r < kRows; ++r) total[r][p] = _mm512_add_ps(total[r][p], sums[r][p]);
        }
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      const int64_t first_out = out + p * kPanel;
      const __mmask16 mask = lane_mask(run.num_outs - first_out);
      if (mask == 0) break;
      const __m512 bias = run.bias ? _mm512_loadu_ps(run.bias + first_out) : _mm512_setzero_ps();
      for (int r = 0; r < kRows; ++r) {
        if (has_tensor_scale) total[r][p] = _mm512_fmadd_ps(total[r][p], per_tensor, bias);
        _mm512_mask_storeu_ps(y + r * y_stride + first_out, mask, total[r][p]);
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
    __m512 scale = _mm512_setzero_ps();
    __m512 zero = _mm512_setzero_ps();
    if constexpr (Format::kQuantized) {
      const int64_t place = group * kPanels + kPanelIndex;
      scale = load_scales(run.scale_format, run.scales + place * scale_line_bytes(run.scale_format));
      if (run.tensor_scale != 1.0f) scale = _mm512_div_ps(scale, _mm512_set1_ps(run.tensor_scale));
      if (run.zeros) zero = load_zeros<Format>(run.zeros + place * kPanel);
    }
    for (; k < group_end; ++k) {
      const typename Format::Unit unit = Format::load(run.lines + k * kBytes);
      _mm512_storeu_ps(dst, scaled<Format>(format.value(unit, kPanelIndex), zero, scale));
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
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t count = 0;
  for (int64_t k = begin_k; k < end_k; k += kPanel) {
    const __mmask16 here = lane_mask(end_k - k);
    __mmask16 nonzero = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      const __m512 values = _mm512_maskz_loadu_ps(here, x + r * x_stride + k);
      nonzero = static_cast<__mmask16>(nonzero | _mm512_cmp_ps_mask(values, _mm512_setzero_ps(), _CMP_NEQ_UQ));
    }
    const __m512i all = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(k)), lanes);
    _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi32(nonzero, all));
    count += std::popcount(static_cast<unsigned>(nonzero));
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
  kernels.gemv[format][2] = gemv<Format, 3>;
  kernels.gemv[format][3] = gemv<Format, 4>;
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

const ColumnKernels& column_kernels_avx512() {
  static const ColumnKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
