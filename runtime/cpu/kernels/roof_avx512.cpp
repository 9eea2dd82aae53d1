// AVX-512 loops that reach the FMA and the memory-read roof; roof_kernels.h describes them.

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/roof_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kNumChains = 24;

float multiply(int64_t num_rounds) {
  __m512 chain[kNumChains];
#pragma GCC unroll 24
  for (int c = 0; c < kNumChains; ++c) chain[c] = _mm512_set1_ps(0.25f * static_cast<float>(c));
  __m512 factor = _mm512_set1_ps(0.5f);
  __m512 term = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < num_rounds; ++i) {
    // The compiler must not see that the factors never change.
    asm volatile("" : "+v"(factor), "+v"(term));
#pragma GCC unroll 24
    for (int c = 0; c < kNumChains; ++c) chain[c] = _mm512_fmadd_ps(chain[c], factor, term);
  }
  __m512 sum = chain[0];
#pragma GCC unroll 24
  for (int c = 1; c < kNumChains; ++c) sum = _mm512_add_ps(sum, chain[c]);
  return _mm512_cvtss_f32(sum);
}

uint64_t read(const uint8_t* bytes, int64_t num_bytes) {
  const int64_t stream_bytes = num_bytes / 4;
  __m512i sums[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int64_t i = 0; i < stream_bytes; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      sums[s] = _mm512_xor_si512(sums[s], _mm512_load_si512(bytes + s * stream_bytes + i));
    }
  }
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
  uint64_t sum = 0;
  for (uint64_t word : words) sum ^= word;
  return sum;
}

}  // namespace

const RoofKernels& roof_kernels_avx512() {
  static const RoofKernels kernels{multiply, 2 * 16 * kNumChains, read};
  return kernels;
}

}  // namespace pare::runtime
