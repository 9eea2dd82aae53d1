// The kernels of each instruction set of AArch64.
#include "runtime/cpu/int8_rows.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {

const OpKernels& op_kernels(Isa /*isa*/) {
  return op_kernels_neon();
}

const LinearKernels& linear_kernels(Isa /*isa*/) {
  return linear_kernels_neon();
}

const ColumnKernels& column_kernels(Isa /*isa*/) {
  return column_kernels_neon();
}

const RoofKernels& roof_kernels(Isa /*isa*/) {
  return roof_kernels_neon();
}

const DigitKernels* digit_kernels(Isa isa) {
  return isa >= Isa::dotprod ? &digit_kernels_dotprod() : nullptr;
}

const Bf16Kernels* bf16_kernels(Isa /*isa*/, bool /*is_one_part*/) {
  return nullptr;
}

const Int8RowKernels& int8_row_kernels(Isa /*isa*/) {
  return int8_row_kernels_neon();
}

const Int8Kernels& int8_kernels(Isa isa) {
  require_isa(isa);
  return isa == Isa::i8mm ? int8_kernels_i8mm() : isa == Isa::dotprod ? int8_kernels_dotprod() : int8_kernels_neon();
}

}  // namespace pare::runtime
