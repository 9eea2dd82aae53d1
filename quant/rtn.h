// Round to nearest: every weight takes the nearest point of its group's grid.
#pragma once

#include "quant/grid.h"

namespace pare::quant {

// Rounds weight_OI, float32 [O, I]. hessian_diagonal_I is float32 [I]; it may be undefined unless options.scales is
// hessian_diagonal. kept_OI is as in grid.h: a pruned weight has the code of its zero. Throws as search_grid does, and
// std::invalid_argument for ScaleSearch::hessian.
runtime::QuantizedWeight rtn(const at::Tensor& weight_OI, const at::Tensor& hessian_diagonal_I,
                             const GridOptions& options, const at::Tensor& kept_OI = {});

// Rounds with the whole Hessian, float32 [I, I], for ScaleSearch::hessian (search_grid_in_groups). The other searches
// take its diagonal.
runtime::QuantizedWeight rtn_with_hessian(const at::Tensor& weight_OI, const at::Tensor& hessian_II,
                                          const GridOptions& options, const at::Tensor& kept_OI = {});

}  // namespace pare::quant
