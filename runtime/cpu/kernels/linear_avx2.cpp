// AVX2 + FMA + F16C kernels of packed linears. linear_kernels.h gives the layout and each parameter's meaning.
//
// A panel is two halves of 8 outputs. VALUES: codes of 2 and 3 bits index a table of 8 values in a register (vpermps
// reads the low 3 bits). Codes of 4 and 8 bits are moved to the top of their lane, zeros below, and converted as signed
// integers. That gives the value times 2^28 or 2^24, exact in float32; decode scales the group's sum back. Dense codes
// of 2, 3 and 4 bits are decoded in digit_avx2.cpp alone. 2:4: both 128-bit lanes hold a four of x, and vpermilps picks
// the kept one for each output.
//
// FEW: 4 rows x 16 outputs, 8 accumulators. PREFILL: 6 rows x 16 outputs, 12 accumulators.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_avx2.h"

namespace pare::runtime {
namespace {

constexpr int64_t kPrefetchBytes = 2048;

// The 2:4 format whose kept values are those of the dense format Values.
template <class Values, WeightFormat kTwoOfFour>
struct TwoOfFour : Values {
  static constexpr WeightFormat kFormat = kTwoOfFour;
  static_assert(value_format(kTwoOfFour) == Values::kFormat);

  // Returns one half of the i-th of the unit's kept values.
  static __m256 kept(const uint8_t* unit, int i, int half) {
    constexpr UnitShape kValues = unit_shape(Values::kFormat);
    constexpr int kUnit = static_cast<int>(kValues.num_k);
    return Values::value(unit + kPlacesBytes + i / kUnit * kValues.num_bytes, i % kUnit, half);
  }
};
using Bf16TwoOfFour = TwoOfFour<Bf16, WeightFormat::bf16_24>;
using F16TwoOfFour = TwoOfFour<F16, WeightFormat::f16_24>;
using Int8TwoOfFour = TwoOfFour<Int8, WeightFormat::int8_24>;
using Int4TwoOfFour = TwoOfFour<Int4, WeightFormat::int4_24>;

// chain[r] += the products of row r with a unit of a dense format.
template <class Format, int kRows, int kChains>
inline void add_unit(const Format& format, const uint8_t* bytes, const float* x, int64_t x_stride,
                     __m256 (&chain)[kRows][2][kChains]) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
#pragma GCC unroll 32
  for (int j = 0; j < kUnit; ++j) {
    const __m256 values[2] = {format.value(bytes, j, 0), format.value(bytes, j, 1)};
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 x_r = _mm256_set1_ps(x[r * x_stride + j]);
      chain[r][0][j % kChains] = _mm256_fmadd_ps(values[0], x_r, chain[r][0][j % kChains]);
      chain[r][1][j % kChains] = _mm256_fmadd_ps(values[1], x_r, chain[r][1][j % kChains]);
    }
  }
}

// The same with a unit of a 2:4 format. `zero`, times 1 / kFactor, is subtracted from each kept value.
template <class Format, bool kHasZeros, int kRows, int kChains>
inline void add_unit_of_kept(const uint8_t* bytes, const float* x, int64_t x_stride, const __m256 (&zero)[2],
                             __m256 (&chain)[kRows][2][kChains]) {
#pragma GCC unroll 16
  for (int i = 0; i < kKeptPerUnit; ++i) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 value = Format::kept(bytes, i, half);
      if constexpr (kHasZeros) value = _mm256_sub_ps(value, zero[half]);
      const __m256i place = _mm256_srli_epi32(load_half(bytes, half), 2 * i);  // vpermilps reads the lowest two bits
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256 four = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x + r * x_stride + i / 2 * 4));
        chain[r][half][i % kChains] =
            _mm256_fmadd_ps(value, _mm256_permutevar_ps(four, place), chain[r][half][i % kChains]);
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
  const __m256 per_tensor = _mm256_set1_ps(1.0f / run.tensor_scale);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 total[kRows][2];
    const __m256 bias[2] = {run.bias ? _mm256_loadu_ps(run.bias + out) : _mm256_setzero_ps(),
                            run.bias ? _mm256_loadu_ps(run.bias + out + kHalf) : _mm256_setzero_ps()};
    for (int r = 0; r < kRows; ++r) {
      for (int half = 0; half < 2; ++half) total[r][half] = has_tensor_scale ? _mm256_setzero_ps() : bias[half];
    }
    const float* x_k = x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256 chain[kRows][2][kChains];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
          for (int c = 0; c < kChains; ++c) chain[r][half][c] = _mm256_setzero_ps();
        }
      }
      __m256 zero[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
      if (Format::kQuantized && zeros) {
        for (int half = 0; half < 2; ++half) {
          zero[half] = load_zeros<Format>(zeros, half);
          if constexpr (kTwoOfFour) zero[half] = _mm256_mul_ps(zero[half], _mm256_set1_ps(1.0f / Format::kFactor));
        }
      }
      for (int64_t u = 0; u < units_per_group; ++u) {
        for (int64_t line = 0; line < kBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes + line), _MM_HINT_T0);
        }
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
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m256 scale = _mm256_setzero_ps();
        if constexpr (Format::kQuantized) scale = load_scales(run, scales, half);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          __m256 sum = chain[r][half][0];
          if constexpr (kChains == 2) sum = _mm256_add_ps(sum, chain[r][half][1]);
          if constexpr (Format::kQuantized) {
            if constexpr (Format::kFactor != 1.0f) sum = _mm256_mul_ps(sum, _mm256_set1_ps(Format::kFactor));
            if (!kTwoOfFour && zeros) {
              sum = _mm256_fnmadd_ps(zero[half], _mm256_set1_ps(sums[r * sums_stride + group]), sum);
            }
            total[r][half] = _mm256_fmadd_ps(scale, sum, total[r][half]);
          } else {
            total[r][half] = _mm256_add_ps(total[r][half], sum);
          }
        }
      }
      if constexpr (Format::kQuantized) {
        scales += line_bytes;
        if (zeros) zeros += kPanel;
      }
    }
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < kRows && has_tensor_scale; ++r) {
        total[r][half] = _mm256_fmadd_ps(total[r][half], per_tensor, bias[half]);
      }
      const __m256i mask = lane_mask(run.num_outs - out - kHalf * half);
      for (int r = 0; r < kRows; ++r) _mm256_maskstore_ps(y + r * y_stride + out + kHalf * half, mask, total[r][half]);
    }
  }
}

// Expands one half of a unit of a 2:4 format to 32 dense positions.
template <class Format>
inline void expand_kept(const uint8_t* bytes, int half, __m256 zero, __m256 scale, float* dst, int64_t dst_stride) {
  const __m256i places = load_half(bytes, half);
  const __m256i low_bits = _mm256_set1_epi32(3);
#pragma GCC unroll 8
  for (int i = 0; i < kKeptPerUnit; i += 2) {
    const __m256 first = scaled<Format>(Format::kept(bytes, i, half), zero, scale);
    const __m256 second = scaled<Format>(Format::kept(bytes, i + 1, half), zero, scale);
    const __m256i first_place = _mm256_and_si256(_mm256_srli_epi32(places, 2 * i), low_bits);
    const __m256i second_place = _mm256_and_si256(_mm256_srli_epi32(places, 2 * i + 2), low_bits);
#pragma GCC unroll 4
    for (int place = 0; place < 4; ++place) {
      const __m256i here = _mm256_set1_epi32(place);
      const __m256 is_first = _mm256_castsi256_ps(_mm256_cmpeq_epi32(first_place, here));
      const __m256 is_second = _mm256_castsi256_ps(_mm256_cmpeq_epi32(second_place, here));
      _mm256_storeu_ps(dst, _mm256_or_ps(_mm256_and_ps(first, is_first), _mm256_and_ps(second, is_second)));
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
    __m256 scale[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 zero[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if constexpr (Format::kQuantized) {
      for (int half = 0; half < 2; ++half) {
        scale[half] = load_scales(run, run.scales + group * line_bytes, half);
        if (run.tensor_scale != 1.0f) scale[half] = _mm256_div_ps(scale[half], _mm256_set1_ps(run.tensor_scale));
        if (run.zeros) zero[half] = load_zeros<Format>(run.zeros + group * kPanel, half);
      }
    }
    for (; k < group_end; k += kUnit) {
      const uint8_t* const bytes = run.lines + k / kUnit * kBytes;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        float* const dst_half = dst + kHalf * half;
        if constexpr (is_two_of_four(Format::kFormat)) {
          expand_kept<Format>(bytes, half, zero[half], scale[half], dst_half, dst_stride);
        } else {
#pragma GCC unroll 32
          for (int j = 0; j < kUnit; ++j) {
            const __m256 value = scaled<Format>(format.value(bytes, j, half), zero[half], scale[half]);
            _mm256_storeu_ps(dst_half + j * dst_stride, value);
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
  __m256 sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = _mm256_setzero_ps();
    sum[r][1] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < num_k; k += 2) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256 b_0 = _mm256_load_ps(b + i * kPanel);
      const __m256 b_1 = _mm256_load_ps(b + i * kPanel + kHalf);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256 a_r = _mm256_broadcast_ss(a + i * kRows + r);
        sum[r][0] = _mm256_fmadd_ps(a_r, b_0, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(a_r, b_1, sum[r][1]);
      }
    }
    a += 2 * kRows;
    b += 2 * kPanel;
  }
  const __m256i mask[2] = {lane_mask(num_outs), lane_mask(num_outs - kHalf)};
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256 start_r =
          start ? _mm256_maskload_ps(start + r * start_stride + kHalf * half, mask[half]) : _mm256_setzero_ps();
      _mm256_maskstore_ps(y + r * y_stride + kHalf * half, mask[half], _mm256_add_ps(sum[r][half], start_r));
    }
  }
}

template <class Format>
void add_prefill(LinearKernels& kernels) {
  const int format = static_cast<int>(Format::kFormat);
  kernels.expand[format] = expand<Format>;
  kernels.few[format][0] = gemv<Format, 1, 1>;
  kernels.few[format][1] = gemv<Format, 2, 1>;
  kernels.few[format][2] = gemv<Format, 3, 1>;
  kernels.few[format][3] = gemv<Format, 4, 1>;
}

template <class Format>
void add_format(LinearKernels& kernels) {
  add_prefill<Format>(kernels);
  const int format = static_cast<int>(Format::kFormat);
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
  add_prefill<Int2>(kernels);
  add_prefill<Int3>(kernels);
  add_prefill<Int4>(kernels);
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

// Four rows of 8 positions are transposed inside the two halves of each register, then rows by twos, then one. All rows
// of 8 positions come before the next 8, so that a line of the strip is written while it is in L1.
void pack_strip(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, float* strip) {
  const int64_t num_eights = num_k / 8 * 8;
  for (int64_t k = 0; k < num_eights; k += 8) {
    float* dst = strip + k * num_rows;
    int64_t r = 0;
    for (; r + 4 <= num_rows; r += 4) {
      const float* row = x + r * x_stride + k;
      const __m256 row_0 = _mm256_loadu_ps(row);
      const __m256 row_1 = _mm256_loadu_ps(row + x_stride);
      const __m256 row_2 = _mm256_loadu_ps(row + 2 * x_stride);
      const __m256 row_3 = _mm256_loadu_ps(row + 3 * x_stride);
      const __m256d low_01 = _mm256_castps_pd(_mm256_unpacklo_ps(row_0, row_1));
      const __m256d high_01 = _mm256_castps_pd(_mm256_unpackhi_ps(row_0, row_1));
      const __m256d low_23 = _mm256_castps_pd(_mm256_unpacklo_ps(row_2, row_3));
      const __m256d high_23 = _mm256_castps_pd(_mm256_unpackhi_ps(row_2, row_3));
      const __m256 columns[4] = {_mm256_castpd_ps(_mm256_unpacklo_pd(low_01, low_23)),
                                 _mm256_castpd_ps(_mm256_unpackhi_pd(low_01, low_23)),
                                 _mm256_castpd_ps(_mm256_unpacklo_pd(high_01, high_23)),
                                 _mm256_castpd_ps(_mm256_unpackhi_pd(high_01, high_23))};
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        _mm_storeu_ps(dst + c * num_rows + r, _mm256_castps256_ps128(columns[c]));
        _mm_storeu_ps(dst + (4 + c) * num_rows + r, _mm256_extractf128_ps(columns[c], 1));
      }
    }
    for (; r + 2 <= num_rows; r += 2) {
      const float* row = x + r * x_stride + k;
      for (int64_t c = 0; c < 8; c += 4) {
        const __m128 row_0 = _mm_loadu_ps(row + c);
        const __m128 row_1 = _mm_loadu_ps(row + x_stride + c);
        const __m128 low = _mm_unpacklo_ps(row_0, row_1);
        const __m128 high = _mm_unpackhi_ps(row_0, row_1);
        _mm_storel_pi(reinterpret_cast<__m64*>(dst + c * num_rows + r), low);
        _mm_storeh_pi(reinterpret_cast<__m64*>(dst + (c + 1) * num_rows + r), low);
        _mm_storel_pi(reinterpret_cast<__m64*>(dst + (c + 2) * num_rows + r), high);
        _mm_storeh_pi(reinterpret_cast<__m64*>(dst + (c + 3) * num_rows + r), high);
      }
    }
    for (; r < num_rows; ++r) {
      for (int64_t c = 0; c < 8; ++c) dst[c * num_rows + r] = x[r * x_stride + k + c];
    }
  }
  for (int64_t k = num_eights; k < num_k; ++k) {
    for (int64_t r = 0; r < num_rows; ++r) strip[k * num_rows + r] = x[r * x_stride + k];
  }
}

const LinearKernels& linear_kernels_avx2() {
  static const LinearKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
