// The avxvnni path of digit_kernels.h, written against the product of bytes in vnni_dot.h; digit_avx2_kernels.h has the
// loop over blocks. vpdpbusd adds the products of codes with a digit of 4 positions to sums of 32 bits: one instruction
// in place of two, and none that widens.
//
// A row has 6 sums. They are too few to hide vpdpbusd's latency, but the next block's begin anew. 12 of them, of two
// chains or of two rows, spilled. With two chains, decode of a row took a third longer (Zen 4, by AVX-512's encoding).
#pragma once

#include "runtime/cpu/kernels/digit_avx2_kernels.h"

namespace pare::runtime {
namespace {

template <class Vnni>
struct VnniDigits {
  template <class Codes>
  [[gnu::always_inline]] static void add_block(const uint8_t* unit, const uint8_t* x, int num_units, BlockSums& sums) {
    BlockSums chains;
#pragma GCC unroll 3
    for (int d = 0; d < kNumDigits; ++d) chains[0][d] = chains[1][d] = _mm256_setzero_si256();
#pragma GCC unroll 1  // more would spill sums
    for (int u = 0; u < num_units; ++u) {
      prefetch_unit<Codes>(unit);
#pragma GCC unroll 8
      for (int set = 0; set < Codes::kSets; ++set) {
        const __m256i codes[kHalves] = {Codes::load(unit, 0, set), Codes::load(unit, 1, set)};
#pragma GCC unroll 3
        for (int d = 0; d < kNumDigits; ++d) {
          const __m256i digits = broadcast_word(x + digits_of_set<Codes>(set, d));
          chains[0][d] = Vnni::add(chains[0][d], codes[0], digits);
          chains[1][d] = Vnni::add(chains[1][d], codes[1], digits);
        }
      }
      unit += unit_shape(Codes::kFormat).num_bytes;
      x += kNumDigits * unit_shape(Codes::kFormat).num_k;
    }
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 3
      for (int d = 0; d < kNumDigits; ++d) {
        asm("" : "+x"(chains[half][d]));  // without this, GCC 12 copies sums between registers in each step
        sums[half][d] = chains[half][d];
      }
    }
  }
};

// The digits of rows are those of avx2.
template <class Vnni>
DigitKernels make_avxvnni_digit_kernels() {
  DigitKernels kernels = digit_kernels_avx2();
  set_gemvs<VnniDigits<Vnni>>(kernels);
  return kernels;
}

}  // namespace
}  // namespace pare::runtime
