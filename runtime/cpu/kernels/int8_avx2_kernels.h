// The int8 kernels of 256-bit registers, for the avx2 and avxvnni paths of int8_kernels.h. They differ in the Dot that
// the including file gives: how products of bytes join lanes of 32 bits.
//
//   Dot::kMaxFewRows, kRowOffset, kRowBytes   max_gemv_rows, gemv_offset and gemv_k_bytes of Int8Kernels
//   Dot::kChains<kRows>                       sums side by side of an output, where one would wait for its last product
//   Dot::load(bytes)                          signed weights of 8 outputs x 4 positions
//   Dot::add(sum, weights, x)                 adds their products with 4 positions of a prepared row
//   Dot::add_nibbles(sum, even, odd, x)       the same of 8 positions: weights 0..15 of positions 0, 2, 4, 6 and of 1,
//                                             3, 5, 7, and a row's signed codes in the same order
//   Dot::prepare(...)                         the Int8PrepareKernel of int8
//   Dot::Int8Products, Dot::Int4Products      the products of many rows, whose weights are signed bytes:
//     kRows, kOffset, kUnit, kStripBytes      rows, strip_offset, k_unit and strip_k_bytes of Int8Tiles
//     kHalvesAtOnce                           halves of a panel whose sums are in registers together
//     pack                                    the Int8StripKernel
//     add<kNumRows>(x, bytes, num_k, sum)     adds the products of num_k positions to sum[half][row]. `bytes` are those
//                                             halves of lines of 64 bytes
//
// Oracle: plain loops, bit for bit (tests/runtime/cpu/int8_kernels_test.cpp).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kHalf = 8;    // outputs in a register
constexpr int kHalves = 2;  // per panel
constexpr int64_t kPrefetchBytes = 4096;
constexpr int kCenter = 8;  // for int4: stored nibbles are codes minus 8

// Loads the scales, or other stored floats, of a half of a panel. `values` is the panel's line.
inline __m256 load_values(ScaleFormat format, const uint8_t* values, int half) {
  if (format == ScaleFormat::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(values) + kHalf * half);
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values) + half);
  if (format == ScaleFormat::f16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

constexpr int64_t line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

inline __m256i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

inline __m256i load_ints(const void* ints) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(ints));
}

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

inline void finish_panel(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish) {
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

// Adds the products of a line of int8 weights with all rows.
template <class Dot, int kRows>
[[gnu::always_inline]] inline void add_line(const uint8_t* bytes, const uint8_t* x, int64_t stride,
                                            __m256i (&sum)[kHalves][kRows]) {
  _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
    const auto weights = Dot::load(bytes + 32 * half);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[half][r] = Dot::add(sum[half][r], weights, x + r * stride);
  }
}

// Keeps the sums of a loop in place: without this, GCC 12 copies them from register to register in each of its steps.
[[gnu::always_inline]] inline void keep(__m256i& sum) {
  asm("" : "+x"(sum));
}

// Sets all sums to 0, or adds them up in the first chain.
template <int kRows, int kChains>
[[gnu::always_inline]] inline void clear(__m256i (&sums)[kChains][kHalves][kRows]) {
  for (auto& chain : sums) {
    for (int r = 0; r < kRows; ++r) chain[0][r] = chain[1][r] = _mm256_setzero_si256();
  }
}
template <int kRows, int kChains>
[[gnu::always_inline]] inline void join(__m256i (&sums)[kChains][kHalves][kRows]) {
  for (int c = 0; c < kChains; ++c) {
    for (int half = 0; half < kHalves; ++half) {
      for (int r = 0; r < kRows; ++r) keep(sums[c][half][r]);
    }
  }
  for (int c = 1; c < kChains; ++c) {
    for (int half = 0; half < kHalves; ++half) {
      for (int r = 0; r < kRows; ++r) sums[0][half][r] = _mm256_add_epi32(sums[0][half][r], sums[c][half][r]);
    }
  }
}

template <class Dot, int kRows>
void gemv_int8(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  constexpr int kChains = Dot::template kChains<kRows>;
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
      __m256i sums_of_chains[kChains][kHalves][kRows];
      clear(sums_of_chains);
      int64_t k = 0;
      for (; k + 4 * kChains <= run.group_len; k += 4 * kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c, bytes += 64, x += 4 * Dot::kRowBytes) {
          add_line<Dot>(bytes, x, rows.stride, sums_of_chains[c]);
        }
      }
      if constexpr (kChains > 1) {
        for (; k < run.group_len; k += 4, bytes += 64, x += 4 * Dot::kRowBytes) {
          add_line<Dot>(bytes, x, rows.stride, sums_of_chains[0]);
        }
      }
      join(sums_of_chains);
      const auto& sum = sums_of_chains[0];
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

// Adds the products of a line of int4 weights with all rows, and with kSumsCodes the codes to code_sums.
template <class Dot, bool kSumsCodes, int kRows>
[[gnu::always_inline]] inline void add_nibble_line(const uint8_t* bytes, const uint8_t* x, int64_t stride,
                                                   __m256i (&sum)[kHalves][kRows], __m256i (&code_sums)[kHalves]) {
  const __m256i center = _mm256_set1_epi8(static_cast<char>(0x88));
  const __m256i low_nibbles = _mm256_set1_epi8(0x0F);
  _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
    const __m256i word = _mm256_xor_si256(load_ints(bytes + 32 * half), center);
    const __m256i even = _mm256_and_si256(word, low_nibbles);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(word, 4), low_nibbles);
    if constexpr (kSumsCodes) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_add_epi8(even, odd), _mm256_set1_epi8(1));
      code_sums[half] = _mm256_add_epi32(code_sums[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[half][r] = Dot::add_nibbles(sum[half][r], even, odd, x + r * stride);
  }
}

// kHasOffsets: the rows have zeros, so the weights of a group are summed on the way.
template <class Dot, int kRows, bool kHasOffsets>
void gemv_int4_run(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  constexpr int kChains = Dot::template kChains<kRows>;
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 totals[kHalves][kRows];
    for (int r = 0; r < kRows; ++r) totals[0][r] = totals[1][r] = _mm256_setzero_ps();
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256i sums_of_chains[kChains][kHalves][kRows], code_sums[kHalves] = {};
      clear(sums_of_chains);
      int64_t k = 0;
      for (; k + 8 * kChains <= run.group_len; k += 8 * kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c, bytes += 64, x += 8) {
          add_nibble_line<Dot, kHasOffsets>(bytes, x, rows.stride, sums_of_chains[c], code_sums);
        }
      }
      if constexpr (kChains > 1) {
        for (; k < run.group_len; k += 8, bytes += 64, x += 8) {
          add_nibble_line<Dot, kHasOffsets>(bytes, x, rows.stride, sums_of_chains[0], code_sums);
        }
      }
      join(sums_of_chains);
      const auto& sum = sums_of_chains[0];
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

template <class Dot, int kRows>
void gemv_int4(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  (rows.offsets ? gemv_int4_run<Dot, kRows, true> : gemv_int4_run<Dot, kRows, false>)(weights, rows, first);
}

inline void prepare_int4(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t* group_sums) {
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

inline void expand_int4(const PanelRun& run, int64_t begin_group, int64_t end_group, int64_t padded_len, uint8_t* lines,
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

// --- many rows ---

// Writes strip[k / 4][row]: four codes of a row as unsigned bytes, offset by 128. Codes from num_k on are zeros.
inline void pack_offset(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t padded_k,
                        uint8_t* strip) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int8_t* const x = codes + r * stride;
    uint8_t* out = strip + 4 * r;
    for (int64_t k = 0; k < padded_k; k += 4, out += 4 * num_rows) {
      uint32_t word = 0;
      if (k < num_k) std::memcpy(&word, x + k, 4);
      word ^= 0x80808080u;
      std::memcpy(out, &word, 4);
    }
  }
}

template <class Products, int kNumRows>
void tile(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate, const int32_t* starts,
          int32_t* acc, int64_t acc_stride) {
  constexpr int kAtOnce = Products::kHalvesAtOnce;
  for (int first = 0; first < kHalves; first += kAtOnce, acc += kAtOnce * kHalf, starts += kAtOnce * kHalf) {
    __m256i sum[kAtOnce][kNumRows];
#pragma GCC unroll 2
    for (int half = 0; half < kAtOnce; ++half) {
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        sum[half][r] = load_ints((accumulate ? acc + r * acc_stride : starts) + half * kHalf);
      }
    }
    Products::template add<kNumRows>(strip, panels[0] + 32 * first, num_k, sum);
#pragma GCC unroll 2
    for (int half = 0; half < kAtOnce; ++half) {
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + r * acc_stride + half * kHalf), sum[half][r]);
      }
    }
  }
}

// Adds the sums of a group's half to the rows' totals.
template <int kNumRows>
[[gnu::always_inline]] inline void add_to_totals(const Int8Groups& run, int64_t group, const uint8_t* scales, int half,
                                                 const __m256i (&sum)[kNumRows]) {
  const bool is_first = run.is_first_group && group == 0;
  const __m256 scale = load_values(run.scale_format, scales, half);
  const float* of_row = run.group_scales ? run.group_scales + group : nullptr;
  float* total = run.totals + half * kHalf;
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r, total += run.totals_stride) {
    const __m256 before = is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(total);
    const __m256 scale_r = of_row ? _mm256_mul_ps(scale, _mm256_set1_ps(of_row[r * run.group_scales_stride])) : scale;
    _mm256_storeu_ps(total, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), scale_r, before));
  }
}

template <class Products, int kNumRows>
void groups(const Int8Groups& run) {
  constexpr int kAtOnce = Products::kHalvesAtOnce;
  const uint8_t* strip = run.strip;
  const uint8_t* bytes = run.panels[0];
  const uint8_t* scales = run.scales[0];
  for (int64_t group = 0; group < run.num_groups; ++group) {
    for (int first = 0; first < kHalves; first += kAtOnce) {
      __m256i sum[kAtOnce][kNumRows];
#pragma GCC unroll 2
      for (int half = 0; half < kAtOnce; ++half) {
        const __m256i start = load_ints(run.starts + group * kPanel + (first + half) * kHalf);
#pragma GCC unroll 8
        for (int r = 0; r < kNumRows; ++r) sum[half][r] = start;
      }
      Products::template add<kNumRows>(strip, bytes + 32 * first, run.num_k, sum);
#pragma GCC unroll 2
      for (int half = 0; half < kAtOnce; ++half) add_to_totals(run, group, scales, first + half, sum[half]);
    }
    strip += run.num_k * kNumRows * Products::kStripBytes;
    bytes += run.num_k * kPanel;
    scales += line_bytes(run.scale_format);
  }
}

template <class Products, int... kIndex>
void set_tile_kernels(Int8Tiles& tiles, std::integer_sequence<int, kIndex...>) {
  ((tiles.tile[kIndex] = tile<Products, kIndex + 1>, tiles.groups[kIndex] = groups<Products, kIndex + 1>), ...);
}

template <class Products>
Int8Tiles make_tiles() {
  Int8Tiles tiles{};
  tiles.strip_offset = Products::kOffset;
  tiles.rows = Products::kRows;
  tiles.panels = 1;
  tiles.strip_unit_rows = 1;
  tiles.k_unit = Products::kUnit;
  tiles.strip_k_bytes = Products::kStripBytes;
  tiles.block_k = 1024;
  tiles.strip = Products::pack;
  set_tile_kernels<Products>(tiles, std::make_integer_sequence<int, Products::kRows>());
  return tiles;
}

template <class Dot, int... kIndex>
void set_gemv_kernels(Int8Kernels& kernels, std::integer_sequence<int, kIndex...>) {
  ((kernels.gemv_int8[kIndex] = gemv_int8<Dot, kIndex + 1>, kernels.gemv_int4[kIndex] = gemv_int4<Dot, kIndex + 1>),
   ...);
}

template <class Dot>
Int8Kernels make_kernels(std::string_view name) {
  Int8Kernels kernels{};
  kernels.name = name;
  kernels.gemv_offset = Dot::kRowOffset;
  kernels.max_gemv_rows = Dot::kMaxFewRows;
  kernels.gemv_k_bytes = Dot::kRowBytes;
  set_gemv_kernels<Dot>(kernels, std::make_integer_sequence<int, Dot::kMaxFewRows>());
  kernels.prepare_int8 = Dot::prepare;
  kernels.prepare_int4 = prepare_int4;
  kernels.expand_int4 = expand_int4;
  kernels.tiles_int8 = make_tiles<typename Dot::Int8Products>();
  kernels.tiles_int4 = make_tiles<typename Dot::Int4Products>();
  kernels.finish = finish_panel;
  return kernels;
}

}  // namespace
}  // namespace pare::runtime
