// The tile operations of this machine's AMX, for the kernels that are written against `Tiles`: int8_amx_kernels.h and
// bf16_amx_kernels.h. They provide:
//
//   configure(), release()   this thread's 8 tiles as 16 rows x 64 bytes; back to none
//   zero<T>()                tile T = 0
//   load<T>(p, stride)       16 rows of 64 bytes, `stride` bytes apart
//   store<T>(p, stride)
//   dot_int8<C, A, B>()      C[m][n] += sum over i < 64 of A[m][i] * B[i / 4][4 n + i % 4]: int32 += int8 * int8
//   dot_bf16<C, A, B>()      C[m][n] += sum over i < 32 of A[m][i] * B[i / 2][2 n + i % 2]: float32 += bf16 * bf16
//
// Products of bfloat16 are exact, and sums round to nearest. Subnormal operands and results count as zero (Intel SDM
// volume 2, TDPBSSD and TDPBF16PS). tests/runtime/cpu/plain_tiles.h has the same operations as plain loops.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pare::runtime {
namespace {

inline constexpr int kAmxTileRows = 16;
inline constexpr int64_t kAmxTileBytes = 1024;
inline constexpr int64_t kAmxRowBytes = 64;

// Intel SDM volume 1, table 18-1: the palette first; bytes per row from byte 16 on, rows from byte 48 on.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kTileConfig;

// GCC's tile intrinsics are macros that want a literal tile number. They do not tell the compiler which memory they
// touch.
struct MachineTiles {
  static void configure() { asm volatile("ldtilecfg %0" ::"m"(kTileConfig)); }
  static void release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(const void* bytes, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(bytes), "r"(stride) : "memory");
  }
  template <int kTile>
  static void store(void* bytes, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(bytes), "r"(stride) : "memory");
  }
  template <int kSum, int kRows, int kPanelTile>
  static void dot_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kRows), "i"(kPanelTile));
  }
  template <int kSum, int kRows, int kPanelTile>
  static void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kRows), "i"(kPanelTile));
  }
};

// Tiles 0 and 1 become sums of two panels side by side, 16 rows each, and 2 and 3 the next 16 rows if kRowTiles is 2.
// Sums have 4 bytes, and rows lie `stride` of them apart. Null sums are zeros.
template <class Tiles, int kRowTiles, class T>
void load_sums(const T* sums, int64_t stride) {
  constexpr int64_t kPanelSums = kAmxRowBytes / 4;
  if (sums == nullptr) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (kRowTiles == 2) {
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
    return;
  }
  const T* const lower = sums + kAmxTileRows * stride;
  Tiles::template load<0>(sums, stride * 4);
  Tiles::template load<1>(sums + kPanelSums, stride * 4);
  if constexpr (kRowTiles == 2) {
    Tiles::template load<2>(lower, stride * 4);
    Tiles::template load<3>(lower + kPanelSums, stride * 4);
  }
}

// Stores the same tiles.
template <class Tiles, int kRowTiles, class T>
void store_sums(T* sums, int64_t stride) {
  constexpr int64_t kPanelSums = kAmxRowBytes / 4;
  T* const lower = sums + kAmxTileRows * stride;
  Tiles::template store<0>(sums, stride * 4);
  Tiles::template store<1>(sums + kPanelSums, stride * 4);
  if constexpr (kRowTiles == 2) {
    Tiles::template store<2>(lower, stride * 4);
    Tiles::template store<3>(lower + kPanelSums, stride * 4);
  }
}

}  // namespace
}  // namespace pare::runtime
