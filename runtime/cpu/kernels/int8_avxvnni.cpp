// The avxvnni path of int8_kernels.h on this machine's AVX-VNNI.
#include "runtime/cpu/kernels/int8_avxvnni_kernels.h"
#include "runtime/cpu/kernels/vnni_dot.h"

namespace pare::runtime {

const Int8Kernels& int8_kernels_avxvnni() {
  static const Int8Kernels kernels = make_avxvnni_kernels<MachineVnni>();
  return kernels;
}

}  // namespace pare::runtime
