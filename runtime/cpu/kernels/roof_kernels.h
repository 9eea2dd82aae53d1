// The measured loops of roof.cpp, one set per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pare::runtime {

struct RoofKernels {
  // Runs num_rounds rounds of flops_per_round floating-point operations in registers. Returns a value that depends on
  // all.
  float (*multiply)(int64_t num_rounds);
  int64_t flops_per_round;
  // Reads num_bytes (a multiple of 1024, 64-byte aligned) in four streams. Returns a value that depends on every byte.
  uint64_t (*read)(const uint8_t* bytes, int64_t num_bytes);
};

const RoofKernels& roof_kernels_avx2();
const RoofKernels& roof_kernels_avx512();
const RoofKernels& roof_kernels_neon();

}  // namespace pare::runtime
