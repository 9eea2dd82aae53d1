// The tests' oracles are a float64 twin with explicit inverses, the authors' algorithm in PyTorch's operations, closed
// forms, and brute force over all masks.
#include "prune/sparsegpt.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

namespace pare::prune {
namespace {

// Kept weights stay as they are when the loop reaches them, and pruned ones become 0.
class PruningRule : public quant::ColumnRule {
 public:
  PruningRule(const std::vector<int64_t>& order_I, const at::Tensor& result_OI)
      : order_I_(order_I), result_OI_(result_OI) {}

  void column(int64_t position, float pivot, quant::LoopRows& rows, float* errors_R) override {
    float* weights_R = rows.weight_IR.mutable_data_ptr<float>() + position * rows.num_rows;
    if (rows.kept_IR.empty()) {
      std::fill_n(errors_R, rows.num_rows, 0.0f);
      return;
    }
    const uint8_t* kept_R = rows.kept_IR.data() + position * rows.num_rows;
#pragma omp simd
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      errors_R[r] = kept_R[r] != 0 ? 0.0f : weights_R[r] / pivot;
      weights_R[r] = kept_R[r] != 0 ? weights_R[r] : 0.0f;
    }
  }

  void finish(const quant::LoopRows& rows) override {
    const int64_t num_in = result_OI_.size(1);
    const float* weights = rows.weight_IR.const_data_ptr<float>();
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      float* result_I = result_OI_.mutable_data_ptr<float>() + (rows.first_row + r) * num_in;
      for (int64_t p = 0; p < num_in; ++p) result_I[order_I_[p]] = weights[p * rows.num_rows + r];
    }
  }

 private:
  const std::vector<int64_t>& order_I_;
  at::Tensor result_OI_;
};

}  // namespace

SparseGptResult sparsegpt(const at::Tensor& weight_OI, const quant::GptqFactor& factor, const quant::ColumnMask& mask,
                          int64_t block_size) {
  const quant::ColumnLoop loop = quant::make_column_loop(weight_OI, factor, block_size, mask);
  SparseGptResult result;
  result.weight_OI = at::empty_like(loop.weight_OI);
  result.events = factor.events;
  result.kept_OI = quant::run_column_loop(
      loop, [&](const quant::LoopRows&) { return std::make_unique<PruningRule>(loop.order_I, result.weight_OI); });
  if (!result.kept_OI.defined()) result.kept_OI = at::ones(loop.weight_OI.sizes(), at::kBool);
  result.trace_error = quant::trace_error(loop.weight_OI, result.weight_OI, factor.hessian_II);
  const double signal = quant::trace_error(loop.weight_OI, at::zeros_like(loop.weight_OI), factor.hessian_II);
  result.relative_error = signal > 0.0 ? result.trace_error / signal : 0.0;
  return result;
}

}  // namespace pare::prune
