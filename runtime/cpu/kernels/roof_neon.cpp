// NEON loops that reach the FMA and the memory-read roof; roof_kernels.h describes them.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/roof_kernels.h"

namespace pare::runtime {
namespace {

// Independent chains hide an FMA latency of 4 cycles at four per cycle.
constexpr int kNumChains = 24;

float multiply(int64_t num_rounds) {
  float32x4_t chain[kNumChains];
#pragma GCC unroll 24
  for (int c = 0; c < kNumChains; ++c) chain[c] = vdupq_n_f32(0.25f * static_cast<float>(c));
  float32x4_t factor = vdupq_n_f32(0.5f);
  float32x4_t term = vdupq_n_f32(1.0f);
  for (int64_t i = 0; i < num_rounds; ++i) {
    // The compiler must not see that the factors never change.
    asm volatile("" : "+w"(factor), "+w"(term));
#pragma GCC unroll 24
    for (int c = 0; c < kNumChains; ++c) chain[c] = vfmaq_f32(term, chain[c], factor);
  }
  float32x4_t sum = chain[0];
#pragma GCC unroll 24
  for (int c = 1; c < kNumChains; ++c) sum = vaddq_f32(sum, chain[c]);
  return vgetq_lane_f32(sum, 0);
}

uint64_t read(const uint8_t* bytes, int64_t num_bytes) {
  const int64_t stream_bytes = num_bytes / 4;
  uint8x16_t sums[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  for (int64_t i = 0; i < stream_bytes; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const uint8_t* const line = bytes + s * stream_bytes + i;
      const uint8x16_t first = veorq_u8(vld1q_u8(line), vld1q_u8(line + 16));
      const uint8x16_t second = veorq_u8(vld1q_u8(line + 32), vld1q_u8(line + 48));
      sums[s] = veorq_u8(sums[s], veorq_u8(first, second));
    }
  }
  const uint64x2_t sum = vreinterpretq_u64_u8(veorq_u8(veorq_u8(sums[0], sums[1]), veorq_u8(sums[2], sums[3])));
  return vgetq_lane_u64(sum, 0) ^ vgetq_lane_u64(sum, 1);
}

}  // namespace

const RoofKernels& roof_kernels_neon() {
  static const RoofKernels kernels{multiply, 2 * 4 * kNumChains, read};
  return kernels;
}

}  // namespace pare::runtime
