#include "prune/resolve.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <numeric>
#include <stdexcept>

#include "prune/mask.h"
#include "prune/masked_rows.h"
#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::prune {

void check_resolve_options(const ResolveOptions& options) {
  if (options.gradient_steps < 0 || options.gradient_steps > kMaxSolverRounds) {
    throw std::invalid_argument("steps of re-solving: expected 0 to " + std::to_string(kMaxSolverRounds) + ", found " +
                                std::to_string(options.gradient_steps));
  }
  if (!(options.tolerance >= 0.0)) {
    throw std::invalid_argument("tolerance: expected a number not below 0, found " + std::to_string(options.tolerance));
  }
}

namespace {

at::Tensor by_conjugate_gradients(const at::Tensor& target, const at::Tensor& start, const at::Tensor& kept,
                                  const NormalizedHessian& hessian, const ResolveOptions& options) {
  const int64_t num_out = target.size(0), num_in = target.size(1);
  at::Tensor result_OI = at::empty({num_out, num_in}, at::kFloat);
  quant::for_row_chunks(num_out, kMaskedRowChunk, [&](int64_t first_row, int64_t num_rows) {
    MaskedRows rows{num_rows,
                    num_in,
                    normalized_rows(target, hessian, first_row, num_rows),
                    normalized_rows(start, hessian, first_row, num_rows),
                    {}};
    const bool* first_kept = kept.const_data_ptr<bool>() + first_row * num_in;
    rows.kept_RI.assign(first_kept, first_kept + num_rows * num_in);
    conjugate_gradients(rows, hessian.normalized_II, options.gradient_steps, options.tolerance);
    store_rows(rows, hessian, start, first_row, result_OI);
  });
  return result_OI;
}

// Kept weights of dead columns are the start's.
at::Tensor by_factorizations(const at::Tensor& target, const at::Tensor& start, const at::Tensor& kept,
                             const NormalizedHessian& hessian) {
  return at::where(hessian.hessian_II.diagonal().eq(0.0f), start, resolve_exact(target, kept, hessian));
}

}  // namespace

ResolveResult resolve(const at::Tensor& target_OI, const at::Tensor& start_OI, const at::Tensor& kept_OI,
                      const NormalizedHessian& hessian, const ResolveOptions& options) {
  check_resolve_options(options);
  const at::Tensor target = quant::checked_weight(target_OI), start = quant::checked_weight(start_OI);
  const at::Tensor kept = checked_mask(kept_OI, target);
  const int64_t num_out = target.size(0), num_in = target.size(1);
  if (start.sizes() != target.sizes() || hessian.hessian_II.size(0) != num_in) {
    throw std::invalid_argument("re-solving: expected a start of the target's shape " + quant::shape_text(target) +
                                " and a Hessian of its " + std::to_string(num_in) + " columns, found " +
                                quant::shape_text(start) + " and " + quant::shape_text(hessian.hessian_II));
  }
  if (!masked(start, kept).equal(start)) {
    throw std::invalid_argument("re-solving: expected a start that is zero where the mask keeps nothing");
  }
  ResolveResult result{options.exact ? by_factorizations(target, start, kept, hessian)
                                     : by_conjugate_gradients(target, start, kept, hessian, options),
                       0.0, 0.0, 0};
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

}  // namespace pare::prune
