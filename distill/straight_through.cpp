#include "distill/straight_through.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <stdexcept>
#include <string>

#include "quant/checked_tensor.h"

namespace pare {
namespace {

void check(bool fits, const std::string& what, const at::Tensor& found) {
  if (fits) return;
  throw std::invalid_argument("trained grid: expected " + what + ", found " +
                              (found.defined() ? found.toString() + " " + shape_text(found) : std::string("none")));
}

void check_grid(const TrainedGrid& grid, const at::Tensor& values_OI, const std::string& name) {
  check(grid.bits >= 1 && grid.bits <= 8 && grid.start_OI.defined() && grid.start_OI.dim() == 2 &&
            grid.start_OI.scalar_type() == at::kByte,
        "codes of 1 to 8 bits as uint8 [O, I]", grid.start_OI);
  check(values_OI.defined() && values_OI.scalar_type() == at::kFloat && values_OI.sizes() == grid.start_OI.sizes(),
        name + " as float32 " + shape_text(grid.start_OI), values_OI);
  check(!grid.kept_OI.defined() ||
            (grid.kept_OI.scalar_type() == at::kBool && grid.kept_OI.sizes() == grid.start_OI.sizes()),
        "kept as bool " + shape_text(grid.start_OI), grid.kept_OI);
  check(grid.group_I.defined() && grid.group_I.scalar_type() == at::kLong && grid.group_I.dim() == 1 &&
            grid.group_I.size(0) == grid.start_OI.size(1),
        "a group of every column, int64 [I]", grid.group_I);
  check(grid.zeros_OG.defined() && grid.zeros_OG.dim() == 2 && grid.zeros_OG.scalar_type() == at::kFloat &&
            grid.zeros_OG.size(0) == grid.start_OI.size(0),
        "zeros as float32 [O, G]", grid.zeros_OG);
}

void check_scales(const TrainedGrid& grid, const at::Tensor& scales_OG) {
  check(scales_OG.defined() && scales_OG.scalar_type() == at::kFloat && scales_OG.sizes() == grid.zeros_OG.sizes(),
        "scales as float32 " + shape_text(grid.zeros_OG), scales_OG);
}

// [O, G] to [O, I].
at::Tensor of_columns(const TrainedGrid& grid, const at::Tensor& values_OG) {
  return values_OG.index_select(1, grid.group_I);
}

at::Tensor codes_less_zeros(const TrainedGrid& grid, const at::Tensor& codes_OI) {
  return codes_OI.to(at::kFloat).sub_(of_columns(grid, grid.zeros_OG));
}

}  // namespace

at::Tensor codes_of(const TrainedGrid& grid, const at::Tensor& offsets_OI) {
  check_grid(grid, offsets_OI, "offsets");
  const double top = (1 << grid.bits) - 1;
  at::Tensor codes_OI = offsets_OI.add(grid.start_OI).clamp_(0.0, top).round_().to(at::kByte);
  if (!grid.kept_OI.defined()) return codes_OI;
  return at::where(grid.kept_OI, codes_OI, of_columns(grid, grid.zeros_OG).to(at::kByte));
}

at::Tensor weight_of(const TrainedGrid& grid, const at::Tensor& codes_OI, const at::Tensor& scales_OG) {
  check_grid(grid, codes_OI.to(at::kFloat), "codes");
  check_scales(grid, scales_OG);
  return codes_less_zeros(grid, codes_OI).mul_(of_columns(grid, scales_OG));
}

GridGradients grid_gradients(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                             const at::Tensor& gradient_OI) {
  check_grid(grid, offsets_OI, "offsets");
  check_grid(grid, gradient_OI, "the gradient");
  check_scales(grid, scales_OG);
  const double top = (1 << grid.bits) - 1;
  GridGradients gradients;
  const at::Tensor steps_OI = codes_less_zeros(grid, codes_of(grid, offsets_OI)).mul_(gradient_OI);
  gradients.scales_OG = at::zeros_like(scales_OG).index_add_(1, grid.group_I, steps_OI);
  const at::Tensor place_OI = offsets_OI.add(grid.start_OI);
  gradients.offsets_OI = of_columns(grid, scales_OG).mul_(gradient_OI);
  // Beyond the range only a step back into it changes anything: descent goes against the gradient.
  const at::Tensor leads_on_OI = place_OI.lt(-0.5)
                                     .logical_and_(gradients.offsets_OI.gt(0.0))
                                     .logical_or_(place_OI.gt(top + 0.5).logical_and_(gradients.offsets_OI.lt(0.0)));
  gradients.offsets_OI.masked_fill_(leads_on_OI, 0.0);
  if (grid.kept_OI.defined()) gradients.offsets_OI.mul_(grid.kept_OI);
  return gradients;
}

}  // namespace pare
