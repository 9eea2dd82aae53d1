// Round to nearest: every weight takes the nearest point of its group's grid.
#pragma once

#include "quant/grid.h"

namespace pare {

// weight_OI float32 [O, I]; hessian_diagonal_I float32 [I], or undefined (then options.scales must not be
// hessian_diagonal). kept_OI as in grid.h: a pruned weight has the code of its zero. Throws as search_grid does.
QuantizedWeight rtn(const at::Tensor& weight_OI, const at::Tensor& hessian_diagonal_I, const GridOptions& options,
                    const at::Tensor& kept_OI = {});

// The same with the whole Hessian, float32 [I, I]: for ScaleSearch::hessian (search_grid_in_groups); the other searches
// take its diagonal.
QuantizedWeight rtn_with_hessian(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const GridOptions& options,
                                 const at::Tensor& kept_OI = {});

}  // namespace pare
