// The one place that says which kernels an instruction set has. Each architecture has a file of its own, and the build
// chooses between them. int8_kernels.h and int8_rows.h declare the choice of theirs.
#pragma once

#include "runtime/cpu/kernels/bf16_kernels.h"
#include "runtime/cpu/kernels/digit_kernels.h"
#include "runtime/cpu/kernels/linear_kernels.h"
#include "runtime/cpu/kernels/roof_kernels.h"
#include "runtime/cpu/ops.h"
#include "runtime/system/isa.h"

namespace pare::runtime {

// The CPU has `isa`: these do not ask. All tables live as long as the program.
const OpKernels& op_kernels(Isa isa);
const LinearKernels& linear_kernels(Isa isa);
const ColumnKernels& column_kernels(Isa isa);
const RoofKernels& roof_kernels(Isa isa);

// Returns null if decode of few bits multiplies in float32.
const DigitKernels* digit_kernels(Isa isa);

// Returns the kernels that multiply parts of inputs and weights in bfloat16, or null if many rows are multiplied by
// FMAs. is_one_part: inputs and weights have one part each.
const Bf16Kernels* bf16_kernels(Isa isa, bool is_one_part);

}  // namespace pare::runtime
