#include "runtime/cpu/kernels/simd_avx512.h"

namespace pare::runtime {
namespace {

inline void store_codes(int8_t* codes, Vec value) {
  _mm512_mask_cvtepi32_storeu_epi8(codes, kAll, _mm512_maskz_cvtps_epi32(kAll, value));
}

// Returns the power of two at or below a positive normal number.
inline Vec power_below(Vec v) {
  return _mm512_and_ps(v, _mm512_castsi512_ps(_mm512_set1_epi32(0x7F800000)));
}

}  // namespace
}  // namespace pare::runtime

#include "runtime/cpu/kernels/int8_rows_kernels.h"

namespace pare::runtime {

const Int8RowKernels& int8_row_kernels_avx512() {
  return kRowKernels;
}

}  // namespace pare::runtime
