// The avx2 path of int8_kernels.h; int8_avx2_kernels.h has the kernels.
//
// int8: a line of 16 outputs x 4 positions is widened to 16 bits in two halves of 8 outputs. A shift pair gives
// positions 0 and 2, a shift positions 1 and 3. vpmaddwd with the row's codes, widened beforehand and in the same
// order, adds exact products. Rows of codes are stored as x0 x2 x1 x3 per four positions.
//
// int4, few rows: nibbles 0..15 are the unsigned operand of vpmaddubsw, the row's codes the signed one. Two products
// reach 2 * 15 * 128 < 2^15, so nothing saturates. Zeros are subtracted as zero * (sum of the row's codes).
//
// MANY ROWS: tiles of 8 rows x 16 outputs, 8 outputs after the other 8, so that all sums stay in registers. int4:
// activations are offset by 128 and multiplied as unsigned bytes by c - z, which lies in [-15, 15]. The products of two
// positions are at most 2 * 255 * 15 = 7650, and four such sums are added in 16 bits: 30600 < 2^15. So 128 products
// take 9 instructions, where int8 takes 16.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "runtime/cpu/kernels/int8_avx2_kernels.h"

namespace pare::runtime {
namespace {

// These give positions 0 and 2, or 1 and 3, of 8 outputs as 16-bit pairs.
inline __m256i even_bytes(__m256i line) {
  return _mm256_srai_epi16(_mm256_slli_epi16(line, 8), 8);
}
inline __m256i odd_bytes(__m256i line) {
  return _mm256_srai_epi16(line, 8);
}

inline __m256i add_products(__m256i sum, __m256i even, __m256i odd, const uint8_t* x) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, broadcast_word(x)));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, broadcast_word(x + 4)));
}

// Returns 16 codes as 16 bits, per four in the order 0 2 1 3.
inline __m256i widen(const int8_t* codes) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  return _mm256_shuffle_epi8(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))), order);
}

// Writes strip[k / 4][row]: four codes of a row as 16 bits in the order 0 2 1 3. Groups are whole units of 4.
void pack_wide(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t, uint8_t* strip) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int8_t* const x = codes + r * stride;
    uint8_t* out = strip + 8 * r;
    int64_t k = 0;
    for (; k + 16 <= num_k; k += 16) {
      alignas(32) uint8_t words[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(words), widen(x + k));
      for (int word = 0; word < 4; ++word, out += 8 * num_rows) std::memcpy(out, words + 8 * word, 8);
    }
    for (; k < num_k; k += 4, out += 8 * num_rows) {
      const int16_t wide[4] = {x[k], x[k + 2], x[k + 1], x[k + 3]};
      std::memcpy(out, wide, 8);
    }
  }
}

struct WideProducts {
  static constexpr int kRows = 8, kHalvesAtOnce = 1;
  static constexpr int32_t kOffset = 0;
  static constexpr int64_t kUnit = 4, kStripBytes = 2;
  static constexpr Int8StripKernel pack = pack_wide;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k,
                                         __m256i (&sum)[1][kNumRows]) {
    for (int64_t k = 0; k < num_k; k += 4, bytes += 64, x += 8 * kNumRows) {
      const __m256i line = load_ints(bytes);
      const __m256i even = even_bytes(line);
      const __m256i odd = odd_bytes(line);
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) sum[0][r] = add_products(sum[0][r], even, odd, x + 8 * r);
    }
  }
};

struct NibbleProducts {
  static constexpr int kRows = 8, kHalvesAtOnce = 1;
  static constexpr int64_t kLines = 4;  // of 4 positions, whose products are added in 16 bits
  static constexpr int32_t kOffset = 128;
  static constexpr int64_t kUnit = 4 * kLines, kStripBytes = 1;
  static constexpr Int8StripKernel pack = pack_offset;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k,
                                         __m256i (&sum)[1][kNumRows]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t k = 0; k < num_k; k += 4 * kLines, bytes += 64 * kLines, x += 4 * kNumRows * kLines) {
      const __m256i weights[kLines] = {load_ints(bytes), load_ints(bytes + 64), load_ints(bytes + 128),
                                       load_ints(bytes + 192)};
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        __m256i pairs[kLines];
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line) {
          pairs[line] = _mm256_maddubs_epi16(broadcast_word(x + 4 * (line * kNumRows + r)), weights[line]);
        }
        const __m256i total =
            _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3]));
        sum[0][r] = _mm256_add_epi32(sum[0][r], _mm256_madd_epi16(total, ones));
      }
    }
  }
};

struct WideningDot {
  static constexpr int kMaxFewRows = 2;
  static constexpr int32_t kRowOffset = 0;
  static constexpr int64_t kRowBytes = 2;
  template <int kRows>
  static constexpr int kChains = 1;
  using Int8Products = WideProducts;
  using Int4Products = NibbleProducts;

  struct Weights {
    __m256i even, odd;
  };
  static Weights load(const uint8_t* bytes) {
    const __m256i line = load_ints(bytes);
    return {even_bytes(line), odd_bytes(line)};
  }
  static __m256i add(__m256i sum, const Weights& weights, const uint8_t* x) {
    return add_products(sum, weights.even, weights.odd, x);
  }
  static __m256i add_nibbles(__m256i sum, __m256i even, __m256i odd, const uint8_t* x) {
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, broadcast_word(x)),
                                           _mm256_maddubs_epi16(odd, broadcast_word(x + 4)));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static void prepare(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t*) {
    for (int64_t k = 0; k < num_groups * group_len; k += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + 2 * k), widen(codes + k));
    }
  }
};

}  // namespace

const Int8Kernels& int8_kernels_avx2() {
  static const Int8Kernels kernels = make_kernels<WideningDot>("avx2");
  return kernels;
}

}  // namespace pare::runtime
