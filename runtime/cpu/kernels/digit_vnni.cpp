// The AVX-512 VNNI path of digit_kernels.h.
//
// CODES are 16 outputs x 4 positions in a register, as unsigned bytes, and vpdpbusd adds their products with a digit of
// 4 positions. Several chains hide its latency where a row alone has too few.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "runtime/cpu/kernels/digit_kernels.h"

#include <immintrin.h>

#include <cstring>

#include "runtime/cpu/kernels/linear_formats_avx512.h"

namespace pare::runtime {
namespace {

constexpr int64_t kPrefetchBytes = 8192;

inline __m512i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm512_set1_epi32(word);
}

// Each format has kSets registers of codes in a unit, whose digits stand kSetsAtOnce x 4 bytes after one another.
struct CodesOfInt4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr int kBits = 4, kSets = 2, kSetsAtOnce = 2;
  static void load(const uint8_t* unit, __m512i* codes) {
    const __m512i low = _mm512_set1_epi8(0x0F);
    const __m512i word = _mm512_xor_si512(_mm512_load_si512(unit), _mm512_set1_epi8(static_cast<char>(0x88)));
    codes[0] = _mm512_and_si512(word, low);
    codes[1] = _mm512_and_si512(_mm512_srli_epi16(word, 4), low);
  }
};

struct CodesOfInt2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr int kBits = 2, kSets = 4, kSetsAtOnce = 4;
  static void load(const uint8_t* unit, __m512i* codes) {
    const __m512i word = _mm512_xor_si512(_mm512_load_si512(unit), _mm512_set1_epi8(static_cast<char>(0xAA)));
#pragma GCC unroll 4
    for (int set = 0; set < kSets; ++set) {
      codes[set] = _mm512_and_si512(_mm512_srli_epi16(word, 2 * set), _mm512_set1_epi8(3));
    }
  }
};

struct CodesOfInt3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr int kBits = 3, kSets = 8, kSetsAtOnce = 4;
  static void load(const uint8_t* unit, __m512i* codes) {
    constexpr int kLowElseHigh = 0xCA;  // of each bit: the first operand chooses the second or the third
    const __m512i turned_top = _mm512_xor_si512(_mm512_load_si512(unit + 128), _mm512_set1_epi8(-1));
#pragma GCC unroll 8
    for (int set = 0; set < kSets; ++set) {
      const __m512i low =
          _mm512_srli_epi16(_mm512_load_si512(unit + 64 * (set / kSetsAtOnce)), 2 * (set % kSetsAtOnce));
      const __m512i top = set >= 2 ? _mm512_srli_epi16(turned_top, set - 2) : _mm512_slli_epi16(turned_top, 2 - set);
      const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, top, kLowElseHigh);
      codes[set] = _mm512_and_si512(both, _mm512_set1_epi8(7));
    }
  }
};

// The chains of a digit: two units of a format with two sets take four of them.
template <int kRows>
inline constexpr int kChainsOfRows = kRows == 1   ? 4
                                     : kRows == 2 ? 2
                                                  : 1;

template <class Codes, int kRows>
using Chains = __m512i[kRows][kNumDigits][kChainsOfRows<kRows>];

// Adds the products of a unit. Its sets go to the chains from `first_chain` on.
template <class Codes, int kRows>
inline void add_unit(const uint8_t* unit, const uint8_t* x, int64_t x_stride, int first_chain,
                     Chains<Codes, kRows>& chains) {
  constexpr int kDigitStride = 4 * Codes::kSetsAtOnce;
  __m512i codes[Codes::kSets];
  Codes::load(unit, codes);
#pragma GCC unroll 8
  for (int s = 0; s < Codes::kSets; ++s) {
    const uint8_t* const x_s = x + s / Codes::kSetsAtOnce * kNumDigits * kDigitStride + s % Codes::kSetsAtOnce * 4;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int d = 0; d < kNumDigits; ++d) {
        __m512i& chain = chains[r][d][(first_chain + s) % kChainsOfRows<kRows>];
        chain = _mm512_dpbusd_epi32(chain, codes[s], broadcast_word(x_s + r * x_stride + d * kDigitStride));
      }
    }
  }
}

template <class Codes, int kRows>
void gemv(const PanelRun& run, const DigitRows& x, float* y, int64_t y_stride) {
  constexpr UnitShape kUnit = unit_shape(Codes::kFormat);
  constexpr int64_t kDigitBytes = kNumDigits * kUnit.num_k;
  constexpr int kChains = kChainsOfRows<kRows>;
  constexpr int kUnitsAtOnce = kChains > Codes::kSets ? kChains / Codes::kSets : 1;
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m512 total[kRows];
    const __m512 bias = run.bias ? _mm512_loadu_ps(run.bias + out) : _mm512_setzero_ps();
    for (int r = 0; r < kRows; ++r) total[r] = bias;
    const uint8_t* digits = x.bytes;
    int64_t block = 0;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m512i zero = _mm512_set1_epi32(1 << (Codes::kBits - 1));
      if (zeros != nullptr) {
        zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
        zeros += kPanel;
      }
      __m512 group_sum[kRows];
      for (int r = 0; r < kRows; ++r) group_sum[r] = _mm512_setzero_ps();
      for (int64_t begin = 0; begin < run.group_len; begin += kDigitBlock, ++block) {
        const int64_t num_k = run.group_len - begin < kDigitBlock ? run.group_len - begin : kDigitBlock;
        const int64_t num_units = num_k / kUnit.num_k;
        Chains<Codes, kRows> chains;
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
          for (int d = 0; d < kNumDigits; ++d) {
#pragma GCC unroll 4
            for (int c = 0; c < kChains; ++c) chains[r][d][c] = _mm512_setzero_si512();
          }
        }
        int64_t u = 0;
        for (; u + kUnitsAtOnce <= num_units; u += kUnitsAtOnce) {
#pragma GCC unroll 2
          for (int i = 0; i < kUnitsAtOnce; ++i) {
            for (int64_t line = 0; line < kUnit.num_bytes; line += 64) {
              _mm_prefetch(reinterpret_cast<const char*>(bytes + kPrefetchBytes + line), _MM_HINT_T0);
            }
            add_unit<Codes, kRows>(bytes, digits, x.byte_stride, i * Codes::kSets, chains);
            bytes += kUnit.num_bytes;
            digits += kDigitBytes;
          }
        }
        for (; u < num_units; ++u, bytes += kUnit.num_bytes, digits += kDigitBytes) {
          add_unit<Codes, kRows>(bytes, digits, x.byte_stride, 0, chains);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = r * x.num_blocks + block;
          __m512i sums[kNumDigits];
#pragma GCC unroll 3
          for (int d = 0; d < kNumDigits; ++d) {
            sums[d] = chains[r][d][0];
#pragma GCC unroll 4
            for (int c = 1; c < kChains; ++c) sums[d] = _mm512_add_epi32(sums[d], chains[r][d][c]);
            const __m512i of_zeros = _mm512_mullo_epi32(zero, _mm512_set1_epi32(x.sums[at * kNumDigits + d]));
            sums[d] = _mm512_sub_epi32(sums[d], of_zeros);
          }
          const __m512 upper = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums[2], 8), sums[1]));
          const __m512 joined = _mm512_fmadd_ps(upper, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(sums[0]));
          group_sum[r] = _mm512_fmadd_ps(joined, _mm512_set1_ps(x.scales[at]), group_sum[r]);
        }
      }
      const __m512 scale = load_scales(run.scale_format, scales);
      scales += scale_line_bytes(run.scale_format);
      for (int r = 0; r < kRows; ++r) total[r] = _mm512_fmadd_ps(scale, group_sum[r], total[r]);
    }
    const __mmask16 mask = lane_mask(run.num_outs - out);
    for (int r = 0; r < kRows; ++r) _mm512_mask_storeu_ps(y + r * y_stride + out, mask, total[r]);
  }
}

template <class Codes>
void add_format(DigitKernels& kernels) {
  const int format = static_cast<int>(Codes::kFormat);
  kernels.prepare[format] = digit_kernels_avx2().prepare[format];
  kernels.gemv[format][0] = gemv<Codes, 1>;
  kernels.gemv[format][1] = gemv<Codes, 2>;
  kernels.gemv[format][2] = gemv<Codes, 3>;
  kernels.gemv[format][3] = gemv<Codes, 4>;
}

DigitKernels make_kernels() {
  DigitKernels kernels{};
  add_format<CodesOfInt4>(kernels);
  add_format<CodesOfInt3>(kernels);
  add_format<CodesOfInt2>(kernels);
  return kernels;
}

}  // namespace

const DigitKernels& digit_kernels_vnni() {
  static const DigitKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
