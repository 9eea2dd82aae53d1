// The dotprod path of int8_kernels.h; int8_neon_kernels.h has the kernels.
#include "runtime/cpu/kernels/int8_neon_kernels.h"

namespace pare::runtime {
namespace {

struct SignedDot {
  static int32x4_t add(int32x4_t sum, int8x16_t weights, int8x16_t x) { return vdotq_s32(sum, weights, x); }
  template <int kLane>
  static int32x4_t add_lane(int32x4_t sum, int8x16_t weights, int8x16_t x) {
    return vdotq_laneq_s32(sum, weights, x, kLane);
  }
};

}  // namespace

const Int8Kernels& int8_kernels_dotprod() {
  static const Int8Kernels kernels = make_kernels<SignedDot>("dotprod");
  return kernels;
}

}  // namespace pare::runtime
