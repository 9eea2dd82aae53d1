// The amx path of int8_kernels.h on the machine's tiles; int8_amx_kernels.h has the kernels.
#include "runtime/cpu/kernels/amx_tiles.h"
#include "runtime/cpu/kernels/int8_amx_kernels.h"

namespace pare::runtime {

const Int8Kernels& int8_kernels_amx() {
  static const Int8Kernels kernels = make_amx_kernels<MachineTiles>(int8_kernels_vnni());
  return kernels;
}

}  // namespace pare::runtime
