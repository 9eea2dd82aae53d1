// E = W - W', G = H E the half gradient, all [I, R] (trace_descent.h). W' = s level + m with a group's s and m. For a
// superblock s = d n and m = -dmin k with whole numbers n and k. A direction of W' for each of these numbers:
//   d       n level        over the superblock
//   dmin    -k             over the superblock
//   s, or n level          over the group
//   m, or k 1              over the group
//   a code  s              one column; the best level is the one nearest to level + G_j / (H_jj s)
// Along a direction D the trace is least at the step (D . G) / (D H D). The number that the file can hold and that is
// nearest to it is taken where the trace falls.
#include "quant/gguf/gguf_block_descent.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "quant/gguf/gguf_levels.h"
#include "quant/row_chunks.h"
#include "quant/trace_descent.h"
#include "runtime/format/dtype.h"

namespace pare::quant {
namespace {

constexpr int64_t kDescentRows = 96;

using runtime::GgufGrid;
using runtime::GgufParts;

float held_half(double exact) {
  return runtime::f16_to_float(runtime::float_to_f16(static_cast<float>(exact)));
}

// One worker's rows, transposed.
struct BlockChunk {
  int64_t num_rows = 0;
  at::Tensor weight_IR, error_IR, level_IR;  // float32
  at::Tensor kept_IR;                        // float32, 1 where a weight is kept; undefined: all are
  std::vector<float> scale_GR, minimum_GR;   // s and m
  // Superblocks alone have these: n and k for each group, d and dmin for each block.
  std::vector<float> scale_number_GR, minimum_number_GR, scale_unit_BR, minimum_unit_BR;
};

// Columns in work: a superblock or one of its groups.
struct BlockView {
  int64_t begin, width;
  at::Tensor hessian_WW;   // a view
  at::Tensor gradient_WR;  // G of its columns
};

class Descent {
 public:
  Descent(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& kept_OI, const GgufGrid& grid,
          std::span<uint8_t> blocks)
      : weight_OI_(weight_OI),
        hessian_II_(hessian_II),
        kept_OI_(kept_OI),
        grid_(grid),
        levels_(grid),
        num_in_(weight_OI.size(1)),
        num_blocks_(num_in_ / grid.size),
        row_bytes_(static_cast<size_t>(runtime::gguf_row_bytes(grid.type, num_in_))),
        blocks_(blocks) {}

  BlockChunk gather(int64_t first_row, int64_t num_rows) const;
  // Returns false when nothing moved, and the next sweep would not move anything either.
  bool sweep(BlockChunk& chunk) const;
  void scatter_row(const BlockChunk& chunk, int64_t r, int64_t row) const;

 private:
  std::span<std::byte> block(int64_t row, int64_t b) const {
    const size_t size = row_bytes_ / static_cast<size_t>(num_blocks_);
    return std::as_writable_bytes(blocks_).subspan(
        static_cast<size_t>(row) * row_bytes_ + static_cast<size_t>(b) * size, size);
  }
  void refresh_errors(BlockChunk& chunk, int64_t begin, int64_t width) const;
  bool update_unit(BlockChunk& chunk, const BlockView& view, bool is_scale) const;
  bool update_number(BlockChunk& chunk, const BlockView& view, int64_t group, bool is_scale) const;
  bool update_levels(BlockChunk& chunk, const BlockView& view, int64_t group) const;
  bool update_group(BlockChunk& chunk, const BlockView& of_block, int64_t group) const;

  const at::Tensor &weight_OI_, &hessian_II_, &kept_OI_;
  const GgufGrid& grid_;
  GgufLevels levels_;
  int64_t num_in_, num_blocks_;
  size_t row_bytes_;
  std::span<uint8_t> blocks_;
};

BlockChunk Descent::gather(int64_t first_row, int64_t num_rows) const {
  const int64_t groups_in_block = grid_.num_groups();
  BlockChunk chunk;
  chunk.num_rows = num_rows;
  chunk.weight_IR = weight_OI_.narrow(0, first_row, num_rows).t().contiguous();
  chunk.error_IR = at::empty({num_in_, num_rows}, at::kFloat);
  chunk.level_IR = at::empty({num_in_, num_rows}, at::kFloat);
  if (kept_OI_.defined()) chunk.kept_IR = kept_OI_.narrow(0, first_row, num_rows).t().to(at::kFloat).contiguous();
  for (std::vector<float>* values : {&chunk.scale_unit_BR, &chunk.minimum_unit_BR})
    values->resize(num_blocks_ * num_rows);
  for (std::vector<float>* values :
       {&chunk.scale_GR, &chunk.minimum_GR, &chunk.scale_number_GR, &chunk.minimum_number_GR}) {
    values->resize(num_blocks_ * groups_in_block * num_rows);
  }
  float* levels = chunk.level_IR.mutable_data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const GgufParts parts = runtime::take_apart(grid_, block(first_row + r, b));
      chunk.scale_unit_BR[b * num_rows + r] = parts.scale;
      chunk.minimum_unit_BR[b * num_rows + r] = parts.minimum;
      for (int64_t g = 0; g < groups_in_block; ++g) {
        const int64_t at = (b * groups_in_block + g) * num_rows + r;
        const auto group = static_cast<size_t>(g);
        chunk.scale_GR[at] = parts.group_scale(grid_, group);
        chunk.minimum_GR[at] = parts.group_minimum(grid_, group);
        chunk.scale_number_GR[at] = static_cast<float>(parts.scales[group]);
        chunk.minimum_number_GR[at] = static_cast<float>(parts.minima[group]);
      }
      for (int64_t i = 0; i < grid_.size; ++i) {
        levels[(b * grid_.size + i) * num_rows + r] = grid_.level(parts.codes[static_cast<size_t>(i)]);
      }
    }
  }
  refresh_errors(chunk, 0, num_in_);
  return chunk;
}

// Computes E of whole groups.
void Descent::refresh_errors(BlockChunk& chunk, int64_t begin, int64_t width) const {
  const int64_t num_rows = chunk.num_rows;
  for (int64_t i = begin; i < begin + width; ++i) {
    const float* scales_R = chunk.scale_GR.data() + i / grid_.group * num_rows;
    const float* minima_R = chunk.minimum_GR.data() + i / grid_.group * num_rows;
    const float* weights_R = chunk.weight_IR.const_data_ptr<float>() + i * num_rows;
    const float* levels_R = chunk.level_IR.const_data_ptr<float>() + i * num_rows;
    float* errors_R = chunk.error_IR.mutable_data_ptr<float>() + i * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) errors_R[r] = weights_R[r] - (scales_R[r] * levels_R[r] + minima_R[r]);
  }
}

// Updates d, or dmin, of a superblock.
bool Descent::update_unit(BlockChunk& chunk, const BlockView& view, bool is_scale) const {
  const int64_t num_rows = chunk.num_rows, first_group = view.begin / grid_.group;
  const at::Tensor directions_WR = at::empty({view.width, num_rows}, at::kFloat);
  float* directions = directions_WR.mutable_data_ptr<float>();
  const std::vector<float>& numbers_GR = is_scale ? chunk.scale_number_GR : chunk.minimum_number_GR;
  for (int64_t i = 0; i < view.width; ++i) {
    const float* numbers_R = numbers_GR.data() + (first_group + i / grid_.group) * num_rows;
    const float* levels_R = chunk.level_IR.const_data_ptr<float>() + (view.begin + i) * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) {
      directions[i * num_rows + r] = is_scale ? numbers_R[r] * levels_R[r] : -numbers_R[r];
    }
  }
  const at::Tensor products_WR = at::mm(view.hessian_WW, directions_WR);
  const std::vector<double> slopes_R =
      column_dots(directions, view.gradient_WR.const_data_ptr<float>(), view.width, num_rows);
  const std::vector<double> curvatures_R =
      column_dots(directions, products_WR.const_data_ptr<float>(), view.width, num_rows);
  float* units_R = (is_scale ? chunk.scale_unit_BR : chunk.minimum_unit_BR).data() + view.begin / grid_.size * num_rows;
  std::vector<float> amounts_R(num_rows, 0.0f);
  bool changed = false;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (!(curvatures_R[r] > 0.0)) continue;
    const float unit = held_half(static_cast<double>(units_R[r]) + slopes_R[r] / curvatures_R[r]);
    const double amount = static_cast<double>(unit) - static_cast<double>(units_R[r]);
    if (!std::isfinite(unit) || unit == 0.0f || !falls(amount, curvatures_R[r], slopes_R[r])) continue;
    amounts_R[r] = static_cast<float>(amount);
    units_R[r] = unit;
    changed = true;
    for (int64_t g = first_group; g < first_group + grid_.num_groups(); ++g) {
      const int64_t at = g * num_rows + r;
      if (is_scale) {
        chunk.scale_GR[at] = unit * chunk.scale_number_GR[at];
      } else {
        chunk.minimum_GR[at] = -(unit * chunk.minimum_number_GR[at]);
      }
    }
  }
  if (changed) shift_gradient(amounts_R, products_WR, view.gradient_WR);
  return changed;
}

// Updates a group's scale, or its minimum.
bool Descent::update_number(BlockChunk& chunk, const BlockView& view, int64_t group, bool is_scale) const {
  const int64_t num_rows = chunk.num_rows, at = group * num_rows, unit_at = view.begin / grid_.size * num_rows;
  at::Tensor directions_WR = chunk.level_IR.narrow(0, view.begin, view.width);
  if (!is_scale) directions_WR = at::empty({view.width, num_rows}, at::kFloat).fill_(1.0f);
  const at::Tensor products_WR = at::mm(view.hessian_WW, directions_WR);
  const float* directions = directions_WR.const_data_ptr<float>();
  const std::vector<double> slopes_R =
      column_dots(directions, view.gradient_WR.const_data_ptr<float>(), view.width, num_rows);
  const std::vector<double> curvatures_R =
      column_dots(directions, products_WR.const_data_ptr<float>(), view.width, num_rows);
  float* values_R = (is_scale ? chunk.scale_GR : chunk.minimum_GR).data() + at;
  float* numbers_R = (is_scale ? chunk.scale_number_GR : chunk.minimum_number_GR).data() + at;
  float* units_R = (is_scale ? chunk.scale_unit_BR : chunk.minimum_unit_BR).data() + unit_at;
  const double least = is_scale ? grid_.least_scale : 0.0, most = is_scale ? grid_.most_scale : grid_.most_minimum;
  const float sign = is_scale ? 1.0f : -1.0f;  // a superblock's minimum is subtracted
  std::vector<float> amounts_R(num_rows, 0.0f);
  bool changed = false;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (!(curvatures_R[r] > 0.0)) continue;
    const double exact = static_cast<double>(values_R[r]) + slopes_R[r] / curvatures_R[r];
    float number = 0.0f, value = held_half(exact);
    if (grid_.is_super()) {
      if (units_R[r] == 0.0f) continue;
      number = static_cast<float>(std::clamp(std::nearbyint(exact / (sign * units_R[r])), least, most));
      value = sign * (units_R[r] * number);
    }
    const double amount = static_cast<double>(value) - static_cast<double>(values_R[r]);
    if (!std::isfinite(value) || (is_scale && value == 0.0f) || !falls(amount, curvatures_R[r], slopes_R[r])) continue;
    amounts_R[r] = static_cast<float>(amount);
    values_R[r] = value;
    numbers_R[r] = number;
    if (!grid_.is_super()) units_R[r] = value;
    changed = true;
  }
  if (changed) shift_gradient(amounts_R, products_WR, view.gradient_WR);
  return changed;
}

// Chooses the best level of one column for every row where it is kept, with all else held. changes_R is what W' moves
// by. Returns true when any level moved.
template <bool is_table>
bool update_column_of_levels(const GgufLevels& levels, const float* gradient_R, const float* kept_R,
                             const float* scales_R, float curvature, int64_t num_rows, float* levels_R,
                             float* changes_R) {
  float moved = 0.0f;
#pragma omp simd reduction(+ : moved)
  for (int64_t r = 0; r < num_rows; ++r) {
    const float exact = levels_R[r] + gradient_R[r] / (curvature * scales_R[r]);
    const float level = is_table ? levels.nearest_in_table(exact) : levels.nearest_whole(exact);
    const float change = scales_R[r] * (level - levels_R[r]);
    bool better = change * (change * curvature - 2.0f * gradient_R[r]) < 0.0f;
    better = better && (kept_R == nullptr || kept_R[r] != 0.0f);
    changes_R[r] = better ? change : 0.0f;
    levels_R[r] = better ? level : levels_R[r];
    moved += better ? 1.0f : 0.0f;
  }
  return moved > 0.0f;
}

bool Descent::update_levels(BlockChunk& chunk, const BlockView& view, int64_t group) const {
  const int64_t num_rows = chunk.num_rows, stride = view.hessian_WW.stride(0);
  const float* hessian = view.hessian_WW.const_data_ptr<float>();
  float* gradient = view.gradient_WR.mutable_data_ptr<float>();
  const auto update = levels_.is_table() ? update_column_of_levels<true> : update_column_of_levels<false>;
  std::vector<float> changes_R(num_rows);
  bool changed = false;
  for (int64_t k = 0; k < view.width; ++k) {
    const int64_t at = (view.begin + k) * num_rows;
    const float* kept_R = chunk.kept_IR.defined() ? chunk.kept_IR.const_data_ptr<float>() + at : nullptr;
    // An input that never fires (H_kk == 0) gives no reason to prefer a code: 0 / 0 compares as not better.
    if (!update(levels_, gradient + k * num_rows, kept_R, chunk.scale_GR.data() + group * num_rows,
                hessian[k * stride + k], num_rows, chunk.level_IR.mutable_data_ptr<float>() + at, changes_R.data())) {
      continue;
    }
    changed = true;
    spread_change(changes_R.data(), hessian + k * stride, k + 1, view.width, num_rows, gradient);
  }
  return changed;
}

// The gradient of the block's later columns follows.
bool Descent::update_group(BlockChunk& chunk, const BlockView& of_block, int64_t group) const {
  const int64_t begin = group * grid_.group, offset = begin - of_block.begin, width = grid_.group;
  const BlockView view{begin, width, of_block.hessian_WW.narrow(0, offset, width).narrow(1, offset, width),
                       of_block.gradient_WR.narrow(0, offset, width)};
  bool changed = update_number(chunk, view, group, /*is_scale=*/true);
  if (grid_.has_minimum) changed |= update_number(chunk, view, group, /*is_scale=*/false);
  changed |= update_levels(chunk, view, group);
  if (!changed) return false;
  const at::Tensor errors_WR = chunk.error_IR.narrow(0, begin, width), before_WR = errors_WR.clone();
  refresh_errors(chunk, begin, width);
  const int64_t later = offset + width, num_later = of_block.width - later;
  if (num_later > 0) {
    of_block.gradient_WR.narrow(0, later, num_later)
        .addmm_(of_block.hessian_WW.narrow(0, later, num_later).narrow(1, offset, width), errors_WR.sub(before_WR));
  }
  return true;
}

bool Descent::sweep(BlockChunk& chunk) const {
  bool changed = false;
  for (int64_t b = 0; b < num_blocks_; ++b) {
    const int64_t begin = b * grid_.size, width = grid_.size;
    const at::Tensor hessian_WI = hessian_II_.narrow(0, begin, width);
    const BlockView view{begin, width, hessian_WI.narrow(1, begin, width), at::mm(hessian_WI, chunk.error_IR)};
    if (grid_.is_super()) {
      bool moved = update_unit(chunk, view, /*is_scale=*/true);
      if (grid_.has_minimum) moved |= update_unit(chunk, view, /*is_scale=*/false);
      if (moved) refresh_errors(chunk, begin, width);
      changed |= moved;
    }
    for (int64_t g = 0; g < grid_.num_groups(); ++g) {
      changed |= update_group(chunk, view, b * grid_.num_groups() + g);
    }
  }
  return changed;
}

void Descent::scatter_row(const BlockChunk& chunk, int64_t r, int64_t row) const {
  const int64_t num_rows = chunk.num_rows, groups_in_block = grid_.num_groups();
  const float* levels = chunk.level_IR.const_data_ptr<float>();
  for (int64_t b = 0; b < num_blocks_; ++b) {
    GgufParts parts;
    parts.scale = chunk.scale_unit_BR[b * num_rows + r];
    parts.minimum = chunk.minimum_unit_BR[b * num_rows + r];
    for (int64_t g = 0; g < groups_in_block; ++g) {
      const int64_t at = (b * groups_in_block + g) * num_rows + r;
      parts.scales[static_cast<size_t>(g)] = static_cast<int>(chunk.scale_number_GR[at]);
      parts.minima[static_cast<size_t>(g)] = static_cast<int>(chunk.minimum_number_GR[at]);
    }
    for (int64_t i = 0; i < grid_.size; ++i) {
      parts.codes[static_cast<size_t>(i)] = levels_.code_of(levels[(b * grid_.size + i) * num_rows + r]);
    }
    runtime::put_together(grid_, parts, block(row, b));
  }
}

}  // namespace

void descend_blocks(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& kept_OI,
                    const runtime::GgufGrid& grid, int sweeps, double damping, std::span<uint8_t> blocks) {
  const double added = absolute_damping(hessian_II, damping);
  const at::Tensor damped_II = damped(hessian_II, added);
  const Descent descent(weight_OI, damped_II, kept_OI, grid, blocks);
  for_row_chunks(weight_OI.size(0), kDescentRows, [&](int64_t first_row, int64_t num_rows) {
    BlockChunk chunk = descent.gather(first_row, num_rows);
    const RowTraces before = row_traces(chunk.error_IR, damped_II, added);
    for (int i = 0; i < sweeps; ++i) {
      if (!descent.sweep(chunk)) break;
    }
    const RowTraces after = row_traces(chunk.error_IR, damped_II, added);
    for (int64_t r = 0; r < num_rows; ++r) {
      if (after.damped_R[r] < before.damped_R[r] && after.plain_R[r] <= before.plain_R[r]) {
        descent.scatter_row(chunk, r, first_row + r);
      }
    }
  });
}

}  // namespace pare::quant
