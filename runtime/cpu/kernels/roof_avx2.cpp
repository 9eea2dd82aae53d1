// AVX2 loops that reach the FMA and the memory-read roof; roof_kernels.h describes them.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/roof_kernels.h"

namespace pare::runtime {
namespace {

// Twelve independent chains hide an FMA latency of 4 or 5 cycles at two per cycle.
constexpr int kNumChains = 12;

float multiply(int64_t num_rounds) {
  __m256 chain[kNumChains];
  for (int c = 0; c < kNumChains; ++c) chain[c] = _mm256_set1_ps(0.25f * static_cast<float>(c));
  __m256 factor = _mm256_set1_ps(0.5f);
  __m256 term = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < num_rounds; ++i) {
    // The compiler must not see that the factors never change.
    asm volatile("" : "+x"(factor), "+x"(term));
#pragma GCC unroll 12
    for (int c = 0; c < kNumChains; ++c) chain[c] = _mm256_fmadd_ps(chain[c], factor, term);
  }
  __m256 sum = chain[0];
  for (int c = 1; c < kNumChains; ++c) sum = _mm256_add_ps(sum, chain[c]);
  return _mm256_cvtss_f32(sum);
}

uint64_t read(const uint8_t* bytes, int64_t num_bytes) {
  const int64_t stream_bytes = num_bytes / 4;
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int64_t i = 0; i < stream_bytes; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m256i* line = reinterpret_cast<const __m256i*>(bytes + s * stream_bytes + i);
      sums[s] = _mm256_xor_si256(sums[s], _mm256_xor_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  const __m256i sum = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
                               _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3));
}

}  // namespace

const RoofKernels& roof_kernels_avx2() {
  static const RoofKernels kernels{multiply, 2 * 8 * kNumChains, read};
  return kernels;
}

}  // namespace pare::runtime
