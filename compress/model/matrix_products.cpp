#include "compress/model/matrix_products.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <stdexcept>
#include <vector>

#include "quant/checked_tensor.h"
#include "runtime/cpu/float_products.h"

namespace pare::compress {
namespace {

bool has_kernels(const at::Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat;
}

// The matrix [N, K] with rows of x for n. `copy` holds it if no stride of x is 1.
runtime::FloatMatrix rows_of(const at::Tensor& x, at::Tensor& copy) {
  copy = x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous();
  return {copy.const_data_ptr<float>(), copy.size(0), copy.stride(0), copy.stride(1)};
}

void multiply(const at::Tensor& left_MK, const at::Tensor& right_NK, const at::Tensor& bias_N, at::Tensor& out_MN,
              bool is_upper) {
  at::Tensor left, right, bias;
  if (bias_N.defined()) bias = bias_N.contiguous();
  runtime::multiply_floats(runtime::detect_isa(),
                           {.left_MK = rows_of(left_MK, left),
                            .right_NK = rows_of(right_NK, right),
                            .num_k = left_MK.size(1),
                            .result_MN = out_MN.data_ptr<float>(),
                            .result_stride = out_MN.stride(0),
                            .bias_N = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                            .is_upper = is_upper},
                           at::in_parallel_region() ? 1 : at::get_num_threads());
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& left_MK, const at::Tensor& right_KN) {
  if (!has_kernels(left_MK)) return at::mm(left_MK, right_KN);
  at::Tensor out_MN = at::empty({left_MK.size(0), right_KN.size(-1)}, left_MK.options());
  matrix_product_to(left_MK, right_KN, out_MN);
  return out_MN;
}

at::Tensor differentiable_product(const at::Tensor& left_MK, const at::Tensor& right_KN) {
  const bool wants_gradients = at::GradMode::is_enabled() && (left_MK.requires_grad() || right_KN.requires_grad());
  return wants_gradients ? at::mm(left_MK, right_KN) : matrix_product(left_MK, right_KN);
}

void matrix_product_to(const at::Tensor& left_MK, const at::Tensor& right_KN, at::Tensor& out_MN, bool is_upper) {
  if (left_MK.dim() != 2 || right_KN.dim() != 2 || out_MN.dim() != 2 || left_MK.size(1) != right_KN.size(0) ||
      out_MN.size(0) != left_MK.size(0) || out_MN.size(1) != right_KN.size(1) ||
      left_MK.scalar_type() != right_KN.scalar_type() || out_MN.scalar_type() != left_MK.scalar_type() ||
      left_MK.device() != right_KN.device() || out_MN.device() != left_MK.device()) {
    throw std::invalid_argument("matrix_product: expected [M, K], [K, N] and [M, N] of one type and device, found " +
                                quant::shape_text(left_MK) + ", " + quant::shape_text(right_KN) + " and " +
                                quant::shape_text(out_MN));
  }
  if (!has_kernels(left_MK) || out_MN.stride(1) != 1) {
    at::mm_out(out_MN, left_MK, right_KN);
  } else {
    multiply(left_MK, right_KN.t(), at::Tensor(), out_MN, is_upper);
  }
}

at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight_OI, const std::optional<at::Tensor>& bias_O) {
  if (!has_kernels(x)) return at::linear(x, weight_OI, bias_O);
  const at::Tensor bias = bias_O.value_or(at::Tensor());
  const bool bias_fits = !bias.defined() || (has_kernels(bias) && bias.dim() == 1 && weight_OI.dim() == 2 &&
                                             bias.size(0) == weight_OI.size(0));
  if (x.dim() < 1 || weight_OI.dim() != 2 || !has_kernels(weight_OI) || weight_OI.size(1) != x.size(-1) || !bias_fits) {
    throw std::invalid_argument("linear_of: expected float32 [..., I], [O, I] and [O], found " + quant::shape_text(x) +
                                ", " + weight_OI.toString() + " " + quant::shape_text(weight_OI) + " and " +
                                (bias.defined() ? bias.toString() + " " + quant::shape_text(bias) : "no bias"));
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight_OI.size(0);
  const at::Tensor rows_RI = x.reshape({-1, x.size(-1)});
  at::Tensor out_RO = at::empty({rows_RI.size(0), weight_OI.size(0)}, x.options());
  multiply(rows_RI, weight_OI, bias, out_RO, /*is_upper=*/false);
  return out_RO.view(shape);
}

}  // namespace pare::compress
