#include "distill/rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace pare::distill {
namespace {

at::Tensor finite_shift(const at::Tensor& largest_R1) {
  return largest_R1.masked_fill(largest_R1.eq(-kInfinity), 0.0);
}

// Turns the sums of e^(x - shift) back into logarithms.
at::Tensor log_of_sums(const at::Tensor& masses_RN, const at::Tensor& largest_R1, const at::Tensor& shift_R1) {
  const at::Tensor empty_R = largest_R1.eq(-kInfinity).squeeze(1);
  // The sum of an empty row is 0, whose logarithm would have a gradient of NaN.
  const at::Tensor sum_R = row_sums(masses_RN).masked_fill(empty_R, 1.0);
  return sum_R.log().add(shift_R1.squeeze(1)).masked_fill(empty_R, -kInfinity);
}

}  // namespace

at::Tensor row_sums(const at::Tensor& matrix_RN) {
  if (matrix_RN.size(0) != 1) return matrix_RN.sum(1);
  return at::cat({matrix_RN, at::zeros_like(matrix_RN)}, 0).sum(1).narrow(0, 0, 1);
}

at::Tensor log_sum_exp_of_rows(const at::Tensor& matrix_RN) {
  const at::Tensor largest_R1 = matrix_RN.detach().amax(1, true), shift_R1 = finite_shift(largest_R1);
  return log_of_sums(matrix_RN.sub(shift_R1).exp(), largest_R1, shift_R1);
}

at::Tensor log_sum_exp_of_others(const at::Tensor& matrix_RN, const at::Tensor& largest_R1,
                                 const at::Tensor& left_out_RK, at::Tensor& work_RN) {
  const at::Tensor shift_R1 = finite_shift(largest_R1);
  at::sub_out(work_RN, matrix_RN, shift_R1);
  if (left_out_RK.defined()) work_RN.scatter_(1, left_out_RK, -kInfinity);
  return log_of_sums(work_RN.exp_(), largest_R1, shift_R1);
}

at::Tensor log_of_rest(const at::Tensor& logs) {
  const at::Tensor x = logs.detach().clamp_max(-std::ldexp(1.0, -24));
  return at::where(x.gt(-std::numbers::ln2), x.expm1().neg().log(), x.exp().neg().log1p());
}

at::Tensor finite_logs(const at::Tensor& logs) {
  const at::Tensor none = logs.detach().eq(-kInfinity);
  // If there is none, this saves the copy and what the gradient would keep of it.
  return none.any().item<bool>() ? logs.masked_fill(none, kLogOfNoMass) : logs;
}

at::Tensor log_of_mixture(const at::Tensor& a, const at::Tensor& b, double share) {
  if (share == 0.0) return a;
  if (share == 1.0) return b;
  const at::Tensor first = a.add(std::log1p(-share)), second = b.add(std::log(share));
  const at::Tensor larger =
      at::maximum(first.detach(), second.detach()).clamp_min(std::numeric_limits<float>::lowest());
  return first.sub(larger).exp().add(second.sub(larger).exp()).log().add(larger);
}

}  // namespace pare::distill
