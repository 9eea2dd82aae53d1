// The AVX2 path of digit_kernels.h.
//
// CODES are 8 outputs x 4 positions in a register, as unsigned bytes: the stored two's complement with its top bit
// turned is the code itself. vpmaddubsw multiplies them by a digit of 4 positions and adds pairs, of at most 2 * (2^b -
// 1) * 128. Sums of kUnitsPerSum units still fit 16 bits; then vpmaddwd widens them.
//
// The digits of a row are made here for both paths.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.
#include "runtime/cpu/kernels/digit_kernels.h"

#include <immintrin.h>

#include <cstring>

#include "runtime/cpu/kernels/digit_scale.h"
#include "runtime/cpu/kernels/linear_formats_avx2.h"

namespace pare::runtime {
namespace {

constexpr int kHalves = 2;
constexpr int64_t kPrefetchBytes = 2048;

// --- digits ---

inline int32_t largest_of(__m256i eight) {
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

// Returns the digits of 4 values in the bytes of their lanes, each 128 higher. Adding 128 to each digit adds 0x808080
// to the value, and leaves bytes without a carry between them.
inline __m128i raised_digits(const float* x, __m128 inverse) {
  const __m128i value = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x), inverse));
  return _mm_add_epi32(value, _mm_set1_epi32(0x808080));
}

// Turns digits of 4 lanes into [digit][lane], with lanes in the given order; the last four bytes are not digits.
inline __m128i by_digit(__m128i lanes, int first, int second, int third, int fourth) {
  const int order = 4 * first | 4 * second << 8 | 4 * third << 16 | 4 * fourth << 24;
  return _mm_shuffle_epi8(lanes, _mm_setr_epi32(order, order + 0x01010101, order + 0x02020202, order + 0x03030303));
}

// Writes the digits of 8 positions for codes of 4 bits: positions 0, 2, 4, 6 and then 1, 3, 5, 7 of each digit. Adds
// the raised digits' sums to sums.
struct DigitsOfInt4 {
  static constexpr int64_t kNumK = 8;
  static void write(const float* x, __m128 inverse, uint8_t* bytes, __m128i* sums) {
    const __m128i low = by_digit(raised_digits(x, inverse), 0, 2, 1, 3);
    const __m128i high = by_digit(raised_digits(x + 4, inverse), 0, 2, 1, 3);
    const __m128i turn = _mm_set1_epi8(static_cast<char>(0x80));
    const __m128i first_two = _mm_unpacklo_epi16(low, high), third = _mm_unpackhi_epi16(low, high);
    const __m128i zero = _mm_setzero_si128();
    const __m128i sums_01 = _mm_sad_epu8(first_two, zero);  // of digit 0 in the lower half, of 1 in the upper
    sums[0] = _mm_add_epi32(sums[0], sums_01);
    sums[1] = _mm_add_epi32(sums[1], _mm_unpackhi_epi64(sums_01, zero));
    sums[2] = _mm_add_epi32(sums[2], _mm_sad_epu8(_mm_move_epi64(third), zero));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm_xor_si128(first_two, turn));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes + 16), _mm_xor_si128(third, turn));
  }
};

// The same of 16 positions for codes of 2 and 3 bits: positions 0, 4, 8, 12, then 1, 5, 9, 13, and so on.
struct DigitsOfInt2 {
  static constexpr int64_t kNumK = 16;
  static void write(const float* x, __m128 inverse, uint8_t* bytes, __m128i* sums) {
    __m128i quad[4];
    for (int q = 0; q < 4; ++q) quad[q] = by_digit(raised_digits(x + 4 * q, inverse), 0, 1, 2, 3);
    const __m128i low_01 = _mm_unpacklo_epi32(quad[0], quad[1]), low_23 = _mm_unpacklo_epi32(quad[2], quad[3]);
    const __m128i high_01 = _mm_unpackhi_epi32(quad[0], quad[1]), high_23 = _mm_unpackhi_epi32(quad[2], quad[3]);
    const __m128i digits[kNumDigits] = {_mm_unpacklo_epi64(low_01, low_23), _mm_unpackhi_epi64(low_01, low_23),
                                        _mm_unpacklo_epi64(high_01, high_23)};
    const __m128i transpose = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i turn = _mm_set1_epi8(static_cast<char>(0x80));
    for (int d = 0; d < kNumDigits; ++d) {
      const __m128i sad = _mm_sad_epu8(digits[d], _mm_setzero_si128());
      sums[d] = _mm_add_epi32(sums[d], _mm_add_epi32(sad, _mm_unpackhi_epi64(sad, sad)));
      const __m128i ordered = _mm_shuffle_epi8(digits[d], transpose);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 16 * d), _mm_xor_si128(ordered, turn));
    }
  }
};

template <class Digits>
void prepare(const float* x, int64_t num_groups, int64_t group_len, uint8_t* bytes, float* scales, int32_t* sums) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t begin = 0; begin < group_len; begin += kDigitBlock) {
      const int64_t num_k = group_len - begin < kDigitBlock ? group_len - begin : kDigitBlock;
      __m256i largest = _mm256_setzero_si256();
      for (int64_t k = 0; k < num_k; k += 8) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k));
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
      }
      const int32_t largest_bits = largest_of(largest);
      const bool is_finite = largest_bits < kInfinityBits;
      const BlockScale block = block_scale(is_finite ? largest_bits : 0);
      const __m128 inverse = _mm_set1_ps(block.inverse);
      __m128i raised_sums[kNumDigits] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
      for (int64_t k = 0; k < num_k; k += Digits::kNumK, bytes += kNumDigits * Digits::kNumK) {
        Digits::write(x + k, inverse, bytes, raised_sums);
      }
      for (int d = 0; d < kNumDigits; ++d) {
        *sums++ = _mm_cvtsi128_si32(raised_sums[d]) - 128 * static_cast<int32_t>(num_k);
      }
      *scales++ = is_finite ? block.scale : __builtin_nanf("");
      x += num_k;
    }
  }
}

// --- codes ---

inline __m256i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

// Each format has kSets registers of codes in a unit and half; load gives kSetsTogether of them, from `first` on. Their
// digits stand kSetsAtOnce x 4 bytes after one another.
struct CodesOfInt4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr int kBits = 4, kSets = 2, kSetsAtOnce = 2, kSetsTogether = 2;
  static constexpr int kUnitsPerSum = 4;  // 4 * 2 * 2 * 15 * 128 = 30720
  static void load(const uint8_t* unit, int /*first*/, __m256i (&codes)[kHalves][kSetsTogether]) {
    const __m256i low = _mm256_set1_epi8(0x0F);
    for (int half = 0; half < kHalves; ++half) {
      const __m256i word = _mm256_xor_si256(load_half(unit, half), _mm256_set1_epi8(static_cast<char>(0x88)));
      codes[half][0] = _mm256_and_si256(word, low);
      codes[half][1] = _mm256_and_si256(_mm256_srli_epi16(word, 4), low);
    }
  }
};

struct CodesOfInt2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr int kBits = 2, kSets = 4, kSetsAtOnce = 4, kSetsTogether = 2;
  static constexpr int kUnitsPerSum = 8;  // 8 * 4 * 2 * 3 * 128 = 24576
  static void load(const uint8_t* unit, int first, __m256i (&codes)[kHalves][kSetsTogether]) {
    const __m256i low = _mm256_set1_epi8(0x03);
    for (int half = 0; half < kHalves; ++half) {
      const __m256i word = _mm256_xor_si256(load_half(unit, half), _mm256_set1_epi8(static_cast<char>(0xAA)));
      codes[half][0] = _mm256_and_si256(_mm256_srli_epi16(word, 2 * first), low);
      codes[half][1] = _mm256_and_si256(_mm256_srli_epi16(word, 2 * first + 2), low);
    }
  }
};

struct CodesOfInt3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr int kBits = 3, kSets = 8, kSetsAtOnce = 4, kSetsTogether = 2;
  static constexpr int kUnitsPerSum = 2;  // 2 * 8 * 2 * 7 * 128 = 28672
  static void load(const uint8_t* unit, int first, __m256i (&codes)[kHalves][kSetsTogether]) {
    for (int half = 0; half < kHalves; ++half) {
      const __m256i low = load_half(unit + 64 * (first / kSetsAtOnce), half);
      const __m256i turned_top = _mm256_xor_si256(load_half(unit + 128, half), _mm256_set1_epi8(-1));
      for (int s = 0; s < kSetsTogether; ++s) {
        const int set = first + s;  // the top bit of its codes in their bytes
        const __m256i top = set >= 2 ? _mm256_srli_epi16(turned_top, set - 2) : _mm256_slli_epi16(turned_top, 2 - set);
        codes[half][s] =
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(low, 2 * (set % kSetsAtOnce)), _mm256_set1_epi8(3)),
                            _mm256_and_si256(top, _mm256_set1_epi8(4)));
      }
    }
  }
};

// Sums of a block: [half][digit].
using BlockSums = __m256i[kHalves][kNumDigits];

// sums += the products of num_units <= kUnitsPerSum units with a row's digits. Both halves share each digit's load.
template <class Codes>
[[gnu::always_inline]] inline void add_units(const uint8_t* unit, const uint8_t* x, int num_units, BlockSums& sums) {
  constexpr int64_t kBytes = unit_shape(Codes::kFormat).num_bytes;
  constexpr int64_t kDigitBytes = kNumDigits * unit_shape(Codes::kFormat).num_k;
  constexpr int kDigitStride = 4 * Codes::kSetsAtOnce;
  __m256i pairs[kHalves][kNumDigits];
#pragma GCC unroll 3
  for (int d = 0; d < kNumDigits; ++d) pairs[0][d] = pairs[1][d] = _mm256_setzero_si256();
#pragma GCC unroll 1  // more would spill sums
  for (int u = 0; u < num_units; ++u, unit += kBytes, x += kDigitBytes) {
    for (int64_t line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(unit + kPrefetchBytes + line), _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int first = 0; first < Codes::kSets; first += Codes::kSetsTogether) {
      __m256i codes[kHalves][Codes::kSetsTogether];
      Codes::load(unit, first, codes);
#pragma GCC unroll 3
      for (int d = 0; d < kNumDigits; ++d) {
#pragma GCC unroll 4
        for (int s = 0; s < Codes::kSetsTogether; ++s) {
          const int set = first + s;
          const __m256i digits = broadcast_word(x + set / Codes::kSetsAtOnce * kNumDigits * kDigitStride +
                                                d * kDigitStride + set % Codes::kSetsAtOnce * 4);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half) {
            pairs[half][d] = _mm256_add_epi16(pairs[half][d], _mm256_maddubs_epi16(codes[half][s], digits));
          }
        }
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 3
    for (int d = 0; d < kNumDigits; ++d) {
      sums[half][d] = _mm256_add_epi32(sums[half][d], _mm256_madd_epi16(pairs[half][d], ones));
    }
  }
}

template <class Codes>
inline void add_block(const uint8_t* unit, const uint8_t* x, int num_units, BlockSums& sums) {
  constexpr int kUnits = Codes::kUnitsPerSum;
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 3
    for (int d = 0; d < kNumDigits; ++d) sums[half][d] = _mm256_setzero_si256();
  }
  int u = 0;
  for (; u + kUnits <= num_units; u += kUnits) {
    add_units<Codes>(unit, x, kUnits, sums);
    unit += kUnits * unit_shape(Codes::kFormat).num_bytes;
    x += kUnits * kNumDigits * unit_shape(Codes::kFormat).num_k;
  }
  if (u < num_units) add_units<Codes>(unit, x, num_units - u, sums);
}

template <class Codes, int kRows>
void gemv(const PanelRun& run, const DigitRows& x, float* y, int64_t y_stride) {
  constexpr UnitShape kUnit = unit_shape(Codes::kFormat);
  const int64_t line_bytes = scale_line_bytes(run);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 total[kRows][kHalves];
    for (int half = 0; half < kHalves; ++half) {
      const __m256 bias = run.bias ? _mm256_loadu_ps(run.bias + out + kHalf * half) : _mm256_setzero_ps();
      for (int r = 0; r < kRows; ++r) total[r][half] = bias;
    }
    const uint8_t* digits = x.bytes;
    int64_t block = 0;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256 group_sum[kRows][kHalves];
      __m256i zero[kHalves];
      for (int half = 0; half < kHalves; ++half) {
        zero[half] = _mm256_setzero_si256();
        if (zeros != nullptr) {
          zero[half] = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + kHalf * half)));
        }
        for (int r = 0; r < kRows; ++r) group_sum[r][half] = _mm256_setzero_ps();
      }
      for (int64_t begin = 0; begin < run.group_len; begin += kDigitBlock, ++block) {
        const int64_t num_k = run.group_len - begin < kDigitBlock ? run.group_len - begin : kDigitBlock;
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = r * x.num_blocks + block;
          BlockSums sums;
          add_block<Codes>(bytes, digits + r * x.byte_stride, static_cast<int>(num_k / kUnit.num_k), sums);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 3
            for (int d = 0; d < kNumDigits; ++d) {
              const __m256i sum = _mm256_set1_epi32(x.sums[at * kNumDigits + d]);
              sums[half][d] =
                  _mm256_sub_epi32(sums[half][d], zeros != nullptr ? _mm256_mullo_epi32(zero[half], sum)
                                                                   : _mm256_slli_epi32(sum, Codes::kBits - 1));
            }
            const __m256i upper = _mm256_add_epi32(_mm256_slli_epi32(sums[half][2], 8), sums[half][1]);
            const __m256 joined =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(sums[half][0]));
            group_sum[r][half] = _mm256_fmadd_ps(joined, _mm256_set1_ps(x.scales[at]), group_sum[r][half]);
          }
        }
        bytes += num_k / kUnit.num_k * kUnit.num_bytes;
        digits += kNumDigits * num_k;
      }
      for (int half = 0; half < kHalves; ++half) {
        const __m256 scale = load_scales(run, scales, half);
        for (int r = 0; r < kRows; ++r) total[r][half] = _mm256_fmadd_ps(scale, group_sum[r][half], total[r][half]);
      }
      scales += line_bytes;
      if (zeros != nullptr) zeros += kPanel;
    }
    for (int half = 0; half < kHalves; ++half) {
      const __m256i mask = lane_mask(run.num_outs - out - kHalf * half);
      for (int r = 0; r < kRows; ++r) _mm256_maskstore_ps(y + r * y_stride + out + kHalf * half, mask, total[r][half]);
    }
  }
}

template <class Codes, class Digits>
void add_format(DigitKernels& kernels) {
  const int format = static_cast<int>(Codes::kFormat);
  kernels.prepare[format] = prepare<Digits>;
  kernels.gemv[format][0] = gemv<Codes, 1>;
  kernels.gemv[format][1] = gemv<Codes, 2>;
}

DigitKernels make_kernels() {
  DigitKernels kernels{};
  add_format<CodesOfInt4, DigitsOfInt4>(kernels);
  add_format<CodesOfInt3, DigitsOfInt2>(kernels);
  add_format<CodesOfInt2, DigitsOfInt2>(kernels);
  return kernels;
}

}  // namespace

const DigitKernels& digit_kernels_avx2() {
  static const DigitKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
