// Lets the program that it is linked into act as on a CPU with AMX, with the tiles of plain_tiles.h. These definitions
// take precedence over the library's. Everything above the tile operations is the real code.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/cpu/kernels/bf16_amx_kernels.h"
#include "runtime/cpu/kernels/int8_amx_kernels.h"
#include "runtime/system/amx.h"
#include "runtime/system/isa.h"
#include "tests/runtime/cpu/plain_tiles.h"

namespace pare {
namespace runtime {

bool request_amx() {
  return true;
}

const Int8Kernels& int8_kernels_amx() {
  static const Int8Kernels kernels = make_amx_kernels<PlainTiles>(int8_kernels_vnni());
  return kernels;
}

const Bf16Kernels& bf16_kernels_amx() {
  static const Bf16Kernels kernels = make_bf16_amx_kernels<PlainTiles>();
  return kernels;
}

}  // namespace runtime

using namespace runtime;
namespace {

TEST(AmxOnPlainTiles, IsWhatThisProgramMultipliesWith) {
  if (!supports_isa(Isa::vnni)) GTEST_SKIP() << "below the tiles, the amx path needs VNNI, and PARE_ISA may say no";
  if (std::getenv(kIsaVariable) == nullptr) {
    EXPECT_TRUE(supports_isa(Isa::amx)) << "request_amx() is not this program's";
  }
  EXPECT_EQ(int8_kernels(Isa::amx).begin_task, &PlainTiles::configure);
  EXPECT_EQ(bf16_kernels_amx().begin_task, &PlainTiles::configure);
}

}  // namespace
}  // namespace pare
