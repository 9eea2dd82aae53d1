// The amx path's strips and tiles of 8-bit codes, written against the tile operations of amx_tiles.h.
//
// TILE. 32 rows x 2 panels: tiles 0..3 hold the sums, 4 and 5 the rows, 6 and 7 the panels. That makes four products
// for four loads. A strip is a run of blocks of 64 positions, with one tile of 1 KiB per 16 rows. A panel's 16 lines of
// 4 positions already have the layout of a tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/cpu/kernels/amx_tiles.h"
#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

inline void pack_amx_strip(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t padded_k,
                           uint8_t* strip) {
  const int64_t padded_rows = num_rows <= kAmxTileRows ? kAmxTileRows : 2 * kAmxTileRows;
  for (int64_t k = 0; k < padded_k; k += kAmxRowBytes) {
    const int64_t count = num_k - k < kAmxRowBytes ? num_k - k : kAmxRowBytes;
    for (int64_t r = 0; r < padded_rows; ++r, strip += kAmxRowBytes) {
      const int64_t used = r < num_rows && count > 0 ? count : 0;
      if (used == kAmxRowBytes) {
        std::memcpy(strip, codes + r * stride + k, kAmxRowBytes);
      } else {
        if (used > 0) std::memcpy(strip, codes + r * stride + k, used);
        std::memset(strip + used, 0, kAmxRowBytes - used);
      }
    }
  }
}

// kRowTiles is 1 or 2, for up to 16 or 32 rows.
template <class Tiles, int kRowTiles>
void amx_tile(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate, const int32_t*,
              int32_t* acc, int64_t acc_stride) {
  load_sums<Tiles, kRowTiles>(accumulate ? acc : nullptr, acc_stride);
  const uint8_t* const panel_0 = panels[0];
  const uint8_t* const panel_1 = panels[1];
  for (int64_t byte = 0; byte < num_k * 16; byte += kAmxTileBytes) {
    Tiles::template load<6>(panel_0 + byte, kAmxRowBytes);
    Tiles::template load<4>(strip, kAmxRowBytes);
    Tiles::template load<7>(panel_1 + byte, kAmxRowBytes);
    Tiles::template dot_int8<0, 4, 6>();
    Tiles::template dot_int8<1, 4, 7>();
    if constexpr (kRowTiles == 2) {
      Tiles::template load<5>(strip + kAmxTileBytes, kAmxRowBytes);
      Tiles::template dot_int8<2, 5, 6>();
      Tiles::template dot_int8<3, 5, 7>();
    }
    strip += kRowTiles * kAmxTileBytes;
  }
  store_sums<Tiles, kRowTiles>(acc, acc_stride);
}

template <class Tiles, int kRowTiles>
void amx_groups(const Int8Groups& groups) {
  constexpr int64_t kOuts = 2 * kPanel;
  alignas(64) int32_t sums[kInt8GroupsAtOnce * kMaxInt8TileRows * kOuts];
  const uint8_t* panels[2] = {groups.panels[0], groups.panels[1]};
  const uint8_t* strip = groups.strip;
  for (int64_t first = 0; first < groups.num_groups; first += kInt8GroupsAtOnce) {
    const int64_t left = groups.num_groups - first, count = left < kInt8GroupsAtOnce ? left : kInt8GroupsAtOnce;
    for (int64_t i = 0; i < count; ++i) {
      amx_tile<Tiles, kRowTiles>(strip, panels, groups.num_k, false, nullptr, sums + i * kMaxInt8TileRows * kOuts,
                                 kOuts);
      strip += groups.num_k * kRowTiles * kAmxTileRows;
      for (const uint8_t*& panel : panels) panel += groups.num_k * kPanel;
    }
    add_int8_groups(groups, sums, first, count);
  }
}

// Makes the amx path from another path's kernels, which serve few rows, widening and finishing.
template <class Tiles>
Int8Kernels make_amx_kernels(const Int8Kernels& base) {
  Int8Kernels kernels = base;
  kernels.name = "amx";
  Int8Tiles tiles{};
  tiles.strip_offset = 0;
  tiles.rows = 2 * kAmxTileRows;
  tiles.panels = 2;
  tiles.strip_unit_rows = kAmxTileRows;
  tiles.k_unit = kAmxRowBytes;
  tiles.strip_k_bytes = 1;
  tiles.block_k = 512;
  tiles.strip = pack_amx_strip;
  for (int rows = 0; rows < 2 * kAmxTileRows; ++rows) {
    tiles.tile[rows] = rows < kAmxTileRows ? amx_tile<Tiles, 1> : amx_tile<Tiles, 2>;
    tiles.groups[rows] = rows < kAmxTileRows ? amx_groups<Tiles, 1> : amx_groups<Tiles, 2>;
  }
  kernels.tiles_int8 = kernels.tiles_int4 = tiles;
  kernels.begin_task = Tiles::configure;
  kernels.end_task = Tiles::release;
  return kernels;
}

}  // namespace
}  // namespace pare::runtime
