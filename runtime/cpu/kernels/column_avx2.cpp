// AVX2 + FMA + F16C kernels of column panels. linear_kernels.h gives the layout and each parameter's meaning.
//
// As column_avx512.cpp, with two halves of 8 outputs for each panel, and up to 8 sums in registers.
//
// Oracle: tests/runtime/cpu/column_linear_test.cpp (plain loops in double). Speed: tests/bench/zero_inputs_bench.cpp.
#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_avx2.h"

namespace pare::runtime {
namespace {

constexpr int kMaxSums = 8;
constexpr int64_t kBlockPositions = 128;
constexpr int64_t kGroupsAhead = 4;  // whose scales are prefetched
constexpr int64_t kPrefetchBytes = 2048;

inline void prefetch(const uint8_t* bytes, int64_t num_bytes) {
  for (int64_t line = 0; line < num_bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(bytes + line), _MM_HINT_T0);
  }
}

// sums[r][p] += the products at entries [begin, end) of the list of positions, for kCount panels from kFirst on.
template <class Format, int kRows, int kFirst, int kCount, bool kSkips>
inline void add_products(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin, int64_t end,
                         __m256 (&sums)[kRows][unit_shape(Format::kFormat).num_k][2]) {
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  __m256 sum[kRows][kCount][2];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
      sum[r][p][0] = sums[r][kFirst + p][0];
      sum[r][p][1] = sums[r][kFirst + p][1];
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = kSkips ? x.positions[i] : i;
    if constexpr (kFirst == 0) {
      if constexpr (kSkips) prefetch(lines + x.positions[i + kPositionsAhead] * kBytes, kBytes);
      if constexpr (!kSkips) prefetch(lines + k * kBytes + kPrefetchBytes, kBytes);
    }
    const uint8_t* const unit = lines + k * kBytes;
    __m256 x_R[kRows];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) x_R[r] = _mm256_broadcast_ss(x.x + r * x.x_stride + k);
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256 value = format.value(unit, kFirst + p, half);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sum[r][p][half] = _mm256_fmadd_ps(value, x_R[r], sum[r][p][half]);
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kCount; ++p) {
      sums[r][kFirst + p][0] = sum[r][p][0];
      sums[r][kFirst + p][1] = sum[r][p][1];
    }
  }
}

template <class Format, int kRows, bool kSkips, int kFirst = 0>
inline void add_to_all_panels(const Format& format, const uint8_t* lines, const ColumnInput& x, int64_t begin,
                              int64_t end, __m256 (&sums)[kRows][unit_shape(Format::kFormat).num_k][2]) {
  constexpr int kPanels = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int kCount = kMaxSums / 2 / kRows;
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
  const __m256 per_tensor = _mm256_set1_ps(1.0f / run.tensor_scale);
  const int64_t line_bytes = scale_line_bytes(run);
  const uint8_t* lines = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanels * kPanel) {
    __m256 total[kRows][kPanels][2];
    for (int p = 0; p < kPanels; ++p) {
      const bool starts_at_bias = run.bias != nullptr && !has_tensor_scale && out + p * kPanel < run.num_outs;
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < kRows; ++r) {
          total[r][p][half] =
              starts_at_bias ? _mm256_loadu_ps(run.bias + out + p * kPanel + half * kHalf) : _mm256_setzero_ps();
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
      __m256 sums[kRows][kPanels][2];
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) sums[r][p][0] = sums[r][p][1] = _mm256_setzero_ps();
      }
      for (int64_t begin = first; begin < end; begin += kBlockPositions) {
        const int64_t block_end = begin + kBlockPositions < end ? begin + kBlockPositions : end;
        add_to_all_panels<Format, kRows, kSkips>(format, lines, x, begin, block_end, sums);
      }
      for (int p = 0; p < kPanels; ++p) {
        for (int half = 0; half < 2; ++half) {
          if constexpr (Format::kQuantized) {
            const int64_t place = group * kPanels + p;
            const __m256 scale = load_scales(run, scales + place * line_bytes, half);
            const __m256 zero = zeros ? load_zeros<Format>(zeros + place * kPanel, half) : _mm256_setzero_ps();
            for (int r = 0; r < kRows; ++r) {
              __m256 sum = _mm256_mul_ps(sums[r][p][half], _mm256_set1_ps(Format::kFactor));
              if (zeros) sum = _mm256_fnmadd_ps(zero, _mm256_set1_ps(x.sums[r * x.sums_stride + group]), sum);
              total[r][p][half] = _mm256_fmadd_ps(scale, sum, total[r][p][half]);
            }
          } else {
            for (int r = 0; r < kRows; ++r) total[r][p][half] = _mm256_add_ps(total[r][p][half], sums[r][p][half]);
          }
        }
      }
    }
    for (int p = 0; p < kPanels && out + p * kPanel < run.num_outs; ++p) {
      for (int half = 0; half < 2; ++half) {
        const int64_t first_out = out + p * kPanel + half * kHalf;
        const __m256i mask = lane_mask(run.num_outs - first_out);
        const __m256 bias = run.bias ? _mm256_loadu_ps(run.bias + first_out) : _mm256_setzero_ps();
        for (int r = 0; r < kRows; ++r) {
          if (has_tensor_scale) total[r][p][half] = _mm256_fmadd_ps(total[r][p][half], per_tensor, bias);
          _mm256_maskstore_ps(y + r * y_stride + first_out, mask, total[r][p][half]);
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
    __m256 scale[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 zero[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int half = 0; half < 2 && Format::kQuantized; ++half) {
      const int64_t place = group * kPanels + kPanelIndex;
      scale[half] = load_scales(run, run.scales + place * scale_line_bytes(run), half);
      if (run.tensor_scale != 1.0f) scale[half] = _mm256_div_ps(scale[half], _mm256_set1_ps(run.tensor_scale));
      if (run.zeros) zero[half] = load_zeros<Format>(run.zeros + place * kPanel, half);
    }
    for (; k < group_end; ++k) {
      for (int half = 0; half < 2; ++half) {
        const __m256 value = format.value(run.lines + k * kBytes, kPanelIndex, half);
        _mm256_storeu_ps(dst + half * kHalf, scaled<Format>(value, zero[half], scale[half]));
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
  for (int64_t k = begin_k; k < end_k; k += kHalf) {
    const __m256i here = lane_mask(end_k - k);
    int nonzero = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      const __m256 values = _mm256_maskload_ps(x + r * x_stride + k, here);
      nonzero |= _mm256_movemask_ps(_mm256_cmp_ps(values, _mm256_setzero_ps(), _CMP_NEQ_UQ));
    }
    for (auto bits = static_cast<unsigned>(nonzero); bits != 0; bits &= bits - 1) {
      positions[count++] = static_cast<int32_t>(k) + std::countr_zero(bits);
    }
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

const ColumnKernels& column_kernels_avx2() {
  static const ColumnKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
