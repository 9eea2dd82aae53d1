// The AVX512-BF16 path of bf16_kernels.h, for inputs and weights of one part.
//
// TILE. 8 rows x 2 panels, from the memory of a strip's tiles: one broadcast of a pair of inputs for two products. With
// groups it is 4 rows, whose sums and totals both stay in registers. On a Zen 4 that does one vdpbf16ps per cycle, as
// many as FMAs and twice their products, 8 x 2 reaches 95 % of it in blocks of 192 positions. Three parts of an input
// take 1.5 times the FMAs of float32, so exact inputs have no kernels here.
//
// vdpbf16ps adds a pair's products one after the other, rounds to nearest even, and counts subnormal operands and
// results as zero (Intel SDM volume 2, VDPBF16PS).
//
// Oracle: tests/runtime/engine/activation_mode_test.cpp (plain loops in double).

// GCC 12's _mm512_undefined_*() read themselves on purpose and warn wherever they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/cpu/kernels/bf16_kernels.h"

namespace pare::runtime {
namespace {

constexpr int kRowsAtOnce = 8;
constexpr int kRowsOfGroups = 4;
constexpr int kPairs = kBf16TileK / 2;
constexpr int64_t kLineBytes = 64;  // of a row in a strip's tile, and of a pair of positions in a panel's

template <int kRows>
struct Sums {
  __m512 of[kRows][kBf16TilePanels];
};

inline __m512bh pair_of(const uint8_t* bytes) {
  int32_t pair = 0;
  std::memcpy(&pair, bytes, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

inline __m512bh line_of(const uint8_t* bytes) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(bytes));
}

// Adds the products of 32 positions. x is the first row's line of the strip's tile.
template <int kRows>
inline void add_tile(const uint8_t* x, const uint8_t* panel_0, const uint8_t* panel_1, Sums<kRows>& sums) {
#pragma GCC unroll 4
  for (int pair = 0; pair < kPairs; ++pair) {
    const __m512bh w_0 = line_of(panel_0 + pair * kLineBytes);
    const __m512bh w_1 = line_of(panel_1 + pair * kLineBytes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x_r = pair_of(x + r * kLineBytes + pair * 4);
      sums.of[r][0] = _mm512_dpbf16_ps(sums.of[r][0], x_r, w_0);
      sums.of[r][1] = _mm512_dpbf16_ps(sums.of[r][1], x_r, w_1);
    }
  }
}

template <int kRows>
inline void load(const float* start, int64_t stride, Sums<kRows>& sums) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    sums.of[r][0] = start == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(start + r * stride);
    sums.of[r][1] = start == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(start + r * stride + kPanel);
  }
}

template <int kRows>
inline void store(const Sums<kRows>& sums, float* dst, int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(dst + r * stride, sums.of[r][0]);
    _mm512_storeu_ps(dst + r * stride + kPanel, sums.of[r][1]);
  }
}

// kStripRows is 16 or 32.
template <int kStripRows>
void multiply(const uint8_t* strip, const Bf16Panels& weights, int64_t num_tiles, const float* start,
              int64_t start_stride, float* dst, int64_t dst_stride) {
  for (int row = 0; row < kStripRows; row += kRowsAtOnce) {
    Sums<kRowsAtOnce> sums;
    load(start == nullptr ? nullptr : start + row * start_stride, start_stride, sums);
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      add_tile(strip + (tile * kStripRows + row) * kLineBytes, weights.panels[0] + tile * kBf16TileBytes,
               weights.panels[1] + tile * kBf16TileBytes, sums);
    }
    store(sums, dst + row * dst_stride, dst_stride);
  }
}

template <int kStripRows>
void multiply_groups(const uint8_t* strip, const Bf16Panels& weights, int64_t group_tiles, int64_t num_groups,
                     const float* scales, const float* start, int64_t start_stride, float* dst, int64_t dst_stride) {
  for (int row = 0; row < kStripRows; row += kRowsOfGroups) {
    Sums<kRowsOfGroups> totals;
    load(start + row * start_stride, start_stride, totals);
    const uint8_t* x = strip + row * kLineBytes;
    const uint8_t* panel_0 = weights.panels[0];
    const uint8_t* panel_1 = weights.panels[1];
    for (int64_t group = 0; group < num_groups; ++group) {
      Sums<kRowsOfGroups> sums;
      load(nullptr, 0, sums);
      for (int64_t tile = 0; tile < group_tiles; ++tile) {
        add_tile(x, panel_0, panel_1, sums);
        x += kStripRows * kLineBytes;
        panel_0 += kBf16TileBytes;
        panel_1 += kBf16TileBytes;
      }
      const __m512 scale_0 = _mm512_loadu_ps(scales + group * kBf16TilePanels * kPanel);
      const __m512 scale_1 = _mm512_loadu_ps(scales + group * kBf16TilePanels * kPanel + kPanel);
#pragma GCC unroll 4
      for (int r = 0; r < kRowsOfGroups; ++r) {
        totals.of[r][0] = _mm512_fmadd_ps(scale_0, sums.of[r][0], totals.of[r][0]);
        totals.of[r][1] = _mm512_fmadd_ps(scale_1, sums.of[r][1], totals.of[r][1]);
      }
    }
    store(totals, dst + row * dst_stride, dst_stride);
  }
}

}  // namespace

const Bf16Kernels& bf16_kernels_avx512bf16() {
  static const Bf16Kernels kernels = [] {
    Bf16Kernels made{};
    made.multiply_rounded[0][0] = multiply<16>;
    made.multiply_rounded[1][0] = multiply<32>;
    made.rounded_groups[0] = multiply_groups<16>;
    made.rounded_groups[1] = multiply_groups<32>;
    return made;
  }();
  return kernels;
}

}  // namespace pare::runtime
