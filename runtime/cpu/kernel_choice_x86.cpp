// The kernels of each instruction set of x86-64.
#include "runtime/cpu/int8_rows.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare::runtime {
namespace {

bool is_wide(Isa isa) {
  return float_isa(isa) == Isa::avx512;
}

}  // namespace

const OpKernels& op_kernels(Isa isa) {
  return is_wide(isa) ? op_kernels_avx512() : op_kernels_avx2();
}

const LinearKernels& linear_kernels(Isa isa) {
  return is_wide(isa) ? linear_kernels_avx512() : linear_kernels_avx2();
}

const ColumnKernels& column_kernels(Isa isa) {
  return is_wide(isa) ? column_kernels_avx512() : column_kernels_avx2();
}

const RoofKernels& roof_kernels(Isa isa) {
  return is_wide(isa) ? roof_kernels_avx512() : roof_kernels_avx2();
}

const DigitKernels* digit_kernels(Isa isa) {
  if (isa >= Isa::vnni) return &digit_kernels_vnni();
  if (isa == Isa::avxvnni) return &digit_kernels_avxvnni();
  return isa == Isa::avx2 ? &digit_kernels_avx2() : nullptr;
}

// AMX multiplies parts of all inputs and weights. AVX512-BF16 pays where both have one.
const Bf16Kernels* bf16_kernels(Isa isa, bool is_one_part) {
  if (isa == Isa::amx) return &bf16_kernels_amx();
  return isa == Isa::avx512bf16 && is_one_part ? &bf16_kernels_avx512bf16() : nullptr;
}

const Int8RowKernels& int8_row_kernels(Isa isa) {
  return is_wide(isa) ? int8_row_kernels_avx512() : int8_row_kernels_avx2();
}

const Int8Kernels& int8_kernels(Isa isa) {
  require_isa(isa);
  if (isa == Isa::amx) return int8_kernels_amx();
  if (isa >= Isa::vnni) return int8_kernels_vnni();
  return isa == Isa::avxvnni ? int8_kernels_avxvnni() : int8_kernels_avx2();
}

}  // namespace pare::runtime
