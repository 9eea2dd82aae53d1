// A weight on its grid as a function that can be trained. Codes follow from real numbers by rounding, which gradients
// pass straight through (Bengio et al., arXiv 1308.3432). Scales are learned as in LSQ, arXiv 1902.08153, and
// EfficientQAT, arXiv 2407.11062, section 3.2.
//
//   code = round(clamp(start + offset, 0, top)),   W = scale * (code - zero),   top = 2^bits - 1
//
// `offset` is in steps of the grid, so that one learning rate suits every group. Offsets of 0 give the codes that a
// pass has found. A pruned weight has the code of its zero, whatever its offset, and no part in any gradient.
//
// On a CPU each function is one pass over memory. On a GPU it uses LibTorch's operators (by_ops.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pare::distill {

// The parts of one linear, W [O, I] in G groups of columns, that stay fixed while it is trained.
struct TrainedGrid {
  int bits = 0;
  at::Tensor start_OI;  // uint8: the codes that training starts from
  at::Tensor zeros_OG;  // float32
  at::Tensor group_I;   // int64: the group of each column
  at::Tensor kept_OI;   // bool; undefined: all
};

// Returns uint8 codes [O, I]. offsets_OI is float32. Ties round to even. Throws std::invalid_argument for shapes and
// types that do not fit.
at::Tensor codes_of(const TrainedGrid& grid, const at::Tensor& offsets_OI);

// Returns W of those codes, float32 [O, I]. scales_OG is float32. Throws as codes_of does.
at::Tensor weight_of(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG);

// Takes the gradient of a loss with respect to W, float32 and contiguous, and turns it in place into the gradient with
// respect to the offsets. That is scale * gradient where start + offset lies within [-1/2, top + 1/2]. Elsewhere it is
// 0, unless it would lead back into the range. Returns the gradient with respect to the scales, float32 [O, G]: the
// sums over groups of gradient * (code - zero). Throws as codes_of does.
at::Tensor grid_gradients(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                          at::Tensor& gradient_OI);

}  // namespace pare::distill
