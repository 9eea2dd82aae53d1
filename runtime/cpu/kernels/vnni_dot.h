// The product of bytes of this machine's AVX-VNNI, for the kernels that are written against `Vnni`:
// int8_avxvnni_kernels.h and digit_avxvnni_kernels.h.
//
//   add(sum, codes, values)  sum[lane] += sum over i < 4 of codes[4 lane + i] * values[4 lane + i]
//                            int32 += uint8 * int8, of 8 lanes
//
// Sums are taken modulo 2^32 and nothing saturates (Intel SDM volume 2, VPDPBUSD). So sums in any order are exact where
// the last one fits int32. tests/runtime/cpu/evex_dot.h has the same instruction of AVX-512.
#pragma once

#include <immintrin.h>

namespace pare::runtime {
namespace {

// The instruction is written out, since GCC 12 copies and spills more sums around its intrinsic. Everything else is
// compiled for AVX2, so that tests by AVX-512's encoding run the same code.
struct MachineVnni {
  static __m256i add(__m256i sum, __m256i codes, __m256i values) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(values));
    return sum;
  }
};

}  // namespace
}  // namespace pare::runtime
