// The amx path of int8_kernels.h on the machine's tiles; int8_amx_kernels.h has the kernels.
#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/int8_amx_kernels.h"

namespace pare::runtime {
namespace {

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
};

}  // namespace

const Int8Kernels& int8_kernels_amx() {
  static const Int8Kernels kernels = make_amx_kernels<MachineTiles>(int8_kernels_vnni());
  return kernels;
}

}  // namespace pare::runtime
