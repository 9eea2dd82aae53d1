// What avxvnni_by_evex.cpp says of products of codes, for decode by digits.
#include "runtime/cpu/kernels/digit_avxvnni_kernels.h"
#include "tests/runtime/cpu/evex_dot.h"

namespace pare::runtime {

const DigitKernels& digit_kernels_avxvnni() {
  static const DigitKernels kernels = make_avxvnni_digit_kernels<EvexVnni>();
  return kernels;
}

}  // namespace pare::runtime
