// The amx path of bf16_kernels.h on the machine's tiles; bf16_amx_kernels.h has the kernels.
#include "runtime/cpu/kernels/amx_tiles.h"
#include "runtime/cpu/kernels/bf16_amx_kernels.h"

namespace pare::runtime {

const Bf16Kernels& bf16_kernels_amx() {
  static const Bf16Kernels kernels = make_bf16_amx_kernels<MachineTiles>();
  return kernels;
}

}  // namespace pare::runtime
