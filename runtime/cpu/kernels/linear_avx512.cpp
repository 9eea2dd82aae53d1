// AVX-512 (F, BW, VL, DQ) kernels of packed linears. linear_kernels.h gives the layout and each parameter's meaning.
//
// DECODE. A table of 16 code values lies in one register, for integers and for codes with values of their own. vpermps
// reads only the low 4 bits of each index, so a shift, a permute and an FMA multiply 16 weights of 2, 3 or 4 bits
// (narrower codes repeat the table). int8 takes a byte shuffle to the top of the lane, a conversion and an FMA; bf16 a
// shift or a mask and an FMA; fp8 as bf16, after five operations for 64 weights, and a product. Four chains hide the
// FMA's latency. Scales and zeros are applied to the group's sum, never to single weights.
//
// 2:4: every 128-bit lane holds a four of x, and vpermilps picks the kept one for each output. A kept weight costs a
// shift of the places and a permutation besides the cost of its format. It stands for two weights of a dense row.
//
// PREFILL. 8 rows x 48 outputs: 24 accumulators, 3 registers of weights, and broadcasts from a packed strip of x. That
// makes 11 loads for 24 FMAs; 12 x 32 needs 14 and is some 3 % slower.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double, with the tolerance's derivation).
// Speed (tests/bench/linear_bench.cpp, SmolLM2's shapes, one thread of a Granite Rapids virtual machine whose FMA roof
// is 217 GFLOP/s and whose L3 reads 29 GB/s): prefill of 512 rows runs at 165 to 184 GFLOP/s. Decode of bf16 and int8
// runs at 28 to 29 GB/s, of int4 at 34 to 37 billion weights a second; three operations for 16 weights on two ports
// allow 37.

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_formats_avx512.h"

namespace pare::runtime {
namespace {

constexpr int kNumChains = 4;
constexpr int kTilePanels = 3;
// Into L2: on a Granite Rapids, decode of 8 bits reads 25 GB/s with prefetches into L1 and 32 with these, and of bf16
// 28 and 31.
constexpr int64_t kPrefetchBytes = 8192;

// The 2:4 format whose kept values are those of the dense format Values.
template <class Values, WeightFormat kTwoOfFour>
struct TwoOfFour : Values {
  static constexpr WeightFormat kFormat = kTwoOfFour;
  static_assert(value_format(kTwoOfFour) == Values::kFormat);

  // Returns the i-th of the unit's kept values.
  static __m512 kept(const uint8_t* unit, int i) {
    constexpr UnitShape kValues = unit_shape(Values::kFormat);
    constexpr int kUnit = static_cast<int>(kValues.num_k);
    return Values::value(Values::load(unit + kPlacesBytes + i / kUnit * kValues.num_bytes), i % kUnit);
  }
};
using Bf16TwoOfFour = TwoOfFour<Bf16, WeightFormat::bf16_24>;
using F16TwoOfFour = TwoOfFour<F16, WeightFormat::f16_24>;
using Int8TwoOfFour = TwoOfFour<Int8, WeightFormat::int8_24>;
using Int4TwoOfFour = TwoOfFour<Int4, WeightFormat::int4_24>;

// chain[r] += the products of row r with a unit of a dense format.
template <class Format, int kRows>
inline void add_unit(const Format& format, const uint8_t* bytes, const float* x, int64_t x_stride,
                     __m512 (&chain)[kRows][kNumChains]) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  const typename Format::Unit unit = Format::load(bytes);
#pragma GCC unroll 32
  for (int j = 0; j < kUnit; ++j) {
    const __m512 value = format.value(unit, j);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      chain[r][j % kNumChains] = _mm512_fmadd_ps(value, _mm512_set1_ps(x[r * x_stride + j]), chain[r][j % kNumChains]);
    }
  }
}

// The same with a unit of a 2:4 format. `zero`, times 1 / kFactor, is subtracted from each kept value.
template <class Format, int kRows, bool kHasZeros>
inline void add_unit_of_kept(const uint8_t* bytes, const float* x, int64_t x_stride, __m512 zero,
                             __m512 (&chain)[kRows][kNumChains]) {
#pragma GCC unroll 16
  for (int i = 0; i < kKeptPerUnit; ++i) {
    __m512 value = Format::kept(bytes, i);
    if constexpr (kHasZeros) value = _mm512_sub_ps(value, zero);
    const __m512i place = load_shifted(bytes, 2 * i);  // vpermilps reads the lowest two bits
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 four = _mm512_broadcast_f32x4(_mm_loadu_ps(x + r * x_stride + i / 2 * 4));
      chain[r][i % kNumChains] = _mm512_fmadd_ps(value, _mm512_permutevar_ps(four, place), chain[r][i % kNumChains]);
    }
  }
}

// The scale's type and the presence of zeros are template parameters, since branches on them once a group cost 12 %.
template <class Format, int kRows, ScaleFormat kScale, bool kHasZeros>
void gemv_run(const PanelRun& run, const float* x, int64_t x_stride, const float* sums, int64_t sums_stride, float* y,
              int64_t y_stride) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  constexpr bool kTwoOfFour = is_two_of_four(Format::kFormat);
  const int64_t units_per_group = run.group_len / kUnit;
  const Format format = format_of<Format>(run);
  const bool has_tensor_scale = kScale != ScaleFormat::none && run.tensor_scale != 1.0f;
  const __m512 per_tensor = _mm512_set1_ps(1.0f / run.tensor_scale);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m512 total[kRows];
    const __m512 bias = run.bias ? _mm512_loadu_ps(run.bias + out) : _mm512_setzero_ps();
    for (int r = 0; r < kRows; ++r) total[r] = has_tensor_scale ? _mm512_setzero_ps() : bias;
    const float* x_k = x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m512 chain[kRows][kNumChains];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kNumChains; ++c) chain[r][c] = _mm512_setzero_ps();
      }
      __m512 zero = _mm512_setzero_ps();
      if constexpr (kHasZeros) {
        zero = load_zeros<Format>(zeros);
        zeros += kPanel;
        if constexpr (kTwoOfFour) zero = _mm512_mul_ps(zero, _mm512_set1_ps(1.0f / Format::kFactor));
      }
      for (int64_t u = 0; u < units_per_group; ++u) {
        for (int64_t line = 0; line < kBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes + line), _MM_HINT_T1);
        }
        if constexpr (kTwoOfFour) {
          add_unit_of_kept<Format, kRows, kHasZeros>(bytes, x_k, x_stride, zero, chain);
        } else {
          add_unit<Format, kRows>(format, bytes, x_k, x_stride, chain);
        }
        bytes += kBytes;
        x_k += kUnit;
      }
      __m512 scale = _mm512_setzero_ps();
      if constexpr (kScale != ScaleFormat::none) {
        scale = load_scales(kScale, scales);
        scales += scale_line_bytes(kScale);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m512 sum = _mm512_add_ps(_mm512_add_ps(chain[r][0], chain[r][1]), _mm512_add_ps(chain[r][2], chain[r][3]));
        if constexpr (kScale != ScaleFormat::none) {
          if constexpr (Format::kFactor != 1.0f) sum = _mm512_mul_ps(sum, _mm512_set1_ps(Format::kFactor));
          if constexpr (kHasZeros && !kTwoOfFour)
            sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(sums[r * sums_stride + group]), sum);
          total[r] = _mm512_fmadd_ps(scale, sum, total[r]);
        } else {
          total[r] = _mm512_add_ps(total[r], sum);
        }
      }
    }
    for (int r = 0; r < kRows && has_tensor_scale; ++r) total[r] = _mm512_fmadd_ps(total[r], per_tensor, bias);
    const __mmask16 mask = lane_mask(run.num_outs - out);
    for (int r = 0; r < kRows; ++r) _mm512_mask_storeu_ps(y + r * y_stride + out, mask, total[r]);
  }
}

template <class Format, int kRows>
void gemv(const PanelRun& run, const float* x, int64_t x_stride, const float* sums, int64_t sums_stride, float* y,
          int64_t y_stride) {
  GemvKernel kernel = nullptr;
  if constexpr (Format::kFormat == WeightFormat::table4) {
    switch (run.scale_format) {
      case ScaleFormat::e4m3:
        kernel = gemv_run<Format, kRows, ScaleFormat::e4m3, false>;
        break;
      case ScaleFormat::e8m0:
        kernel = gemv_run<Format, kRows, ScaleFormat::e8m0, false>;
        break;
      case ScaleFormat::bf16:
        kernel = gemv_run<Format, kRows, ScaleFormat::bf16, false>;
        break;
      case ScaleFormat::f16:
        kernel = gemv_run<Format, kRows, ScaleFormat::f16, false>;
        break;
      default:
        kernel = gemv_run<Format, kRows, ScaleFormat::f32, false>;
        break;
    }
  } else if constexpr (Format::kQuantized) {
    switch (run.scale_format) {
      case ScaleFormat::bf16:
        kernel = run.zeros ? gemv_run<Format, kRows, ScaleFormat::bf16, true>
                           : gemv_run<Format, kRows, ScaleFormat::bf16, false>;
        break;
      case ScaleFormat::f16:
        kernel = run.zeros ? gemv_run<Format, kRows, ScaleFormat::f16, true>
                           : gemv_run<Format, kRows, ScaleFormat::f16, false>;
        break;
      default:
        kernel = run.zeros ? gemv_run<Format, kRows, ScaleFormat::f32, true>
                           : gemv_run<Format, kRows, ScaleFormat::f32, false>;
        break;
    }
  } else {
    kernel = gemv_run<Format, kRows, ScaleFormat::none, false>;
  }
  kernel(run, x, x_stride, sums, sums_stride, y, y_stride);
}

// Expands a unit of a 2:4 format to 32 dense positions.
template <class Format>
inline void expand_kept(const uint8_t* bytes, __m512 zero, __m512 scale, float* dst, int64_t dst_stride) {
  const __m512i places = _mm512_load_si512(bytes);
  const __m512i low_bits = _mm512_set1_epi32(3);
#pragma GCC unroll 8
  for (int i = 0; i < kKeptPerUnit; i += 2) {
    const __m512 first = scaled<Format>(Format::kept(bytes, i), zero, scale);
    const __m512 second = scaled<Format>(Format::kept(bytes, i + 1), zero, scale);
    const __m512i first_place = _mm512_and_si512(_mm512_srli_epi32(places, 2 * i), low_bits);
    const __m512i second_place = _mm512_and_si512(_mm512_srli_epi32(places, 2 * i + 2), low_bits);
#pragma GCC unroll 4
    for (int place = 0; place < 4; ++place) {
      const __m512i here = _mm512_set1_epi32(place);
      const __m512 value = _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(first_place, here), first);
      _mm512_storeu_ps(dst, _mm512_mask_mov_ps(value, _mm512_cmpeq_epi32_mask(second_place, here), second));
      dst += dst_stride;
    }
  }
}

template <class Format>
void expand(const PanelRun& run, int64_t begin_k, int64_t end_k, float* dst, int64_t dst_stride) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  const int64_t line_bytes = scale_line_bytes(run.scale_format);
  const Format format = format_of<Format>(run);
  for (int64_t k = begin_k; k < end_k;) {
    const int64_t group = k / run.group_len;
    const int64_t group_end = (group + 1) * run.group_len < end_k ? (group + 1) * run.group_len : end_k;
    __m512 scale = _mm512_setzero_ps();
    __m512 zero = _mm512_setzero_ps();
    if constexpr (Format::kQuantized) {
      scale = load_scales(run.scale_format, run.scales + group * line_bytes);
      if (run.tensor_scale != 1.0f) scale = _mm512_div_ps(scale, _mm512_set1_ps(run.tensor_scale));
      if (run.zeros) zero = load_zeros<Format>(run.zeros + group * kPanel);
    }
    for (; k < group_end; k += kUnit) {
      const uint8_t* const bytes = run.lines + k / kUnit * kBytes;
      if constexpr (is_two_of_four(Format::kFormat)) {
        expand_kept<Format>(bytes, zero, scale, dst, dst_stride);
        dst += kUnit * dst_stride;
      } else {
        const typename Format::Unit unit = Format::load(bytes);
#pragma GCC unroll 32
        for (int j = 0; j < kUnit; ++j) {
          _mm512_storeu_ps(dst, scaled<Format>(format.value(unit, j), zero, scale));
          dst += dst_stride;
        }
      }
    }
  }
}

template <int kRows>
void tile(const float* a, const float* b, int64_t num_k, const float* start, int64_t start_stride, float* y,
          int64_t y_stride, int64_t num_outs) {
  __m512 sum[kRows][kTilePanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) sum[r][p] = _mm512_setzero_ps();
  }
  // Two positions per iteration are some 4 % faster than one, and than four.
  for (int64_t k = 0; k < num_k; k += 2) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      __m512 b_p[kTilePanels];
#pragma GCC unroll 3
      for (int p = 0; p < kTilePanels; ++p) b_p[p] = _mm512_load_ps(b + (i * kTilePanels + p) * kPanel);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 a_r = _mm512_set1_ps(a[i * kRows + r]);
#pragma GCC unroll 3
        for (int p = 0; p < kTilePanels; ++p) sum[r][p] = _mm512_fmadd_ps(a_r, b_p[p], sum[r][p]);
      }
    }
    a += 2 * kRows;
    b += 2 * kTilePanels * kPanel;
  }
#pragma GCC unroll 3
  for (int p = 0; p < kTilePanels; ++p) {
    const __mmask16 mask = lane_mask(num_outs - p * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 start_r =
          start ? _mm512_maskz_loadu_ps(mask, start + r * start_stride + p * kPanel) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(y + r * y_stride + p * kPanel, mask, _mm512_add_ps(sum[r][p], start_r));
    }
  }
}

template <class Format>
void add_format(LinearKernels& kernels) {
  const int format = static_cast<int>(Format::kFormat);
  kernels.expand[format] = expand<Format>;
  kernels.gemv[format][0] = gemv<Format, 1>;
  kernels.gemv[format][1] = gemv<Format, 2>;
  kernels.gemv[format][2] = gemv<Format, 3>;
  kernels.gemv[format][3] = gemv<Format, 4>;
}

LinearKernels make_kernels() {
  LinearKernels kernels{};
  kernels.max_gemv_rows = 4;
  kernels.tile_rows = 8;
  kernels.tile_panels = kTilePanels;
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
  const TileKernel tiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>};
  for (int rows = 0; rows < 8; ++rows) kernels.tile[rows] = tiles[rows];
  return kernels;
}

}  // namespace

const LinearKernels& linear_kernels_avx512() {
  static const LinearKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
