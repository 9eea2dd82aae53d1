// The product of bytes of vnni_dot.h by the same instruction of AVX-512, in its encoding (EVEX) for 256-bit registers.
// So the avxvnni path's source runs on a CPU that has AVX-512 with VNNI and no AVX-VNNI.
//
// All else is compiled for AVX2 there and here: with 16 registers, and without what AVX-512 would let the compiler use.
// A file that includes this runs anywhere until it multiplies.
#pragma once

#include <immintrin.h>

namespace pare {

struct EvexVnni {
  static bool is_there() { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl"); }
  static __m256i add(__m256i sum, __m256i codes, __m256i values) {
    asm("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(values));
    return sum;
  }
};

}  // namespace pare
