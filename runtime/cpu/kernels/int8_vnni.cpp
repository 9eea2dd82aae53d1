// The vnni path of int8_kernels.h: AVX-512 with VNNI.
//
// FEW ROWS. int8: a line of 16 outputs x 4 positions, the row's 4 codes broadcast as unsigned bytes (code + 128), one
// vpdpbusd. int4: a line of 16 x 8, split by two masks and a shift into the nibbles of positions 0, 2, 4, 6 and 1, 3,
// 5, 7. They are the unsigned operand (0..15); the row's codes, in the same order, are the signed one. The grid's zero
// and the 8 are subtracted as zero * (sum of the row's codes over the group).
//
// MANY ROWS. 8 rows x 48 outputs: 24 accumulators, 3 registers of weights, and broadcasts from a strip of x. That makes
// 11 loads for 24 vpdpbusd.
//
// Oracle: plain loops, bit for bit (tests/runtime/cpu/int8_kernels_test.cpp).
// Speed: tests/bench/int8_bench.cpp.

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kRowOffset = 128;
constexpr int kTilePanels = 3;
constexpr int kTileRows = 8;
constexpr int kRowsOfGroups = 4;
constexpr int64_t kPrefetchBytes = 8192;
constexpr int kCenter = 8;  // for int4: stored nibbles are codes minus 8

inline __m512 load_values(ScaleFormat format, const uint8_t* values) {
  if (format == ScaleFormat::f32) return _mm512_loadu_ps(values);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  if (format == ScaleFormat::f16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

constexpr int64_t line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

inline __mmask16 lane_mask(int64_t num_lanes) {
  return num_lanes >= kPanel ? 0xFFFF : static_cast<__mmask16>((1u << num_lanes) - 1);
}

inline __m512i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm512_set1_epi32(word);
}

// Adds the outliers' products of kRows rows to the bias. Always inlined: the sums must stay in registers.
template <int kRows>
[[gnu::always_inline]] inline void start_rows(int64_t row, const PanelFinish& finish, __m512* start) {
  const __m512 bias = finish.bias ? _mm512_loadu_ps(finish.bias) : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) start[r] = bias;
  const float* x = finish.outliers + row;
  const uint8_t* weights = finish.outlier_weights;
  for (int64_t j = 0; j < finish.num_outliers;
       ++j, weights += line_bytes(finish.outlier_format), x += finish.outliers_stride) {
    const __m512 weight = load_values(finish.outlier_format, weights);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      start[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r]), weight, start[r]);
    }
  }
}

inline void write_row(__m512 total, __m512 start, int64_t row, const PanelFinish& finish) {
  const __m512 y = _mm512_fmadd_ps(total, _mm512_set1_ps(finish.row_scales[row]), start);
  float* const out = finish.y + row * finish.y_stride;
  if (finish.streams && finish.num_outs >= kPanel) {
    _mm512_stream_ps(out, y);
  } else {
    _mm512_mask_storeu_ps(out, lane_mask(finish.num_outs), y);
  }
}

// Writes y of a gemv's rows from their totals.
template <int kRows>
inline void write_rows(const __m512* totals, const PanelFinish& finish) {
  __m512 start[kRows];
  start_rows<kRows>(0, finish, start);
  for (int r = 0; r < kRows; ++r) write_row(totals[r], start[r], r, finish);
}

template <int kRows, bool kIsLast>
void finish_rows(const int32_t* acc, int64_t acc_stride, int64_t row, const PanelFinish& finish) {
  const __m512 scale = load_values(finish.scale_format, finish.scales);
  const int32_t* const offsets = finish.offsets;
  const __m512i sums = offsets ? _mm512_loadu_si512(finish.sums) : _mm512_setzero_si512();
  const int64_t totals_stride = finish.totals_stride;
  const bool is_first = finish.is_first_group;
  float* const totals = finish.totals + row * totals_stride;
  acc += row * acc_stride;
  __m512 start[kRows];
  if constexpr (kIsLast) start_rows<kRows>(row, finish, start);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    __m512i sum = _mm512_loadu_si512(acc + r * acc_stride);
    if (offsets) sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(offsets[row + r]), sums));
    const __m512 before = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(totals + r * totals_stride);
    const float* const of_row = finish.group_scales;
    const __m512 scale_r =
        of_row ? _mm512_mul_ps(scale, _mm512_set1_ps(of_row[(row + r) * finish.group_scales_stride])) : scale;
    const __m512 after = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale_r, before);
    if constexpr (kIsLast) {
      write_row(after, start[r], row + r, finish);
    } else {
      _mm512_storeu_ps(totals + r * totals_stride, after);
    }
  }
}

template <bool kIsLast>
void finish_all_rows(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish) {
  int64_t row = 0;
  for (; row + 16 <= num_rows; row += 16) finish_rows<16, kIsLast>(acc, acc_stride, row, finish);
  for (; row + 8 <= num_rows; row += 8) finish_rows<8, kIsLast>(acc, acc_stride, row, finish);
  for (; row < num_rows; ++row) finish_rows<1, kIsLast>(acc, acc_stride, row, finish);
}

// Works on 16 rows at a time. So many chains of outliers' products hide their loads and the widening of the weights.
void finish_panel(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish) {
  (finish.is_last_group ? finish_all_rows<true> : finish_all_rows<false>)(acc, acc_stride, num_rows, finish);
}

// Returns the weights' scales of a group times the row's.
inline __m512 scale_of_row(const Int8GemvRows& rows, int64_t row, int64_t num_groups, int64_t group, __m512 scale) {
  if (rows.group_scales == nullptr) return scale;
  return _mm512_mul_ps(scale, _mm512_set1_ps(rows.group_scales[row * num_groups + group]));
}

// Moves the finish to a gemv's next panel.
inline void advance(PanelFinish& finish) {
  if (finish.bias) finish.bias += kPanel;
  if (finish.num_outliers > 0) finish.outlier_weights += finish.num_outliers * line_bytes(finish.outlier_format);
  finish.y += kPanel;
}

template <int kRows>
void gemv_int8(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  constexpr int kChains = kRows == 1 ? 4 : 2;
  const PanelRun& run = weights.run;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const int32_t* sums = weights.sums;
  const int64_t lines_per_group = run.group_len / 4;
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m512 totals[kRows];
    for (int r = 0; r < kRows; ++r) totals[r] = _mm512_setzero_ps();
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m512i chain[kRows][kChains];
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kChains; ++c) chain[r][c] = _mm512_setzero_si512();
      }
      int64_t line = 0;
      for (; line + kChains <= lines_per_group; line += kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
          const __m512i weight = _mm512_load_si512(bytes);
          _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            chain[r][c] = _mm512_dpbusd_epi32(chain[r][c], broadcast_word(x + r * rows.stride), weight);
          }
          bytes += 64;
          x += 4;
        }
      }
      for (; line < lines_per_group; ++line, bytes += 64, x += 4) {
        const __m512i weight = _mm512_load_si512(bytes);
        for (int r = 0; r < kRows; ++r) {
          chain[r][0] = _mm512_dpbusd_epi32(chain[r][0], broadcast_word(x + r * rows.stride), weight);
        }
      }
      const __m512 scale = load_values(run.scale_format, scales);
      const __m512i weight_sums = _mm512_loadu_si512(sums);
      scales += line_bytes(run.scale_format);
      sums += kPanel;
      for (int r = 0; r < kRows; ++r) {
        __m512i sum = chain[r][0];
        for (int c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, chain[r][c]);
        sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(rows.offsets[r]), weight_sums));
        const __m512 scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
        totals[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale_r, totals[r]);
      }
    }
    finish.num_outs = run.num_outs - out;
    write_rows<kRows>(totals, finish);
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
  const __m512i center = _mm512_set1_epi8(static_cast<char>(0x88));
  const __m512i low_nibbles = _mm512_set1_epi8(0x0F);
  const __m512i ones = _mm512_set1_epi8(1);
  PanelFinish finish = first;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m512 totals[kRows];
    for (int r = 0; r < kRows; ++r) totals[r] = _mm512_setzero_ps();
    const uint8_t* x = rows.x;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m512i even[kRows], odd[kRows];
      for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_si512();
      __m512i code_sums = _mm512_setzero_si512();
      for (int64_t k = 0; k < run.group_len; k += 8) {
        const __m512i word = _mm512_xor_si512(_mm512_load_si512(bytes), center);
        _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes), _MM_HINT_T0);
        const __m512i codes_even = _mm512_and_si512(word, low_nibbles);
        const __m512i codes_odd = _mm512_and_si512(_mm512_srli_epi16(word, 4), low_nibbles);
        if constexpr (kHasOffsets) {
          code_sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(code_sums, codes_even, ones), codes_odd, ones);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          even[r] = _mm512_dpbusd_epi32(even[r], codes_even, broadcast_word(x + r * rows.stride));
          odd[r] = _mm512_dpbusd_epi32(odd[r], codes_odd, broadcast_word(x + r * rows.stride + 4));
        }
        bytes += 64;
        x += 8;
      }
      const __m512 scale = load_values(run.scale_format, scales);
      scales += line_bytes(run.scale_format);
      __m512i zero = _mm512_set1_epi32(kCenter);
      if (zeros) {
        zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
        zeros += kPanel;
      }
      for (int r = 0; r < kRows; ++r) {
        __m512i sum = _mm512_add_epi32(even[r], odd[r]);
        const __m512i row_sum = _mm512_set1_epi32(rows.group_sums[r * run.num_groups + group]);
        sum = _mm512_sub_epi32(
            sum, zeros ? _mm512_mullo_epi32(zero, row_sum) : _mm512_slli_epi32(row_sum, 3));  // kCenter = 2^3
        if constexpr (kHasOffsets) {
          const __m512i length = _mm512_set1_epi32(static_cast<int>(run.group_len));
          const __m512i weight_sums = _mm512_sub_epi32(code_sums, _mm512_mullo_epi32(zero, length));
          sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(rows.offsets[r]), weight_sums));
        }
        const __m512 scale_r = scale_of_row(rows, r, run.num_groups, group, scale);
        totals[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale_r, totals[r]);
      }
    }
    finish.num_outs = run.num_outs - out;
    write_rows<kRows>(totals, finish);
    advance(finish);
  }
}

template <int kRows>
void gemv_int4(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& first) {
  (rows.offsets ? gemv_int4_run<kRows, true> : gemv_int4_run<kRows, false>)(weights, rows, first);
}

// Writes codes + 128 as unsigned bytes by flipping the sign bit.
void prepare_int8(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t*) {
  for (int64_t k = 0; k < num_groups * group_len; k += 64) {
    const __m512i flipped = _mm512_xor_si512(_mm512_load_si512(codes + k), _mm512_set1_epi8(static_cast<char>(0x80)));
    _mm512_store_si512(x + k, flipped);
  }
}

void prepare_int4(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t* group_sums) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (int64_t k = 0; k < num_groups * group_len; k += 64) {
    _mm512_store_si512(x + k, _mm512_shuffle_epi8(_mm512_load_si512(codes + k), order));
  }
  const __m512i ones = _mm512_set1_epi8(1);
  for (int64_t group = 0; group < num_groups; ++group) {
    __m512i sum = _mm512_setzero_si512();
    for (int64_t k = 0; k < group_len; k += 64) {
      const int64_t left = group_len - k;
      const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      sum = _mm512_dpbusd_epi32(sum, ones, _mm512_maskz_loadu_epi8(mask, codes + group * group_len + k));
    }
    alignas(64) int32_t lanes[16];
    _mm512_store_si512(lanes, sum);
    group_sums[group] = 0;
    for (int32_t lane : lanes) group_sums[group] += lane;
  }
}

// Spreads the four nibbles of the low 16 bits to the lane's four bytes.
inline __m512i spread_nibbles(__m512i words) {
  const __m512i bytes =
      _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi32(words, 8)), _mm512_set1_epi32(0x00FF00FF));
  return _mm512_and_si512(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 4)), _mm512_set1_epi32(0x0F0F0F0F));
}

void expand_int4(const PanelRun& run, int64_t begin_group, int64_t end_group, int64_t padded_len, uint8_t* lines,
                 int32_t* sums) {
  const __m512i ones = _mm512_set1_epi8(1);
  const uint8_t* bytes = run.lines + begin_group * run.group_len / 8 * 64;
  for (int64_t group = begin_group; group < end_group; ++group) {
    __m512i zero = _mm512_set1_epi32(kCenter);
    if (run.zeros) {
      zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(run.zeros + group * kPanel)));
    }
    const __m512i zero_bytes = _mm512_mullo_epi32(zero, _mm512_set1_epi32(0x01010101));
    __m512i sum = _mm512_setzero_si512();
    for (int64_t k = 0; k < run.group_len; k += 8, bytes += 64, lines += 128) {
      const __m512i word = _mm512_xor_si512(_mm512_load_si512(bytes), _mm512_set1_epi8(static_cast<char>(0x88)));
      const __m512i low = _mm512_and_si512(word, _mm512_set1_epi32(0xFFFF));
      const __m512i first = _mm512_sub_epi8(spread_nibbles(low), zero_bytes);
      const __m512i second = _mm512_sub_epi8(spread_nibbles(_mm512_srli_epi32(word, 16)), zero_bytes);
      sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, ones, first), ones, second);
      _mm512_store_si512(lines, first);
      _mm512_store_si512(lines + 64, second);
    }
    for (int64_t k = run.group_len; k < padded_len; k += 4, lines += 64) {
      _mm512_store_si512(lines, _mm512_setzero_si512());
    }
    _mm512_storeu_si512(sums, sum);
    sums += kPanel;
  }
}

// Writes strip[k / 4][row]: four unsigned codes of a row. Groups are whole units of 4, so nothing is padded.
void pack_strip(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t, uint8_t* strip) {
  if (num_rows == kTileRows) {
    int64_t k = 0;
    for (; k + 32 <= num_k; k += 32, strip += 32 * kTileRows) {
      // 8 rows of 8 words are transposed in three steps.
      __m256i in[8], pairs[8], quads[8];
      for (int r = 0; r < 8; ++r) {
        in[r] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + r * stride + k)),
                                 _mm256_set1_epi8(static_cast<char>(0x80)));
      }
      for (int r = 0; r < 8; r += 2) {
        pairs[r] = _mm256_unpacklo_epi32(in[r], in[r + 1]);
        pairs[r + 1] = _mm256_unpackhi_epi32(in[r], in[r + 1]);
      }
      for (int r = 0; r < 8; r += 4) {
        quads[r] = _mm256_unpacklo_epi64(pairs[r], pairs[r + 2]);
        quads[r + 1] = _mm256_unpackhi_epi64(pairs[r], pairs[r + 2]);
        quads[r + 2] = _mm256_unpacklo_epi64(pairs[r + 1], pairs[r + 3]);
        quads[r + 3] = _mm256_unpackhi_epi64(pairs[r + 1], pairs[r + 3]);
      }
      __m256i* const out = reinterpret_cast<__m256i*>(strip);
      for (int r = 0; r < 4; ++r) {
        _mm256_storeu_si256(out + r, _mm256_permute2x128_si256(quads[r], quads[r + 4], 0x20));
        _mm256_storeu_si256(out + r + 4, _mm256_permute2x128_si256(quads[r], quads[r + 4], 0x31));
      }
    }
    codes += k;
    num_k -= k;
  }
  for (int64_t k = 0; k < num_k; k += 4) {
    for (int64_t r = 0; r < num_rows; ++r, strip += 4) {
      uint32_t word;
      std::memcpy(&word, codes + r * stride + k, 4);
      word ^= 0x80808080u;
      std::memcpy(strip, &word, 4);
    }
  }
}

struct PanelLines {
  const uint8_t *panel_0, *panel_1, *panel_2;
};

// Adds the products of num_bytes of each panel to the sums of some rows of a strip.
template <int kRows, int kStripRows>
[[gnu::always_inline]] inline void add_products(const uint8_t* strip, const PanelLines& lines, int64_t num_bytes,
                                                __m512i (&sum)[kRows][kTilePanels]) {
  for (int64_t byte = 0; byte < num_bytes; byte += 64) {
    const __m512i weights[kTilePanels] = {_mm512_load_si512(lines.panel_0 + byte),
                                          _mm512_load_si512(lines.panel_1 + byte),
                                          _mm512_load_si512(lines.panel_2 + byte)};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = broadcast_word(strip + 4 * r);
#pragma GCC unroll 3
      for (int p = 0; p < kTilePanels; ++p) sum[r][p] = _mm512_dpbusd_epi32(sum[r][p], x, weights[p]);
    }
    strip += 4 * kStripRows;
  }
}

template <int kRows>
void tile(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate, const int32_t* starts,
          int32_t* acc, int64_t acc_stride) {
  __m512i sum[kRows][kTilePanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) {
      sum[r][p] = _mm512_load_si512(accumulate ? acc + r * acc_stride + p * kPanel : starts + p * kPanel);
    }
  }
  add_products<kRows, kRows>(strip, {panels[0], panels[1], panels[2]}, num_k * kPanel, sum);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) _mm512_storeu_si512(acc + r * acc_stride + p * kPanel, sum[r][p]);
  }
}

// Adds groups to the totals of rows [first_row, first_row + kRows) of a strip of kStripRows. Sums and totals of so few
// rows both stay in registers. Those of a whole tile do not, and took a tenth longer at groups of 32 (Zen 4).
template <int kRows, int kStripRows, bool kHasRowScales>
void groups_of_rows(const Int8Groups& run, int first_row) {
  const int64_t scale_line = line_bytes(run.scale_format), panel_bytes = run.num_k * kPanel;
  const int64_t row_stride = run.group_scales_stride, num_groups = run.num_groups;
  const uint8_t* strip = run.strip + 4 * first_row;
  const int32_t* starts = run.starts;
  const float* row_scales = kHasRowScales ? run.group_scales + first_row * row_stride : nullptr;
  float* const totals = run.totals + first_row * run.totals_stride;
  __m512 total[kRows][kTilePanels];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) {
      total[r][p] =
          run.is_first_group ? _mm512_setzero_ps() : _mm512_loadu_ps(totals + r * run.totals_stride + p * kPanel);
    }
  }
  for (int64_t group = 0; group < num_groups; ++group, starts += kTilePanels * kPanel) {
    __m512i sum[kRows][kTilePanels];
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) {
      const __m512i start = _mm512_load_si512(starts + p * kPanel);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][p] = start;
    }
    const int64_t begin = group * panel_bytes;
    add_products<kRows, kStripRows>(strip, {run.panels[0] + begin, run.panels[1] + begin, run.panels[2] + begin},
                                    panel_bytes, sum);
    strip += run.num_k * kStripRows;
    // Without this, GCC 12 copies all sums from register to register in each step of the loop.
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      asm("" : "+v"(sum[r][0]), "+v"(sum[r][1]), "+v"(sum[r][2]));
    }
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) {
      const __m512 scale = load_values(run.scale_format, run.scales[p] + group * scale_line);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m512 of_row = scale;
        if constexpr (kHasRowScales) of_row = _mm512_mul_ps(scale, _mm512_set1_ps(row_scales[r * row_stride + group]));
        total[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][p]), of_row, total[r][p]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int p = 0; p < kTilePanels; ++p) {
      _mm512_storeu_ps(totals + r * run.totals_stride + p * kPanel, total[r][p]);
    }
  }
}

template <int kRows>
void groups(const Int8Groups& run) {
  constexpr int kFirst = kRows < kRowsOfGroups ? kRows : kRowsOfGroups;
  constexpr int kSecond = kRows - kFirst;
  const bool has_row_scales = run.group_scales != nullptr;
  (has_row_scales ? groups_of_rows<kFirst, kRows, true> : groups_of_rows<kFirst, kRows, false>)(run, 0);
  if constexpr (kSecond > 0) {
    (has_row_scales ? groups_of_rows<kSecond, kRows, true> : groups_of_rows<kSecond, kRows, false>)(run, kFirst);
  }
}

template <int... kIndex>
void set_kernels(Int8Tiles& tiles, std::integer_sequence<int, kIndex...>) {
  ((tiles.tile[kIndex] = tile<kIndex + 1>, tiles.groups[kIndex] = groups<kIndex + 1>), ...);
}

Int8Tiles make_tiles() {
  Int8Tiles tiles{};
  tiles.strip_offset = kRowOffset;
  tiles.rows = kTileRows;
  tiles.panels = kTilePanels;
  tiles.strip_unit_rows = 1;
  tiles.k_unit = 4;
  tiles.strip_k_bytes = 1;
  tiles.block_k = 512;
  tiles.strip = pack_strip;
  set_kernels(tiles, std::make_integer_sequence<int, kTileRows>());
  return tiles;
}

template <int kCount>
void add_groups(const Int8Groups& groups, const int32_t* sums, int64_t first) {
  constexpr int64_t kOuts = 2 * kPanel;
  const bool is_first = groups.is_first_group && first == 0;
  for (int64_t p = 0; p < 2; ++p) {
    __m512 scales[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      scales[i] = load_values(groups.scale_format, groups.scales[p] + (first + i) * line_bytes(groups.scale_format));
    }
    float* totals = groups.totals + p * kPanel;
    const int32_t* sums_r = sums + p * kPanel;
    const float* of_row = groups.group_scales ? groups.group_scales + first : nullptr;
    for (int64_t r = 0; r < groups.num_rows; ++r, totals += groups.totals_stride, sums_r += kOuts) {
      __m512 total = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(totals);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        const __m512 scale = of_row ? _mm512_mul_ps(scales[i], _mm512_set1_ps(of_row[i])) : scales[i];
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums_r + i * kMaxInt8TileRows * kOuts));
        total = _mm512_fmadd_ps(sum, scale, total);
      }
      _mm512_storeu_ps(totals, total);
      if (of_row) of_row += groups.group_scales_stride;
    }
  }
}

Int8Kernels make_kernels() {
  Int8Kernels kernels{};
  kernels.name = "vnni";
  kernels.gemv_offset = kRowOffset;
  kernels.max_gemv_rows = 4;
  kernels.gemv_k_bytes = 1;
  const Int8GemvKernel gemvs_int8[] = {gemv_int8<1>, gemv_int8<2>, gemv_int8<3>, gemv_int8<4>};
  const Int8GemvKernel gemvs_int4[] = {gemv_int4<1>, gemv_int4<2>, gemv_int4<3>, gemv_int4<4>};
  for (int rows = 0; rows < 4; ++rows) {
    kernels.gemv_int8[rows] = gemvs_int8[rows];
    kernels.gemv_int4[rows] = gemvs_int4[rows];
  }
  kernels.prepare_int8 = prepare_int8;
  kernels.prepare_int4 = prepare_int4;
  kernels.expand_int4 = expand_int4;
  kernels.tiles_int8 = kernels.tiles_int4 = make_tiles();
  kernels.finish = finish_panel;
  kernels.end_streams = [] { _mm_sfence(); };
  return kernels;
}

}  // namespace

void add_int8_groups(const Int8Groups& groups, const int32_t* sums, int64_t first, int64_t count) {
  constexpr void (*kKernels[])(const Int8Groups&, const int32_t*, int64_t) = {add_groups<1>, add_groups<2>,
                                                                              add_groups<3>, add_groups<4>};
  kKernels[count - 1](groups, sums, first);
}

const Int8Kernels& int8_kernels_vnni() {
  static const Int8Kernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
