// CpuPackedLinear without instructions that multiply bfloat16 (bf16_linear.cpp): many rows are multiplied by FMAs.
#include <stdexcept>

#include "runtime/cpu/packed_linear.h"

namespace pare::runtime {

void CpuPackedLinear::choose_bf16_kernels(Isa /*isa*/) {}

void CpuPackedLinear::gemm_bf16(const float* /*x_RI*/, int64_t /*num_rows*/, const PanelRange& /*range*/, float* /*y*/,
                                int64_t /*y_stride*/) const {
  throw std::logic_error("products of parts in bfloat16 are for x86-64");
}

}  // namespace pare::runtime
