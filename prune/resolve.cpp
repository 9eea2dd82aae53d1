// ADMM in normalized columns, in the paper's letters W = X, Z, U (scaled dual) and with A = (Hn + rho I)^-1:
//   X = (T Hn + rho (Z - U)) A      the unmasked least squares, held near Z
//   Z = mask(X + U)
//   U = U + X - Z
// Oracles (tests/prune): resolve_exact, brute force, closed forms.
#include "prune/resolve.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>
#include <stdexcept>

#include "prune/mask.h"
#include "prune/masked_rows.h"
#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare {
namespace {

void admm(MaskedRows& rows, const at::Tensor& normalized_II, const at::Tensor& inverse_II, double penalty,
          int num_rounds) {
  const int64_t num_values = rows.num_rows * rows.num_in;
  const float rho = static_cast<float>(penalty);
  const at::Tensor fixed_RI = at::mm(rows.target_RI, normalized_II);
  at::Tensor dual_RI = at::zeros_like(fixed_RI), right_RI = at::empty_like(fixed_RI),
             free_RI = at::empty_like(fixed_RI);
  const float* fixed = fixed_RI.const_data_ptr<float>();
  float* solution = rows.solution_RI.mutable_data_ptr<float>();
  float* dual = dual_RI.mutable_data_ptr<float>();
  float* right = right_RI.mutable_data_ptr<float>();
  for (int round = 0; round < num_rounds; ++round) {
#pragma omp simd
    for (int64_t i = 0; i < num_values; ++i) right[i] = fixed[i] + rho * (solution[i] - dual[i]);
    at::mm_out(free_RI, right_RI, inverse_II);
    const float* free = free_RI.const_data_ptr<float>();
    const char* kept = rows.kept_RI.data();
#pragma omp simd
    for (int64_t i = 0; i < num_values; ++i) {
      const float sum = free[i] + dual[i];
      solution[i] = kept[i] ? sum : 0.0f;
      dual[i] = kept[i] ? 0.0f : sum;
    }
  }
}

}  // namespace

void check_resolve_options(const ResolveOptions& options) {
  for (const int rounds : {options.admm_rounds, options.gradient_steps}) {
    if (rounds < 0 || rounds > kMaxSolverRounds) {
      throw std::invalid_argument("rounds of re-solving: expected 0 to " + std::to_string(kMaxSolverRounds) +
                                  ", found " + std::to_string(rounds));
    }
  }
  if (!(options.tolerance >= 0.0)) {
    throw std::invalid_argument("tolerance: expected a number not below 0, found " + std::to_string(options.tolerance));
  }
}

ResolveResult resolve(const at::Tensor& target_OI, const at::Tensor& start_OI, const at::Tensor& kept_OI,
                      const NormalizedHessian& hessian, const ResolveOptions& options) {
  check_resolve_options(options);
  const at::Tensor target = checked_weight(target_OI), start = checked_weight(start_OI);
  const at::Tensor kept = checked_mask(kept_OI, target);
  const int64_t num_out = target.size(0), num_in = target.size(1);
  if (start.sizes() != target.sizes() || hessian.hessian_II.size(0) != num_in) {
    throw std::invalid_argument("re-solving: expected a start of the target's shape " + shape_text(target) +
                                " and a Hessian of its " + std::to_string(num_in) + " columns, found " +
                                shape_text(start) + " and " + shape_text(hessian.hessian_II));
  }
  if (!masked(start, kept).equal(start)) {
    throw std::invalid_argument("re-solving: expected a start that is zero where the mask keeps nothing");
  }
  at::Tensor inverse_II;
  if (options.admm_rounds > 0) inverse_II = shifted_inverse(hessian, options.penalty);
  ResolveResult result{at::empty({num_out, num_in}, at::kFloat), 0.0, 0.0, 0};
  for_row_chunks(num_out, kMaskedRowChunk, [&](int64_t first_row, int64_t num_rows) {
    MaskedRows rows{num_rows,
                    num_in,
                    normalized_rows(target, hessian, first_row, num_rows),
                    normalized_rows(start, hessian, first_row, num_rows),
                    {}};
    const bool* first_kept = kept.const_data_ptr<bool>() + first_row * num_in;
    rows.kept_RI.assign(first_kept, first_kept + num_rows * num_in);
    if (options.admm_rounds > 0) {
      admm(rows, hessian.normalized_II, inverse_II, options.penalty, options.admm_rounds);
    }
    conjugate_gradients(rows, hessian.normalized_II, options.gradient_steps, options.tolerance);
    store_rows(rows, hessian, start, first_row, result.weight_OI);
  });
  const RowTraces before = row_traces(target, start, hessian), after = row_traces(target, result.weight_OI, hessian);
  for (int64_t row = 0; row < num_out; ++row) {
    const bool fell = after.damped_O[row] < before.damped_O[row] && after.plain_O[row] <= before.plain_O[row];
    if (!fell) {
      result.weight_OI.select(0, row).copy_(start.select(0, row));
      ++result.num_rows_left;
    }
    result.trace_before += before.plain_O[row];
    result.trace_after += fell ? after.plain_O[row] : before.plain_O[row];
  }
  return result;
}

}  // namespace pare
