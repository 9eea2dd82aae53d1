// Plain loops for 8-bit activations: the oracle of int8_kernels.h and int8_quantize.h, and what a reference backend
// computes with. They read codes as they stand in a checkpoint and know nothing of panels, strips or tiles.
#pragma once

#include <cstdint>
#include <span>

namespace pare {

// y[r, o] as int8_kernels.h defines it, with the same float32 operations in the same order: the same bits.
// codes_OK: weight codes minus their zero (|value| <= 128); scales_OG; group_size divides num_k. x_RK with row scales
// and zeros (empty: symmetric). bias_O may be empty. Outliers: outliers_RJ times outlier_weights_OJ, both may be empty.
struct PlainInt8Linear {
  int64_t num_out, num_k, group_size;
  std::span<const int16_t> codes_OK;
  std::span<const float> scales_OG;
  std::span<const float> bias_O;
  int64_t num_outliers;
  std::span<const float> outlier_weights_OJ;
};
void plain_int8_multiply(const PlainInt8Linear& linear, const int8_t* x_RK, int64_t x_stride,
                         std::span<const float> scales_R, std::span<const int32_t> zeros_R,
                         std::span<const float> outliers_RJ, float* y_RO, int64_t y_stride);

}  // namespace pare
