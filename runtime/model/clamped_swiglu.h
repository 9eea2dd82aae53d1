// The constants of Activation::clamped_swiglu, apart from all else: kernels for sets of instructions include them.
#pragma once

namespace pare::runtime {

inline constexpr float kSwigluLimit = 7.0f, kSwigluSlope = 1.702f;

}  // namespace pare::runtime
