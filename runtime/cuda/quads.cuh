// Four neighbouring values of a row at once: 16 bytes where they begin at a multiple of 16, else one by one. What lies
// behind the row's end reads as 0 and is not written.
#pragma once

#include "runtime/cuda/device.cuh"

namespace pare {

inline constexpr int kQuad = 4;

struct alignas(16) Quad {
  float at[kQuad];
};

// The quads of a row by all threads of a block: for (i = first_quad(); i < width; i += quad_step()).
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

}  // namespace pare
