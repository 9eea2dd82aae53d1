#include "runtime/cpu/kernels/simd_neon.h"

namespace pare::runtime {
namespace {

inline void store_codes(int8_t* codes, Vec value) {
  const int16x8_t shorts = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(value.low)), vqmovn_s32(vcvtnq_s32_f32(value.high)));
  vst1_s8(codes, vqmovn_s16(shorts));
}

inline float32x4_t power_below(float32x4_t v) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7F800000)));
}
// Returns the power of two at or below a positive normal number.
inline Vec power_below(Vec v) {
  return {power_below(v.low), power_below(v.high)};
}

}  // namespace
}  // namespace pare::runtime

#include "runtime/cpu/kernels/int8_rows_kernels.h"

namespace pare::runtime {

const Int8RowKernels& int8_row_kernels_neon() {
  return kRowKernels;
}

}  // namespace pare::runtime
