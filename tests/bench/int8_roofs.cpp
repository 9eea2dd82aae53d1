#include "tests/bench/int8_roofs.h"

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

namespace pare {
namespace {

constexpr int kNumChains = 24;
constexpr int kNumTileProducts = 8;

void run_vnni(int64_t num_rounds) {
  __m512i chain[kNumChains];
#pragma GCC unroll 24
  for (int c = 0; c < kNumChains; ++c) chain[c] = _mm512_set1_epi32(c);
  __m512i x = _mm512_set1_epi8(1), w = _mm512_set1_epi8(2);
  for (int64_t i = 0; i < num_rounds; ++i) {
    // The compiler must not see that the factors never change.
    asm volatile("" : "+v"(x), "+v"(w));
#pragma GCC unroll 24
    for (int c = 0; c < kNumChains; ++c) chain[c] = _mm512_dpbusd_epi32(chain[c], x, w);
  }
#pragma GCC unroll 24
  for (int c = 0; c < kNumChains; ++c) asm volatile("" ::"v"(chain[c]));
}

// Palette 1, eight tiles of 16 rows x 64 bytes (Intel SDM volume 1, table 18-1).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

void run_amx(int64_t num_rounds) {
  asm volatile("ldtilecfg %0" ::"m"(kTileConfig));
  for (int64_t i = 0; i < num_rounds; ++i) {
    asm volatile(
        "tdpbssd %tmm6, %tmm4, %tmm0\n tdpbssd %tmm7, %tmm4, %tmm1\n"
        "tdpbssd %tmm6, %tmm5, %tmm2\n tdpbssd %tmm7, %tmm5, %tmm3\n"
        "tdpbssd %tmm6, %tmm4, %tmm0\n tdpbssd %tmm7, %tmm4, %tmm1\n"
        "tdpbssd %tmm6, %tmm5, %tmm2\n tdpbssd %tmm7, %tmm5, %tmm3\n");
  }
  asm volatile("tilerelease");
}

}  // namespace

Int8Roof vnni_roof() {
  return {run_vnni, int64_t{2} * 64 * kNumChains};
}

Int8Roof amx_roof() {
  return {run_amx, int64_t{2} * 16 * 16 * 64 * kNumTileProducts};
}

}  // namespace pare
