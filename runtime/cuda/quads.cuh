// Four neighbouring values of a row at once: 16 bytes if they begin at a multiple of 16, otherwise one by one. Values
// after the row's end read as 0 and are not written.
#pragma once

#include "runtime/cuda/device.cuh"

namespace pare::runtime {

inline constexpr int kQuad = 4;

struct alignas(16) Quad {
  float at[kQuad];
};

// All threads of a block go through the quads of a row: for (i = first_quad(); i < width; i += quad_step()).
__device__ inline int64_t first_quad() {
  return static_cast<int64_t>(threadIdx.x) * kQuad;
}
__device__ inline int64_t quad_step() {
  return static_cast<int64_t>(blockDim.x) * kQuad;
}

__device__ inline bool is_whole_quad(const float* row_I, int64_t i, int64_t width) {
  return i + kQuad <= width && reinterpret_cast<uintptr_t>(row_I + i) % sizeof(Quad) == 0;
}

__device__ inline Quad load_quad(const float* row_I, int64_t i, int64_t width) {
  if (is_whole_quad(row_I, i, width)) return *reinterpret_cast<const Quad*>(row_I + i);
  Quad quad = {};
  for (int n = 0; n < kQuad; ++n) {
    if (i + n < width) quad.at[n] = row_I[i + n];
  }
  return quad;
}

__device__ inline void store_quad(float* row_I, int64_t i, int64_t width, const Quad& quad) {
  if (is_whole_quad(row_I, i, width)) {
    *reinterpret_cast<Quad*>(row_I + i) = quad;
    return;
  }
  for (int n = 0; n < kQuad; ++n) {
    if (i + n < width) row_I[i + n] = quad.at[n];
  }
}

}  // namespace pare::runtime
