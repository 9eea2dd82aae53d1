#include "quant/rtn.h"

namespace pare {

QuantizedWeight rtn(const at::Tensor& weight_OI, const at::Tensor& hessian_diagonal_I, const GridOptions& options) {
  return round_to_grid(weight_OI, search_grid(weight_OI, hessian_diagonal_I, options), options);
}

}  // namespace pare
