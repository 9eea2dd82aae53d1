// The neon path of int8_kernels.h; int8_neon_kernels.h has the kernels.
#include "runtime/cpu/kernels/int8_neon_kernels.h"

namespace pare::runtime {
namespace {

// Products of bytes fit 16 bits, and pairs of them 32.
struct WidenedDot {
  static int32x4_t add(int32x4_t sum, int8x16_t weights, int8x16_t x) {
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(weights, x));
    return sum + vpaddq_s32(low, high);
  }
  template <int kLane>
  static int32x4_t add_lane(int32x4_t sum, int8x16_t weights, int8x16_t x) {
    return add(sum, weights, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), kLane)));
  }
};

}  // namespace

const Int8Kernels& int8_kernels_neon() {
  static const Int8Kernels kernels = make_kernels<WidenedDot>("neon");
  return kernels;
}

}  // namespace pare::runtime
