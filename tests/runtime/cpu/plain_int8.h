// Plain loops for 8-bit activations: the oracle for int8_kernels.h. They read codes as a checkpoint holds them, and
// know nothing of panels, strips or tiles.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace pare {

// A linear for plain_int8_multiply, which computes y[r, o] as int8_kernels.h defines it. It does the same float32
// operations in the same order, so the bits are the same. codes_OK are weight codes minus their zero (|value| <= 128).
// group_size, which divides num_k, is that of scales_OG. x_RK has row scales and zeros; without zeros it is symmetric.
// bias_O may be empty. Outliers add outliers_RJ times outlier_weights_OJ; both may be empty. group_scales_RG too: they
// are scales of each group of a row.
struct PlainInt8Linear {
  int64_t num_out, num_k, group_size;
  std::span<const int16_t> codes_OK;
  std::span<const float> scales_OG;
  std::span<const float> bias_O;
  int64_t num_outliers;
  std::span<const float> outlier_weights_OJ;
};
inline void plain_int8_multiply(const PlainInt8Linear& linear, const int8_t* x_RK, int64_t x_stride,
                                std::span<const float> scales_R, std::span<const int32_t> zeros_R,
                                std::span<const float> outliers_RJ, float* y_RO, int64_t y_stride,
                                std::span<const float> group_scales_RG = {}) {
  const int64_t num_groups = linear.num_k / linear.group_size;
  for (int64_t r = 0; r < static_cast<int64_t>(scales_R.size()); ++r) {
    const int32_t zero = zeros_R.empty() ? 0 : zeros_R[r];
    for (int64_t o = 0; o < linear.num_out; ++o) {
      float total = 0.0f;
      for (int64_t g = 0; g < num_groups; ++g) {
        int32_t sum = 0;
        for (int64_t k = g * linear.group_size; k < (g + 1) * linear.group_size; ++k) {
          sum += (x_RK[r * x_stride + k] - zero) * linear.codes_OK[o * linear.num_k + k];
        }
        float scale = linear.scales_OG[o * num_groups + g];
        if (!group_scales_RG.empty()) scale *= group_scales_RG[r * num_groups + g];
        total = std::fma(static_cast<float>(sum), scale, total);
      }
      float start = linear.bias_O.empty() ? 0.0f : linear.bias_O[o];
      for (int64_t j = 0; j < linear.num_outliers; ++j) {
        start = std::fma(outliers_RJ[r * linear.num_outliers + j],
                         linear.outlier_weights_OJ[o * linear.num_outliers + j], start);
      }
      y_RO[r * y_stride + o] = std::fma(total, scales_R[r], start);
    }
  }
}

}  // namespace pare
