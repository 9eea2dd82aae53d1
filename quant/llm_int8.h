// LLM.int8 (Dettmers et al., arXiv 2208.07339). A few input channels carry values far beyond the others and stay in
// floating point. All others are multiplied in int8, with one scale per output row (weights) and per token (inputs):
//   Y = X_o W_o^T + (c_x c_w^T / 127^2) . (int8(X_r) int8(W_r)^T),  section 3.2, equation 8.
// Here o are the outlier columns, r are the others, and c is the row-wise absmax of X_r and W_r. This file chooses o
// from the calibration and makes the weights of both parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quant/options.h"
#include "runtime/format/linear_weights.h"

namespace pare::quant {

// With this share of outlier columns or more, an absolute threshold has missed the layer's scale. The paper's models
// need less than 0.1 %, and past a quarter the 16-bit part costs more than int8 saves.
inline constexpr double kManyOutliers = 0.25;
// The relative threshold that such an event proposes: channels this many times as large as the layer's median channel
// are outliers.
inline constexpr double kProposedMultiple = 20.0;

struct OutlierChoice {
  std::vector<int32_t> columns;  // ascending
  double threshold = 0.0;        // in the units of the inputs, for every measure
  double share = 0.0;            // the number of columns / I
  std::string event;             // not empty: an absolute threshold chose kManyOutliers or more
};

// Chooses the outlier columns. absmax_I, float32 [I], is max|X_j| over all calibration tokens. mean_square_I, float32
// [I], is the mean of X_j^2, which is the Hessian's diagonal. Only OutlierMeasure::rms reads it; otherwise it may be
// undefined. The median of an even number of channels is the mean of the middle two. A channel that is always 0 is
// never an outlier.
// Throws std::invalid_argument for a threshold that is not positive, for shapes, and for statistics that are negative
// or not finite.
OutlierChoice choose_outliers(const at::Tensor& absmax_I, const at::Tensor& mean_square_I,
                              const LlmInt8Options& options);

struct LlmInt8Weight {
  runtime::QuantizedWeight weight;  // 8 bits, symmetric, per channel, F32 scales absmax_O / 127, codes 128 + (-127 ..
                                    // 127). Own layout: outlier columns have code 128, which is 0
  std::vector<float> absmax_O;      // the row's largest |w| among the columns in int8 (bitsandbytes' SCB); a row of
                                    // zeros has 0 and the scale 1
  std::vector<int32_t> columns;     // own layout: the outlier columns, ascending; bitsandbytes: empty
  at::Tensor outlier_weight_OK;     // own layout: float32 [O, K], W's outlier columns as they are; else undefined
};

// Quantizes weight_OI, float32 [O, I]. outlier_columns ascend, each in 0 .. I-1. The bitsandbytes layout quantizes
// outlier columns like all others, and multiplies outliers with dequantized columns. Codes are round(w * (127 /
// absmax)) in float32, half to even. The bitsandbytes layout rounds w to float16 first, as that library does.
// Throws std::invalid_argument for shapes, columns, and values that are not finite or, for bitsandbytes, exceed
// float16.
LlmInt8Weight quantize_llm_int8(const at::Tensor& weight_OI, const std::vector<int32_t>& outlier_columns,
                                LlmInt8Layout layout);

}  // namespace pare::quant
