#include "runtime/cpu/kernels/simd_avx2.h"

namespace pare::runtime {
namespace {

inline void store_codes(int8_t* codes, Vec value) {
  const __m256i ints = _mm256_cvtps_epi32(value);
  const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm_packs_epi16(shorts, shorts));
}

// Returns the power of two at or below a positive normal number.
inline Vec power_below(Vec v) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000)));
}

}  // namespace
}  // namespace pare::runtime

#include "runtime/cpu/kernels/int8_rows_kernels.h"

namespace pare::runtime {

const Int8RowKernels& int8_row_kernels_avx2() {
  return kRowKernels;
}

}  // namespace pare::runtime
