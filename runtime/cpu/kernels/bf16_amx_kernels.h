// The amx path of bf16_kernels.h, written against the tile operations of amx_tiles.h.
//
// TILE. 32 rows x 2 panels: tiles 0..3 hold the sums, 4 and 5 the rows of one part, 6 and 7 the panels of one part.
// With weights of one part that makes twelve products for eight loads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/amx_tiles.h"
#include "runtime/cpu/kernels/bf16_kernels.h"

namespace pare::runtime {
namespace {

// kRowTiles is 1 or 2, for up to 16 or 32 rows.
template <class Tiles, int kRowTiles, int kParts, int kPartsOfInput = kInputParts>
void bf16_amx_tile(const uint8_t* strip, const Bf16Panels& weights, int64_t num_tiles, const float* start,
                   int64_t start_stride, float* sums, int64_t sums_stride) {
  constexpr int64_t kPartBytes = kRowTiles * kAmxTileBytes;  // of a strip's 32 positions
  load_sums<Tiles, kRowTiles>(start, start_stride);
  const uint8_t* panel_0 = weights.panels[0];
  const uint8_t* panel_1 = weights.panels[1];
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part) {
      Tiles::template load<6>(panel_0 + part * weights.part_bytes, kAmxRowBytes);
      Tiles::template load<7>(panel_1 + part * weights.part_bytes, kAmxRowBytes);
#pragma GCC unroll 3
      for (int input_part = 0; input_part < (kPartsOfInput == 1 ? 1 : kPartsOfInput - part); ++input_part) {
        Tiles::template load<4>(strip + input_part * kPartBytes, kAmxRowBytes);
        Tiles::template dot_bf16<0, 4, 6>();
        Tiles::template dot_bf16<1, 4, 7>();
        if constexpr (kRowTiles == 2) {
          Tiles::template load<5>(strip + input_part * kPartBytes + kAmxTileBytes, kAmxRowBytes);
          Tiles::template dot_bf16<2, 5, 6>();
          Tiles::template dot_bf16<3, 5, 7>();
        }
      }
    }
    panel_0 += kAmxTileBytes;
    panel_1 += kAmxTileBytes;
    strip += kPartsOfInput * kPartBytes;
  }
  store_sums<Tiles, kRowTiles>(sums, sums_stride);
}

// Four products of tiles. Their values do not matter.
template <class Tiles>
void bf16_amx_roof(int64_t num_rounds) {
  for (int64_t round = 0; round < num_rounds; ++round) {
    Tiles::template dot_bf16<0, 4, 6>();
    Tiles::template dot_bf16<1, 4, 7>();
    Tiles::template dot_bf16<2, 5, 6>();
    Tiles::template dot_bf16<3, 5, 7>();
  }
}

template <class Tiles>
Bf16Kernels make_bf16_amx_kernels() {
  return {{{bf16_amx_tile<Tiles, 1, 1>, bf16_amx_tile<Tiles, 1, 2>, bf16_amx_tile<Tiles, 1, 3>},
           {bf16_amx_tile<Tiles, 2, 1>, bf16_amx_tile<Tiles, 2, 2>, bf16_amx_tile<Tiles, 2, 3>}},
          {{bf16_amx_tile<Tiles, 1, 1, 1>, bf16_amx_tile<Tiles, 1, 2, 1>, bf16_amx_tile<Tiles, 1, 3, 1>},
           {bf16_amx_tile<Tiles, 2, 1, 1>, bf16_amx_tile<Tiles, 2, 2, 1>, bf16_amx_tile<Tiles, 2, 3, 1>}},
          {},
          Tiles::configure,
          Tiles::release,
          bf16_amx_roof<Tiles>,
          4 * 2 * kAmxTileRows * 16 * kBf16TileK / kInputParts};
}

}  // namespace
}  // namespace pare::runtime
