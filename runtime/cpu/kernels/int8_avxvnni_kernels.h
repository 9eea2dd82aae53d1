// The avxvnni path of int8_kernels.h, written against the product of bytes in vnni_dot.h; int8_avx2_kernels.h has the
// kernels. 128 products take one instruction, where avx2 takes 16 (int8) or 9 (int4).
//
// int8: a row's codes are offset by 128 and are the unsigned operand; 128 * sum(c) is subtracted. The offset sums are
// at most 255 * 128 * K, as those of rows with zeros are, and fit int32 for K <= kMaxInt8K.
//
// int4, few rows: nibbles 0..15 are the unsigned operand, the row's codes the signed one. Many rows take the kernels of
// int8.
//
// MANY ROWS: tiles of 6 rows x 16 outputs. 12 sums, 2 registers of weights and a broadcast of x take 15 of the 16
// registers. That makes 8 loads for 12 vpdpbusd, whose latency of 4 or 5 cycles takes 10 chains to hide at two a cycle.
//
// Speed: tests/bench/int8_bench.cpp. 64 x 2048 x 2816 on one thread of a Zen 4, by AVX-512's encoding: 362 Gop/s (int8)
// and 293 (int4, groups of 64), where avx2 has 143 and 206 in the same run.
#pragma once

#include "runtime/cpu/kernels/int8_avx2_kernels.h"

namespace pare::runtime {
namespace {

template <class Vnni>
struct VnniProducts {
  static constexpr int kRows = 6, kHalvesAtOnce = 2;
  static constexpr int32_t kOffset = 128;
  static constexpr int64_t kUnit = 4, kStripBytes = 1;
  static constexpr Int8StripKernel pack = pack_offset;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k,
                                         __m256i (&sum)[kHalvesAtOnce][kNumRows]) {
    for (int64_t k = 0; k < num_k; k += 4, bytes += 64, x += 4 * kNumRows) {
      const __m256i first = load_ints(bytes), second = load_ints(bytes + 32);
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        const __m256i codes = broadcast_word(x + 4 * r);
        sum[0][r] = Vnni::add(sum[0][r], codes, first);
        sum[1][r] = Vnni::add(sum[1][r], codes, second);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      keep(sum[0][r]);
      keep(sum[1][r]);
    }
  }
};

template <class Vnni>
struct VnniDot {
  static constexpr int kMaxFewRows = 4;
  static constexpr int32_t kRowOffset = 128;
  static constexpr int64_t kRowBytes = 1;
  template <int kRows>
  static constexpr int kChains = kRows == 1   ? 4
                                 : kRows == 4 ? 1
                                              : 2;
  using Int8Products = VnniProducts<Vnni>;
  using Int4Products = VnniProducts<Vnni>;

  static __m256i load(const uint8_t* bytes) { return load_ints(bytes); }
  static __m256i add(__m256i sum, __m256i weights, const uint8_t* x) {
    return Vnni::add(sum, broadcast_word(x), weights);
  }
  static __m256i add_nibbles(__m256i sum, __m256i even, __m256i odd, const uint8_t* x) {
    return Vnni::add(Vnni::add(sum, even, broadcast_word(x)), odd, broadcast_word(x + 4));
  }
  // Writes codes + 128 as unsigned bytes by flipping the sign bit.
  static void prepare(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x, int32_t*) {
    for (int64_t k = 0; k < num_groups * group_len; k += 32) {
      const __m256i flipped = _mm256_xor_si256(load_ints(codes + k), _mm256_set1_epi8(static_cast<char>(0x80)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + k), flipped);
    }
  }
};

template <class Vnni>
Int8Kernels make_avxvnni_kernels() {
  return make_kernels<VnniDot<Vnni>>("avxvnni");
}

}  // namespace
}  // namespace pare::runtime
