#include "quant/rtn.h"

#include <stdexcept>

#include "quant/checked_tensor.h"

namespace pare::quant {

runtime::QuantizedWeight rtn(const at::Tensor& weight_OI, const at::Tensor& hessian_diagonal_I,
                             const GridOptions& options, const at::Tensor& kept_OI) {
  if (options.scales == ScaleSearch::hessian) {
    throw std::invalid_argument("rtn: scales searched with the whole Hessian need it: call rtn_with_hessian");
  }
  return round_to_grid(weight_OI, search_grid(weight_OI, hessian_diagonal_I, options, kept_OI), options, kept_OI);
}

runtime::QuantizedWeight rtn_with_hessian(const at::Tensor& weight_OI, const at::Tensor& hessian_II,
                                          const GridOptions& options, const at::Tensor& kept_OI) {
  const at::Tensor hessian = checked_hessian(hessian_II);
  if (options.scales != ScaleSearch::hessian) return rtn(weight_OI, hessian.diagonal().contiguous(), options, kept_OI);
  return round_to_grid(weight_OI, search_grid_in_groups(weight_OI, hessian, options, kept_OI), options, kept_OI);
}

}  // namespace pare::quant
