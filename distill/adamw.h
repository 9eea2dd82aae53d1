// AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2), a learning rate with warm-up and cosine, and clipping
// by the norm of all gradients (Pascanu et al., arXiv 1211.5063, algorithm 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "distill/adamw_options.h"

namespace pare::distill {

// Changes value, first and second in place. All tensors are float32, contiguous and of one shape. `step` is 1 for the
// first step. The gradient is first multiplied by `factor` (for clipping and averaging). Elements are independent, so
// any number of threads gives the same bits. Throws std::invalid_argument for shapes, types, and a step below 1.
void adamw_step(const at::Tensor& gradient, double factor, int64_t step, double learning_rate,
                const AdamWOptions& options, at::Tensor& value, at::Tensor& first, at::Tensor& second);

// Returns the norm of all gradients together. They are float32 and contiguous. On a CPU the norm is summed in float64
// in chunks of a fixed size, in order.
double gradient_norm(std::span<const at::Tensor> gradients);

// Returns the factor that makes `norm` at most max_norm. It is 1 where max_norm is 0.
double clip_factor(double norm, double max_norm);

// Returns peak * step / warmup up to warmup, then half a cosine from peak to final_share * peak at step num_steps.
// Steps count from 1. Throws std::invalid_argument for steps outside 1 .. num_steps.
double learning_rate_at(int64_t step, int64_t num_steps, int64_t num_warmup_steps, double peak, double final_share);

}  // namespace pare::distill
