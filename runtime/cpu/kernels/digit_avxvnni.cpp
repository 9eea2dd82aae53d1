// The avxvnni path of digit_kernels.h on this machine's AVX-VNNI.
#include "runtime/cpu/kernels/digit_avxvnni_kernels.h"
#include "runtime/cpu/kernels/vnni_dot.h"

namespace pare::runtime {

const DigitKernels& digit_kernels_avxvnni() {
  static const DigitKernels kernels = make_avxvnni_digit_kernels<MachineVnni>();
  return kernels;
}

}  // namespace pare::runtime
