#include "distill/by_ops.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace pare::distill {
namespace {

// Expands [O, G] to [O, I].
at::Tensor of_columns(const TrainedGrid& grid, const at::Tensor& values_OG) {
  return values_OG.index_select(1, grid.group_I);
}

double top_of(const TrainedGrid& grid) {
  return (1 << grid.bits) - 1;
}

at::Tensor codes_less_zeros(const TrainedGrid& grid, const at::Tensor& offsets_OI) {
  return codes_by_ops(grid, offsets_OI).to(at::kFloat).sub_(of_columns(grid, grid.zeros_OG));
}

}  // namespace

void adamw_step_by_ops(const at::Tensor& gradient, double factor, int64_t step, double learning_rate,
                       const AdamWOptions& options, at::Tensor& value, at::Tensor& first, at::Tensor& second) {
  const auto steps = static_cast<double>(step);
  const at::Tensor slope = gradient.mul(factor);
  first.mul_(options.beta1).add_(slope, 1.0 - options.beta1);
  second.mul_(options.beta2).addcmul_(slope, slope, 1.0 - options.beta2);
  const double unbias2 = 1.0 / std::sqrt(1.0 - std::pow(options.beta2, steps));
  value.mul_(1.0 - learning_rate * options.weight_decay)
      .addcdiv_(first, second.sqrt().mul_(unbias2).add_(options.epsilon),
                -learning_rate / (1.0 - std::pow(options.beta1, steps)));
}

at::Tensor codes_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI) {
  const at::Tensor codes_OI = offsets_OI.add(grid.start_OI).clamp_(0.0, top_of(grid)).round_().to(at::kByte);
  if (!grid.kept_OI.defined()) return codes_OI;
  return at::where(grid.kept_OI, codes_OI, of_columns(grid, grid.zeros_OG).to(at::kByte));
}

at::Tensor weight_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG) {
  return codes_less_zeros(grid, offsets_OI).mul_(of_columns(grid, scales_OG));
}

at::Tensor grid_gradients_by_ops(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                                 at::Tensor& gradient_OI) {
  const at::Tensor by_code_OI = codes_less_zeros(grid, offsets_OI).mul_(gradient_OI);
  at::Tensor by_scale_OG = at::zeros_like(scales_OG).index_add_(1, grid.group_I, by_code_OI);
  gradient_OI.mul_(of_columns(grid, scales_OG));
  const at::Tensor place_OI = offsets_OI.add(grid.start_OI);
  const at::Tensor leads_on_OI = place_OI.lt(-0.5)
                                     .logical_and_(gradient_OI.gt(0.0))
                                     .logical_or_(place_OI.gt(top_of(grid) + 0.5).logical_and_(gradient_OI.lt(0.0)));
  gradient_OI.masked_fill_(leads_on_OI, 0.0);
  if (grid.kept_OI.defined()) gradient_OI.mul_(grid.kept_OI);
  return by_scale_OG;
}

}  // namespace pare::distill
