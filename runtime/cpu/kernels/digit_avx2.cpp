// The avx2 path of digit_kernels.h; digit_avx2_kernels.h has the loop over blocks.
//
// vpmaddubsw multiplies codes by a digit of 4 positions and adds pairs, of at most 2 * (2^b - 1) * 128. Sums of some
// units still fit 16 bits; then vpmaddwd widens them.
//
// The digits of a row are made here for all paths of x86-64.
#include <immintrin.h>

#include "runtime/cpu/kernels/digit_avx2_kernels.h"
#include "runtime/cpu/kernels/digit_scale.h"

namespace pare::runtime {
namespace {

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

// --- products ---

// The units of a block whose sums fit 16 bits.
template <class Codes>
constexpr int units_per_sum() {
  constexpr int kLargestOfUnit = Codes::kSets * 2 * ((1 << Codes::kBits) - 1) * 128;
  constexpr int kFitting = 0x7FFF / kLargestOfUnit, kOfBlock = kDigitBlock / unit_shape(Codes::kFormat).num_k;
  return kFitting < kOfBlock ? kFitting : kOfBlock;
}

struct PairDot {
  template <class Codes>
  static void add_block(const uint8_t* unit, const uint8_t* x, int num_units, BlockSums& sums) {
    constexpr int kUnits = units_per_sum<Codes>();
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

  // sums += the products of num_units <= units_per_sum() units with a row's digits. Both halves share the loads of
  // digits.
  template <class Codes>
  [[gnu::always_inline]] static void add_units(const uint8_t* unit, const uint8_t* x, int num_units, BlockSums& sums) {
    constexpr int kSetsTogether = 2;
    __m256i pairs[kHalves][kNumDigits];
#pragma GCC unroll 3
    for (int d = 0; d < kNumDigits; ++d) pairs[0][d] = pairs[1][d] = _mm256_setzero_si256();
#pragma GCC unroll 1  // more would spill sums
    for (int u = 0; u < num_units; ++u) {
      prefetch_unit<Codes>(unit);
#pragma GCC unroll 4
      for (int first = 0; first < Codes::kSets; first += kSetsTogether) {
        __m256i codes[kHalves][kSetsTogether];
        for (int half = 0; half < kHalves; ++half) {
          for (int s = 0; s < kSetsTogether; ++s) codes[half][s] = Codes::load(unit, half, first + s);
        }
#pragma GCC unroll 3
        for (int d = 0; d < kNumDigits; ++d) {
#pragma GCC unroll 4
          for (int s = 0; s < kSetsTogether; ++s) {
            const __m256i digits = broadcast_word(x + digits_of_set<Codes>(first + s, d));
#pragma GCC unroll 2
            for (int half = 0; half < kHalves; ++half) {
              pairs[half][d] = _mm256_add_epi16(pairs[half][d], _mm256_maddubs_epi16(codes[half][s], digits));
            }
          }
        }
      }
      unit += unit_shape(Codes::kFormat).num_bytes;
      x += kNumDigits * unit_shape(Codes::kFormat).num_k;
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
};

DigitKernels make_kernels() {
  DigitKernels kernels{};
  kernels.prepare[static_cast<int>(WeightFormat::int4)] = prepare<DigitsOfInt4>;
  kernels.prepare[static_cast<int>(WeightFormat::int3)] = prepare<DigitsOfInt2>;
  kernels.prepare[static_cast<int>(WeightFormat::int2)] = prepare<DigitsOfInt2>;
  set_gemvs<PairDot>(kernels);
  return kernels;
}

}  // namespace

const DigitKernels& digit_kernels_avx2() {
  static const DigitKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
