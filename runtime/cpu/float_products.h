// Products of float32 matrices that lie in memory as they are, by the register tiles of prefill: the forward passes of
// calibration, and its sums over tokens. (A model that runs has its weights packed: packed_linear.h.)
//
// LibTorch's MKL has 512-bit kernels for Intel's processors alone. On a Zen 4 it multiplies at 0.75 to 0.85 of the FMA
// roof, and this at 0.89 to 0.93.
#pragma once

#include <cstdint>

#include "runtime/system/isa.h"

namespace pare::runtime {

// A matrix [N, K]: element (n, k) is data[n * n_stride + k * k_stride]. One of the strides is 1.
struct FloatMatrix {
  const float* data;
  int64_t num_n;
  int64_t n_stride;
  int64_t k_stride;
};

// result[m * stride + n] = bias[n] + sum over k of left(m, k) * right(n, k), for m < M and n < N, the rows of left and
// right.
struct FloatProduct {
  FloatMatrix left_MK, right_NK;
  int64_t num_k;
  float* result_MN;
  int64_t result_stride;
  const float* bias_N = nullptr;
  // For a symmetric result: elements with n < m need not be written.
  bool is_upper = false;
};

// Sums are float32 FMAs in ascending k, in blocks that follow from num_k alone, so neither the other rows and columns
// nor the number of threads change a bit. Inside a parallel region the calling thread works alone. The CPU has `isa`.
// Throws std::invalid_argument for a matrix whose strides are both above 1, and std::bad_alloc.
void multiply_floats(Isa isa, const FloatProduct& product, int num_threads);

}  // namespace pare::runtime
