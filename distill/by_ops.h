// The elementwise parts of training as LibTorch's operators, for tensors on a GPU. On a CPU kernels of our own do the
// same in one pass over memory (adamw.h, straight_through.h). The operators are tested against these kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "distill/adamw_options.h"
#include "distill/straight_through.h"

namespace pare::distill {

// Does the same as adamw_step, on any device.
void adamw_step_by_ops(const at::Tensor& gradient, double factor, int64_t step, double learning_rate,
                       const AdamWOptions& options, at::Tensor& value, at::Tensor& first, at::Tensor& second);

// Do the same as codes_of, weight_of and grid_gradients, on any device.
at::Tensor codes_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI);
at::Tensor weight_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG);
at::Tensor grid_gradients_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                                 at::Tensor& gradient_OI);

}  // namespace pare::distill
