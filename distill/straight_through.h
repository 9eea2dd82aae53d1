// A weight on its grid as a function that can be trained: codes follow from real numbers by rounding, which gradients
// pass straight through (Bengio et al., arXiv 1308.3432; with scales learned as in LSQ, arXiv 1902.08153, and
// EfficientQAT, arXiv 2407.11062, section 3.2).
//
// On a CPU one pass over memory each; on a GPU by LibTorch's operators (by_ops.h).
//
//   code = round(clamp(start + offset, 0, top)),   W = scale * (code - zero),   top = 2^bits - 1
//
// `offset` is in steps of the grid, so that one learning rate suits every group. Offsets of 0 give the codes that a
// pass has found. A pruned weight has the code of its zero, whatever its offset, and no part in any gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pare {

// All of one linear, W [O, I] in G groups of columns. What stays fixed while it is trained:
struct TrainedGrid {
  int bits = 0;
  at::Tensor start_OI;  // uint8: the codes that training starts from
  at::Tensor zeros_OG;  // float32
  at::Tensor group_I;   // int64: the group of each column
  at::Tensor kept_OI;   // bool; undefined: all
};

// uint8 codes [O, I]. offsets_OI float32. Ties round to even.
// Throws std::invalid_argument: shapes and types that do not fit.
at::Tensor codes_of(const TrainedGrid& grid, const at::Tensor& offsets_OI);

// W of those codes, float32 [O, I]. scales_OG float32. Throws as codes_of.
at::Tensor weight_of(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG);

// Takes the gradient of a loss by W, float32 and contiguous, and makes of it in place that by the offsets: scale *
// gradient where start + offset lies within [-1/2, top + 1/2], else 0 unless it would lead back into the range. Returns
// that by the scales, float32 [O, G]: the sums over groups of gradient * (code - zero). Throws as codes_of.
at::Tensor grid_gradients(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                          at::Tensor& gradient_OI);

}  // namespace pare
