// Rows and weights as bfloat16 parts, and what is done with sums of codes (bf16_kernels.h), by AVX-512 (F, BW, VL, DQ).
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp, as for the other packed linears.

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/bf16_kernels.h"
#include "runtime/cpu/kernels/linear_formats_avx512.h"

namespace pare::runtime {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kRowBytes = 64;
constexpr int kUpperHalf = static_cast<int>(0xffff0000);

// Takes the nearest bfloat16 from each lane: returns it as the upper half of a lane, and leaves the rest in `value`.
// Ties go away from zero, which costs one addition of integers. What would round to infinity loses its lower bits
// instead, and what is not finite leaves no rest.
inline __m512i take_part(__m512& value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i upper = _mm512_set1_epi32(kUpperHalf);
  __m512i part = _mm512_and_si512(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), upper);
  const __mmask16 is_huge = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f8000));
  if (__builtin_expect(is_huge == 0, 1)) {
    value = _mm512_sub_ps(value, _mm512_castsi512_ps(part));
    return part;
  }
  const __mmask16 is_infinite_or_nan = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  part = _mm512_mask_and_epi32(part, is_huge, bits, upper);
  part = _mm512_mask_or_epi32(part, is_nan, part, _mm512_set1_epi32(0x00400000));
  value = _mm512_mask_sub_ps(_mm512_setzero_ps(), static_cast<__mmask16>(~is_infinite_or_nan), value,
                             _mm512_castsi512_ps(part));
  return part;
}

// The same without rounding: cuts off the lower half. Three parts hold 24 bits that way as well, and what is infinite
// leaves NaN.
inline __m512i cut_part(__m512& value) {
  const __m512i part = _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(kUpperHalf));
  value = _mm512_sub_ps(value, _mm512_castsi512_ps(part));
  return part;
}

// Returns the nearest bfloat16 of each lane, ties to even, as the upper half of a lane.
inline __m512i nearest(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
}

// Writes 32 positions of a row: its line in each part's tile.
template <int kParts>
inline void store_row(__m512 first, __m512 second, uint8_t* line, int64_t part_bytes) {
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(kParts == 1 ? nearest(first) : take_part(first), 16));
    const __m256i high =
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(kParts == 1 ? nearest(second) : take_part(second), 16));
    _mm512_store_si512(line + part * part_bytes, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
}

// Returns a code less its zero, which has at most 8 significant bits: the upper half of the lane holds it.
template <class Format>
inline __m512 code_of(__m512 value, __m512 zero) {
  if constexpr (Format::kFactor != 1.0f) value = _mm512_mul_ps(value, _mm512_set1_ps(Format::kFactor));
  return _mm512_sub_ps(value, zero);
}

template <class Format>
void expand_codes(const PanelRun& run, int64_t begin_k, int64_t end_k, uint8_t* tiles) {
  constexpr int kUnit = static_cast<int>(unit_shape(Format::kFormat).num_k);
  constexpr int64_t kBytes = unit_shape(Format::kFormat).num_bytes;
  constexpr int kLowElseHigh = 0xCA;  // of each bit: the first operand chooses the second or the third
  const Format format = format_of<Format>(run);
  const __m512i lower_half = _mm512_set1_epi32(0xffff);
  for (int64_t k = begin_k; k < end_k;) {
    const int64_t group = k / run.group_len;
    const int64_t group_end = (group + 1) * run.group_len < end_k ? (group + 1) * run.group_len : end_k;
    const __m512 zero = run.zeros ? load_zeros<Format>(run.zeros + group * kPanel) : _mm512_setzero_ps();
    for (; k < group_end; k += kUnit) {
      const typename Format::Unit unit = Format::load(run.lines + k / kUnit * kBytes);
#pragma GCC unroll 16
      for (int j = 0; j < kUnit; j += 2, tiles += kRowBytes) {
        const __m512i even = _mm512_castps_si512(code_of<Format>(format.value(unit, j), zero));
        const __m512i odd = _mm512_castps_si512(code_of<Format>(format.value(unit, j + 1), zero));
        _mm512_store_si512(tiles,
                           _mm512_ternarylogic_epi32(lower_half, _mm512_srli_epi32(even, 16), odd, kLowElseHigh));
      }
    }
  }
}

template <int kParts>
void pack_strip_of(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, uint8_t* strip) {
  const int64_t padded_rows = num_rows <= kTileRows ? kTileRows : 2 * kTileRows;
  const int64_t part_bytes = padded_rows * kRowBytes;
  for (int64_t k = 0; k < num_k; k += kBf16TileK) {
    const __mmask16 first_mask = lane_mask(num_k - k), second_mask = lane_mask(num_k - k - 16);
    for (int64_t r = 0; r < padded_rows; ++r) {
      const float* const x_k = x + r * x_stride + k;
      __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
      if (r < num_rows) {
        first = _mm512_maskz_loadu_ps(first_mask, x_k);
        if (second_mask != 0) second = _mm512_maskz_loadu_ps(second_mask, x_k + 16);
      }
      store_row<kParts>(first, second, strip + r * kRowBytes, part_bytes);
    }
    strip += kParts * part_bytes;
  }
}

}  // namespace

void pack_bf16_strip(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, int input_parts,
                     uint8_t* strip) {
  (input_parts == 1 ? pack_strip_of<1> : pack_strip_of<kInputParts>)(x, x_stride, num_rows, num_k, strip);
}

void split_bf16_weights(const float* w, int64_t w_stride, int64_t num_k, int num_parts, uint8_t* tiles,
                        int64_t part_bytes) {
  static_assert(kPanel * 2 * 2 == kRowBytes);
  for (int64_t k = 0; k < num_k; k += 2, tiles += kRowBytes) {
    __m512 even = _mm512_loadu_ps(w + k * w_stride);
    __m512 odd = _mm512_loadu_ps(w + (k + 1) * w_stride);
    for (int part = 0; part < num_parts; ++part) {
      const __m512i low = _mm512_srli_epi32(cut_part(even), 16);
      _mm512_store_si512(tiles + part * part_bytes, _mm512_or_si512(low, cut_part(odd)));
    }
  }
}

bool expand_bf16_codes(WeightFormat format, const PanelRun& run, int64_t begin_k, int64_t end_k, uint8_t* tiles) {
  switch (format) {
    case WeightFormat::int2:
      expand_codes<Int2>(run, begin_k, end_k, tiles);
      return true;
    case WeightFormat::int3:
      expand_codes<Int3>(run, begin_k, end_k, tiles);
      return true;
    case WeightFormat::int4:
      expand_codes<Int4>(run, begin_k, end_k, tiles);
      return true;
    case WeightFormat::int8:
      expand_codes<Int8>(run, begin_k, end_k, tiles);
      return true;
    case WeightFormat::fp8:
      expand_codes<Fp8>(run, begin_k, end_k, tiles);
      return true;
    default:
      return false;
  }
}

void load_bf16_scales(const PanelRun& run, int64_t group, float* scales) {
  const __m512 scale = load_scales(run.scale_format, run.scales + group * scale_line_bytes(run.scale_format));
  _mm512_storeu_ps(scales, _mm512_div_ps(scale, _mm512_set1_ps(run.tensor_scale)));
}

void add_scaled_bf16_sums(const float* sums, int64_t num_rows, const float* scales, const float* start,
                          int64_t start_stride, float* dst, int64_t dst_stride) {
  const __m512 first = _mm512_loadu_ps(scales), second = _mm512_loadu_ps(scales + kPanel);
  for (int64_t r = 0; r < num_rows; ++r, sums += 2 * kPanel, start += start_stride, dst += dst_stride) {
    _mm512_storeu_ps(dst, _mm512_fmadd_ps(first, _mm512_load_ps(sums), _mm512_loadu_ps(start)));
    _mm512_storeu_ps(dst + kPanel,
                     _mm512_fmadd_ps(second, _mm512_load_ps(sums + kPanel), _mm512_loadu_ps(start + kPanel)));
  }
}

}  // namespace pare::runtime
