#include "quant/gguf/gguf_blocks.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "quant/checked_tensor.h"
#include "quant/gguf/gguf_block_descent.h"
#include "quant/gguf/gguf_levels.h"
#include "quant/row_chunks.h"
#include "quant/trace_descent.h"
#include "runtime/blocks/gguf_encode.h"

namespace pare::quant {
namespace {

constexpr int64_t kEncodedRows = 16;
constexpr float kLargestHalf = 65504.0f;
constexpr double kLeastDamping = 1e-3;  // of importances

using runtime::GgufGrid;

// Rounds one column: levels are the nearest ones, or 0 where a weight is pruned, and errors = (w - w') / pivot. A scale
// of 0 leaves the minimum alone.
template <bool is_table>
void round_to_levels(const GgufLevels& levels, const float* weights_R, const uint8_t* kept_R, const float* scales_R,
                     const float* minima_R, float pivot, int64_t num_rows, float* levels_R, float* errors_R) {
#pragma omp simd
  for (int64_t r = 0; r < num_rows; ++r) {
    const float steps = scales_R[r] != 0.0f ? (weights_R[r] - minima_R[r]) / scales_R[r] : 0.0f;
    float level = is_table ? levels.nearest_in_table(steps) : levels.nearest_whole(steps);
    level = kept_R == nullptr || kept_R[r] != 0 ? level : 0.0f;
    levels_R[r] = level;
    errors_R[r] = (weights_R[r] - (scales_R[r] * level + minima_R[r])) / pivot;
  }
}

// Rounds one worker's rows to the levels of their blocks' scales, and puts the codes into the blocks.
class BlockRule : public ColumnRule {
 public:
  BlockRule(const GgufGrid& grid, const std::vector<int64_t>& order_I, const LoopRows& rows, std::span<uint8_t> blocks)
      : grid_(grid), levels_(grid), order_I_(order_I), blocks_(blocks) {
    const int64_t num_in = static_cast<int64_t>(order_I.size()), num_rows = rows.num_rows;
    num_blocks_ = num_in / grid.size;
    block_bytes_ = static_cast<size_t>(runtime::gguf_row_bytes(grid.type, grid.size));
    const int64_t num_groups = num_in / grid.group;
    scales_GR_.resize(num_groups * num_rows);
    minima_GR_.resize(num_groups * num_rows);
    levels_IR_.resize(num_in * num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t b = 0; b < num_blocks_; ++b) {
        const runtime::GgufParts parts = runtime::take_apart(grid, bytes_of(rows.first_row + r, b));
        for (int64_t g = 0; g < grid.num_groups(); ++g) {
          const int64_t at = (b * grid.num_groups() + g) * num_rows + r;
          scales_GR_[at] = parts.group_scale(grid, static_cast<size_t>(g));
          minima_GR_[at] = parts.group_minimum(grid, static_cast<size_t>(g));
        }
      }
    }
  }

  void column(int64_t position, float pivot, LoopRows& rows, float* errors_R) override {
    const int64_t num_rows = rows.num_rows, begin = position * num_rows;
    const int64_t group = order_I_[static_cast<size_t>(position)] / grid_.group * num_rows;
    const uint8_t* kept_R = rows.kept_IR.empty() ? nullptr : &rows.kept_IR[begin];
    const auto round = levels_.is_table() ? round_to_levels<true> : round_to_levels<false>;
    round(levels_, rows.weight_IR.const_data_ptr<float>() + begin, kept_R, &scales_GR_[group], &minima_GR_[group],
          pivot, num_rows, &levels_IR_[begin], errors_R);
  }

  void finish(const LoopRows& rows) override {
    const int64_t num_in = static_cast<int64_t>(order_I_.size());
    std::vector<uint8_t> codes_I(num_in);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      for (int64_t p = 0; p < num_in; ++p) codes_I[order_I_[p]] = levels_.code_of(levels_IR_[p * rows.num_rows + r]);
      for (int64_t b = 0; b < num_blocks_; ++b) {
        const std::span<std::byte> bytes = bytes_of(rows.first_row + r, b);
        runtime::GgufParts parts = runtime::take_apart(grid_, bytes);
        std::copy_n(codes_I.begin() + b * grid_.size, grid_.size, parts.codes.begin());
        runtime::put_together(grid_, parts, bytes);
      }
    }
  }

 private:
  std::span<std::byte> bytes_of(int64_t row, int64_t block) const {
    return std::as_writable_bytes(blocks_).subspan(static_cast<size_t>(row * num_blocks_ + block) * block_bytes_,
                                                   block_bytes_);
  }

  const GgufGrid& grid_;
  GgufLevels levels_;
  const std::vector<int64_t>& order_I_;
  std::span<uint8_t> blocks_;
  int64_t num_blocks_ = 0;
  size_t block_bytes_ = 0;
  std::vector<float> scales_GR_, minima_GR_, levels_IR_;
};

const GgufGrid& checked_grid(const BlockOptions& options, int64_t num_in, bool has_mask) {
  const GgufGrid* const grid = runtime::find_gguf_grid(options.type);
  const std::string name(runtime::gguf_block(static_cast<uint32_t>(options.type)).name);
  if (grid == nullptr) throw std::invalid_argument("type: pare rounds no weights to " + name);
  if (num_in % grid->size != 0) {
    throw std::invalid_argument("type: blocks of " + name + " need a multiple of " + std::to_string(grid->size) +
                                " inputs, found " + std::to_string(num_in));
  }
  if (has_mask && !grid->has_zero()) throw std::invalid_argument("type: " + name + " has no code that stands for 0");
  if (options.act_order == ActOrder::group) {
    throw std::invalid_argument("act_order: blocks hold neighbouring inputs: expected none or static");
  }
  if (options.sweeps < 0 || options.sweeps > kMaxRefineSweeps) {
    throw std::invalid_argument("sweeps: expected 0 to " + std::to_string(kMaxRefineSweeps) + ", found " +
                                std::to_string(options.sweeps));
  }
  return *grid;
}

// Returns the blocks that are nearest by the importances, which give the scales.
std::vector<uint8_t> nearest_blocks(const at::Tensor& weight_OI, const at::Tensor& importances_I,
                                    const GgufGrid& grid) {
  const int64_t num_out = weight_OI.size(0), num_in = weight_OI.size(1);
  const auto row_bytes = static_cast<size_t>(runtime::gguf_row_bytes(grid.type, num_in));
  const auto width = static_cast<size_t>(num_in);
  std::vector<uint8_t> blocks(static_cast<size_t>(num_out) * row_bytes);
  const std::span<const float> importance_I(importances_I.const_data_ptr<float>(), width);
  if (weight_OI.abs().max().item<float>() > kLargestHalf) {
    throw std::invalid_argument(
        "a weight is beyond 65504, the largest number of float16, in which blocks hold their scales: exclude the "
        "layer");
  }
  for_row_chunks(num_out, kEncodedRows, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      runtime::encode_gguf_row(
          grid.type, {weight_OI.const_data_ptr<float>() + row * num_in, width}, importance_I,
          std::as_writable_bytes(std::span(blocks)).subspan(static_cast<size_t>(row) * row_bytes, row_bytes));
    }
  });
  return blocks;
}

// Returns diag(H) with the damping on it, so that a group whose inputs never fired gets a scale as well.
at::Tensor importances(const GptqFactor& factor) {
  const auto added = static_cast<float>(absolute_damping(factor.hessian_II, std::max(factor.damping, kLeastDamping)));
  return added > 0.0f ? factor.diagonal_I.add(added) : at::ones_like(factor.diagonal_I);
}

}  // namespace

GptqResult gptq_to_blocks(const at::Tensor& weight_OI, const at::Tensor& target_OI, const GptqFactor& factor,
                          const BlockOptions& options, const at::Tensor& kept_OI) {
  const at::Tensor weight = checked_weight(weight_OI, kept_OI), target = checked_weight(target_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  const GgufGrid& grid = checked_grid(options, num_in, kept_OI.defined());
  if (factor.damping != options.damping || factor.act_order != options.act_order) {
    throw std::invalid_argument(
        "gptq_to_blocks: the Hessian was factored with another damping or act_order than the options say");
  }
  if (target.sizes() != weight.sizes()) {
    throw std::invalid_argument("target: expected shape " + shape_text(weight) + ", found " + shape_text(target));
  }
  ColumnMask mask;
  mask.kept_OI = kept_OI;
  const ColumnLoop loop = make_column_loop(weight, factor, options.block_size, mask);

  GptqResult result;
  result.events = factor.events;
  result.kept_OI = kept_OI;
  runtime::QuantizedWeight& rounded = result.weight;
  for (const runtime::WeightCode& code : runtime::block_codes()) {
    if (code.gguf_type == static_cast<uint32_t>(options.type)) rounded.code = &code;
  }
  rounded.num_out = num_out;
  rounded.num_in = num_in;
  rounded.bits = rounded.code->width();
  rounded.group_size = rounded.code->block;
  rounded.scale_dtype = runtime::DType::F16;
  rounded.codes_OI = nearest_blocks(weight, importances(factor), grid);
  run_column_loop(loop, [&](const LoopRows& rows) -> std::unique_ptr<ColumnRule> {
    return std::make_unique<BlockRule>(grid, loop.order_I, rows, rounded.codes_OI);
  });
  if (options.sweeps > 0) {
    descend_blocks(target, factor.hessian_II, kept_OI, grid, options.sweeps, options.sweep_damping, rounded.codes_OI);
  }
  std::vector<float> values_OI = runtime::dequantize(rounded);
  const at::Tensor rounded_OI = at::from_blob(values_OI.data(), weight.sizes(), at::kFloat);
  result.trace_error = trace_error(target, rounded_OI, factor.hessian_II);
  const double signal = trace_error(target, at::zeros_like(target), factor.hessian_II);
  result.relative_error = signal > 0.0 ? result.trace_error / signal : 0.0;
  return result;
}

}  // namespace pare::quant
