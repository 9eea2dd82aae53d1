// The avx2 path of int8_kernels.h.
//
// int8: a line of 16 outputs x 4 positions is widened to 16 bits in two halves of 8 outputs. A shift pair gives
// positions 0 and 2, a shift positions 1 and 3. vpmaddwd with the row's codes, widened beforehand and in the same
// order, adds exact products. Rows of codes are stored as x0 x2 x1 x3 per four positions.
//
// int4, few rows: nibbles 0..15 are the unsigned operand of vpmaddubsw, the row's codes the signed one. Two products
// reach 2 * 15 * 128 < 2^15, so nothing saturates. Zeros are subtracted as zero * (sum of the row's codes).
//
// Many rows: int8_tiles_avx2.cpp.
//
// Oracle: plain loops, bit for bit (tests/runtime/cpu/int8_kernels_test.cpp).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/int8_avx2.h"

namespace pare::runtime {
namespace {

constexpr int64_t kPrefetchBytes = 4096;
constexpr int kCenter = 8;  // for int4: stored nibbles are codes minus 8

inline __m256i lane_mask(int64_t num_lanes) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(num_lanes)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Writes y of kRows rows and 8 outputs from their totals. The outliers' sum starts from the bias, then the scaled total
// is added.
template <int kRows>
[[gnu::always_inline]] inline void write_rows(const __m256* totals, int64_t row, int half, const PanelFinish& finish) {
  __m256 start[kRows];
  const __m256 bias = finish.bias ? _mm256_loadu_ps(finish.bias + kHalf * half) : _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) start[r] = bias;
  const float* x = finish.outliers + row;
  const uint8_t* weights = finish.outlier_weights;
  for (int64_t j = 0; j < finish.num_outliers;
       ++j, weights += line_bytes(finish.outlier_format), x += finish.outliers_stride) {
    const __m256 weight = load_values(finish.outlier_format, weights, half);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      start[r] = _mm256_fmadd_ps(_mm256_set1_ps(x[r]), weight, start[r]);
    }
  }
  const __m256i mask = lane_mask(finish.num_outs - kHalf * half);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256 y = _mm256_fmadd_ps(totals[r], _mm256_set1_ps(finish.row_scales[row + r]), start[r]);
    _mm256_maskstore_ps(finish.y + (row + r) * finish.y_stride + kHalf * half, mask, y);
  }
}

template <int kRows>
inline void finish_rows(const int32_t* acc, int64_t acc_stride, int64_t row, int half, const PanelFinish& finish) {
  const __m256 scale = load_values(finish.scale_format, finish.scales, half);
  const __m256i sums = finish.offsets ? load_ints(finish.sums + kHalf * half) : _mm256_setzero_si256();
  __m256 totals[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    __m256i sum = load_ints(acc + (row + r) * acc_stride + kHalf * half);
    if (finish.offsets) {
      sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(_mm256_set1_epi32(finish.offsets[row + r]), sums));
    }
    float* const total = finish.totals + (row + r) * finish.totals_stride + kHalf * half;
    const __m256 before = finish.is_first_group ? _mm256_setzero_ps() : _mm256_loadu_ps(total);
    const float* const of_row = finish.group_scales;
    const __m256 scale_r =
        of_row ? _mm256_mul_ps(scale, _mm256_set1_ps(of_row[(row + r) * finish.group_scales_stride])) : scale;
    totals[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale_r, before);
    if (!finish.is_last_group) _mm256_storeu_ps(total, totals[r]);
  }
  if (finish.is_last_group) write_rows<kRows>(totals, row, half, finish);
}

void finish_panel(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish) {
  for (int half = 0; half < kHalves; ++half) {
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) finish_rows<4>(acc, acc_stride, row, half, finish);
    for (; row < num_rows; ++row) finish_rows<1>(acc, acc_stride, row, half, finish);
  }
}

// Returns the weights' scales of a group times the row's.
inline __m256 scale_of_row(const Int8GemvRows& rows, int64_t row, int64_t num_groups, int64_t group, __m256 scale) {
  if (rows.group_scales == nullptr) return scale;
  return _mm256_mul_ps(scale, _mm256_set1_ps(rows.group_scales[row * num_groups + group]));
}

// Moves the finish to a gemv's next panel.
inline void advance(PanelFinish& finish) {
  if (finish.bias) finish.bias += kPanel;
  if (finish.num_outliers > 0) finish.outlier_weights += finish.num_outliers * line_bytes(finish.outlier_format);
  finish.y += kPanel;
}

template <int kRows>
void gemv_int8(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const int32_t* sums = weights.sums;
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 totals[kHalves][kRows];
    for (int r = 0; r < kRows; ++r) totals[0][r] = totals[1][r] = _mm256_setzero_ps();
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256i sum[kHalves][kRows];
      for (int r = 0; r < kRows; ++r) sum[0][r] = sum[1][r] = _mm256_setzero_si256();
      for (int64_t k = 0; k < run.group_len; k += 4, bytes += 64, x += 8) {
        _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          const __m256i line = load_ints(bytes + 32 * half);
          const __m256i even = even_bytes(line);
          const __m256i odd = odd_bytes(line);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) sum[half][r] = add_products(sum[half][r], even, odd, x + r * rows.stride);
        }
      }
      for (int half = 0; half < kHalves; ++half) {
        const __m256 scale = load_values(run.scale_format, scales, half);
        for (int r = 0; r < kRows; ++r) {
          __m256i group_sum = sum[half][r];
          if (rows.offsets) {
            group_sum = _mm256_sub_epi32(
                group_sum, _mm256_mullo_epi32(_mm256_set1_epi32(rows.offsets[r]), load_ints(sums + kHalf * half)));
          }
          const __m256 scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
          totals[half][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(group_sum), scale_r, totals[half][r]);
        }
      }
      scales += line_bytes(run.scale_format);
      sums += kPanel;
    }
    finish.num_outs = run.num_outs - out;
    for (int half = 0; half < kHalves; ++half) write_rows<kRows>(totals[half], 0, half, finish);
    advance(finish);
  }
}

// kHasOffsets: the rows have zeros, so the weights of a group are summed on the way.
template <int kRows, bool kHasOffsets>
void gemv_int4_run(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  const __m256i center = _mm256_set1_epi8(static_cast<char>(0x88));
  const __m256i low_nibbles = _mm256_set1_epi8(0x0F);
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i byte_ones = _mm256_set1_epi8(1);
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 totals[kHalves][kRows];
    for (int r = 0; r < kRows; ++r) totals[0][r] = totals[1][r] = _mm256_setzero_ps();
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256i sum[kHalves][kRows], code_sums[kHalves];
      for (int half = 0; half < kHalves; ++half) {
        code_sums[half] = _mm256_setzero_si256();
        for (int r = 0; r < kRows; ++r) sum[half][r] = _mm256_setzero_si256();
      }
      for (int64_t k = 0; k < run.group_len; k += 8, bytes += 64, x += 8) {
        _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          const __m256i word = _mm256_xor_si256(load_ints(bytes + 32 * half), center);
          const __m256i even = _mm256_and_si256(word, low_nibbles);
          const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(word, 4), low_nibbles);
          if constexpr (kHasOffsets) {
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_add_epi8(even, odd), byte_ones);
            code_sums[half] = _mm256_add_epi32(code_sums[half], _mm256_madd_epi16(pairs, ones));
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const uint8_t* const x_r = x + r * rows.stride;
            const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, broadcast_word(x_r)),
                                                   _mm256_maddubs_epi16(odd, broadcast_word(x_r + 4)));
            sum[half][r] = _mm256_add_epi32(sum[half][r], _mm256_madd_epi16(pairs, ones));
          }
        }
      }
      for (int half = 0; half < kHalves; ++half) {
        const __m256 scale = load_values(run.scale_format, scales, half);
        __m256i zero = _mm256_set1_epi32(kCenter);
        if (zeros) zero = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + kHalf * half)));
        for (int r = 0; r < kRows; ++r) {
          const __m256i row_sum = _mm256_set1_epi32(rows.group_sums[r * run.num_groups + group]);
          __m256i group_sum = _mm256_sub_epi32(sum[half][r], _mm256_mullo_epi32(zero, row_sum));
          if constexpr (kHasOffsets) {
            const __m256i length = _mm256_set1_epi32(static_cast<int>(run.group_len));
            const __m256i weight_sums = _mm256_sub_epi32(code_sums[half], _mm256_mullo_epi32(zero, length));
            group_sum =
                _mm256_sub_epi32(group_sum, _mm256_mullo_epi32(_mm256_set1_epi32(rows.offsets[r]), weight_sums));
          }
          const __m256 scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
          totals[half][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(group_sum), scale_r, totals[half][r]);
        }
      }
      scales += line_bytes(run.scale_format);
      if (zeros) zeros += kPanel;
    }
    finish.num_outs = run.num_outs - out;
    for (int half = 0; half < kHalves; ++half) write_rows<kRows>(totals[half], 0, half, finish);
    advance(finish);
  }
}

template <int kRows>
void gemv_int4(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  (rows.offsets ? gemv_int4_run<kRows, true> : gemv_int4_run<kRows, false>)(weights, rows, first);
}

void prepare_int8(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t*) {
  for (int64_t k = 0; k < num_groups * group_len; k += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + 2 * k), widen(codes + k));
  }
}

void prepare_int4(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t* group_sums) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (int64_t k = 0; k < num_groups * group_len; k += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(x + k), _mm_shuffle_epi8(part, order));
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    int32_t sum = 0;
    for (int64_t k = 0; k < group_len; ++k) sum += codes[group * group_len + k];
    group_sums[group] = sum;
  }
}

// Spreads the four nibbles of the low 16 bits to the lane's four bytes.
inline __m256i spread_nibbles(__m256i words) {
  const __m256i bytes =
      _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi32(words, 8)), _mm256_set1_epi32(0x00FF00FF));
  return _mm256_and_si256(_mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 4)), _mm256_set1_epi32(0x0F0F0F0F));
}

void expand_int4(const PanelRun& run, int64_t begin_group, int64_t end_group, int64_t padded_len, uint8_t* lines,
                 int32_t* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i byte_ones = _mm256_set1_epi8(1);
  const uint8_t* bytes = run.lines + begin_group * run.group_len / 8 * 64;
  for (int64_t group = begin_group; group < end_group; ++group, sums += kPanel) {
    for (int half = 0; half < kHalves; ++half) {
      __m256i zero = _mm256_set1_epi32(kCenter);
      if (run.zeros) {
        zero = _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(run.zeros + group * kPanel + kHalf * half)));
      }
      const __m256i zero_bytes = _mm256_mullo_epi32(zero, _mm256_set1_epi32(0x01010101));
      __m256i sum = _mm256_setzero_si256();
      __m256i* out = reinterpret_cast<__m256i*>(lines + 32 * half);
      for (int64_t k = 0; k < run.group_len; k += 8, out += 4) {
        const __m256i word =
            _mm256_xor_si256(load_ints(bytes + k * 8 + 32 * half), _mm256_set1_epi8(static_cast<char>(0x88)));
        const __m256i low = _mm256_and_si256(word, _mm256_set1_epi32(0xFFFF));
        const __m256i first = _mm256_sub_epi8(spread_nibbles(low), zero_bytes);
        const __m256i second = _mm256_sub_epi8(spread_nibbles(_mm256_srli_epi32(word, 16)), zero_bytes);
        const __m256i pairs =
            _mm256_add_epi16(_mm256_maddubs_epi16(byte_ones, first), _mm256_maddubs_epi16(byte_ones, second));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        _mm256_store_si256(out, first);
        _mm256_store_si256(out + 2, second);
      }
      for (int64_t k = run.group_len; k < padded_len; k += 4, out += 2) {
        _mm256_store_si256(out, _mm256_setzero_si256());
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + kHalf * half), sum);
    }
    bytes += run.group_len * 8;
    lines += padded_len * 16;
  }
}

Int8Kernels make_kernels() {
  Int8Kernels kernels{};
  kernels.name = "avx2";
  kernels.max_gemv_rows = 2;
  kernels.gemv_k_bytes = 2;
  const Int8GemvKernel gemvs_int8[] = {gemv_int8<1>, gemv_int8<2>};
  const Int8GemvKernel gemvs_int4[] = {gemv_int4<1>, gemv_int4<2>};
  for (int rows = 0; rows < 2; ++rows) {
    kernels.gemv_int8[rows] = gemvs_int8[rows];
    kernels.gemv_int4[rows] = gemvs_int4[rows];
  }
  kernels.prepare_int8 = prepare_int8;
  kernels.prepare_int4 = prepare_int4;
  kernels.expand_int4 = expand_int4;
  kernels.tiles_int8 = int8_tiles_avx2();
  kernels.tiles_int4 = int4_tiles_avx2();
  kernels.finish = finish_panel;
  return kernels;
}

}  // namespace

const Int8Kernels& int8_kernels_avx2() {
  static const Int8Kernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
