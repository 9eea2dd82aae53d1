// Let H be the damped Hessian, E = W - W' (rows of a chunk, float32), G = E H the half gradient and c = code - zero. A
// change D of W' changes the trace by tr(D H D^T) - 2 tr(D G^T). A sweep visits the groups in order. For each group, G
// of its columns is computed afresh by one matrix product over all columns, so that no rounding builds up over a sweep.
// Then, per row, these change:
//   the scale   s   += (c . G) / (c H c^T), the least-squares step with all else held; rounded to the stored type
//   the zero    z   -= (m . G) / (s (m H m^T)), rounded to an integer, codes held where m = 1; m = 0 in pruned places,
//                      whose codes go with the zero
//   each code   W'_j = the grid point nearest to W'_j + G_j / H_jj (QuantEase, equation 8), columns in order; G of the
//                      later columns follows
// A code with a table has c = value and no zeros, and its scale here is the stored one divided by the tensor's.
// Each change is taken only where it lowers the trace. Pruned codes stay at the zero, c = 0.
// Scales of a row interact through H. Visiting them in turn with codes between is Gauss-Seidel on their normal
// equations (the G x G system C^T H C s = C^T H w). Each sweep adds no further product over all columns for it, and
// later groups make up for the rounding of earlier ones.
//
// As in gptq.cpp, a worker takes kRefinedRows rows and keeps them transposed, [I, R]. Errors of float32 are caught at
// the end: a row is taken only when its trace fell. The products of the first and the last sweep make up the traces
// before and after. Where they differ by less than float32 can have moved them (trace_descent.h), both are summed anew
// in float64. The tests' oracles are brute force over all codes, closed forms, a float64 twin and the dense normal
// equations.
#include "quant/refine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/code_points.h"
#include "quant/row_chunks.h"
#include "quant/trace_descent.h"

namespace pare::quant {
namespace {

constexpr int64_t kRefinedRows = 96;
constexpr int64_t kBlockColumns = 128;  // codes whose changes reach the rest of a wide group by one product

// Columns in an order in which those of a group lie side by side. Storage has that order unless the weight has a g_idx.
struct Layout {
  std::vector<int64_t> order_I;  // position -> column
  std::vector<int64_t> first_G;  // first position of each group, and I at the end
  at::Tensor hessian_II;         // float32, in this order, damped
  at::Tensor norms_IB;           // its row_norms
  double damping = 0.0;          // the value that was added to its diagonal
};

Layout make_layout(const runtime::QuantizedWeight& weight, const DampedHessian& hessian) {
  Layout layout;
  layout.order_I.resize(weight.num_in);
  std::iota(layout.order_I.begin(), layout.order_I.end(), 0);
  std::stable_sort(layout.order_I.begin(), layout.order_I.end(),
                   [&](int64_t a, int64_t b) { return weight.group(a) < weight.group(b); });
  layout.first_G.assign(weight.num_groups() + 1, 0);
  for (int64_t i = 0; i < weight.num_in; ++i) ++layout.first_G[weight.group(i) + 1];
  std::partial_sum(layout.first_G.begin(), layout.first_G.end(), layout.first_G.begin());
  layout.hessian_II = hessian.hessian_II;
  layout.norms_IB = hessian.norms_IB;
  layout.damping = hessian.added;
  if (!weight.group_of_I.empty()) {
    const at::Tensor index = at::tensor(layout.order_I);
    layout.hessian_II = hessian.hessian_II.index_select(0, index).index_select(1, index);
    layout.norms_IB = row_norms(layout.hessian_II);
  }
  return layout;
}

// One worker's rows, transposed, with columns in the layout's order.
struct RowChunk {
  int64_t num_rows;
  at::Tensor weight_IR;  // float32
  at::Tensor error_IR;   // float32, W - W'
  at::Tensor kept_IR;    // float32, 1 where a weight is kept and 0 where it is pruned; undefined: all are kept
  // A code with a table has values here, effective scales, and zeros that are 0.
  std::vector<float> codes_IR, scales_GR, zeros_GR;
};

// The steps of a code: whole numbers up to a largest one, or the values of a table.
struct Steps {
  float levels;
  std::optional<CodePoints> points = {};
  explicit Steps(const runtime::QuantizedWeight& weight) : levels(static_cast<float>((1 << weight.bits) - 1)) {
    if (!weight.code->is_integer()) points.emplace(*weight.code);
  }
};

// Computes E at the positions [begin, begin + width), all of one group.
void refresh_errors(RowChunk& chunk, int64_t group, int64_t begin, int64_t width) {
  const int64_t num_rows = chunk.num_rows;
  const float* scales_R = chunk.scales_GR.data() + group * num_rows;
  const float* zeros_R = chunk.zeros_GR.data() + group * num_rows;
  for (int64_t p = begin; p < begin + width; ++p) {
    const float* weights_R = chunk.weight_IR.const_data_ptr<float>() + p * num_rows;
    const float* codes_R = chunk.codes_IR.data() + p * num_rows;
    float* errors_R = chunk.error_IR.mutable_data_ptr<float>() + p * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) errors_R[r] = weights_R[r] - scales_R[r] * (codes_R[r] - zeros_R[r]);
  }
}

// Copies the mask of a chunk's rows. Throws std::invalid_argument unless every pruned code is its zero.
at::Tensor gather_mask(const at::Tensor& kept_OI, const runtime::QuantizedWeight& start, const Layout& layout,
                       int64_t first_row, int64_t num_rows) {
  at::Tensor kept_IR = at::empty({start.num_in, num_rows}, at::kFloat);
  float* gathered = kept_IR.mutable_data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const bool* kept_I = kept_OI.const_data_ptr<bool>() + row * start.num_in;
    for (int64_t p = 0; p < start.num_in; ++p) {
      const int64_t column = layout.order_I[p];
      gathered[p * num_rows + r] = kept_I[column] ? 1.0f : 0.0f;
      const int code = start.codes_OI[row * start.num_in + column], zero = start.zero(row, start.group(column));
      const bool is_zero =
          code == zero || (!start.code->is_integer() && start.code->value(static_cast<uint8_t>(code)) == 0.0f);
      if (kept_I[column] || is_zero) continue;
      throw std::invalid_argument("refine: the weight at [" + std::to_string(row) + ", " + std::to_string(column) +
                                  "] is pruned: expected the code of its zero, " + std::to_string(zero) + ", found " +
                                  std::to_string(code) + "; round it with the same mask");
    }
  }
  return kept_IR;
}

RowChunk gather_chunk(const at::Tensor& weight_OI, const runtime::QuantizedWeight& start, const at::Tensor& kept_OI,
                      const Layout& layout, int64_t first_row, int64_t num_rows) {
  const int64_t num_in = start.num_in, num_groups = start.num_groups();
  RowChunk chunk{
      num_rows, at::empty({num_in, num_rows}, at::kFloat), at::empty({num_in, num_rows}, at::kFloat), {}, {}, {}, {}};
  if (kept_OI.defined()) chunk.kept_IR = gather_mask(kept_OI, start, layout, first_row, num_rows);
  chunk.codes_IR.resize(num_in * num_rows);
  chunk.scales_GR.resize(num_groups * num_rows);
  chunk.zeros_GR.resize(num_groups * num_rows);
  float* gathered = chunk.weight_IR.mutable_data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const float* weights_I = weight_OI.const_data_ptr<float>() + row * num_in;
    const uint8_t* codes_I = start.codes_OI.data() + row * num_in;
    for (int64_t p = 0; p < num_in; ++p) {
      gathered[p * num_rows + r] = weights_I[layout.order_I[p]];
      const uint8_t code = codes_I[layout.order_I[p]];
      chunk.codes_IR[p * num_rows + r] = start.code->value(code);
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      chunk.scales_GR[g * num_rows + r] = start.scales_OG[row * num_groups + g] / start.tensor_scale;
      chunk.zeros_GR[g * num_rows + r] = start.code->is_integer() ? static_cast<float>(start.zero(row, g)) : 0.0f;
    }
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    refresh_errors(chunk, g, layout.first_G[g], layout.first_G[g + 1] - layout.first_G[g]);
  }
  return chunk;
}

// One group of one chunk while it is visited.
struct GroupView {
  int64_t group, begin, width;
  at::Tensor hessian_WW;   // the group's square of H, a view
  at::Tensor gradient_WR;  // E H of its columns
};

// Returns the scale of that type that is nearest. round_to takes the power of two below, and from 1.5 times a power on
// the next one is nearer.
float nearest_scale(double exact, runtime::DType scale_dtype) {
  return runtime::round_to(static_cast<float>(scale_dtype == runtime::DType::F8_E8M0 ? exact * 4.0 / 3.0 : exact),
                           scale_dtype);
}

bool update_scales(RowChunk& chunk, GroupView& view, runtime::DType scale_dtype, float tensor_scale) {
  const int64_t num_rows = chunk.num_rows;
  float* scales_R = chunk.scales_GR.data() + view.group * num_rows;
  const float* zeros_R = chunk.zeros_GR.data() + view.group * num_rows;
  const float* codes = chunk.codes_IR.data() + view.begin * num_rows;
  const at::Tensor steps_WR = at::empty({view.width, num_rows}, at::kFloat);
  float* steps = steps_WR.mutable_data_ptr<float>();
  for (int64_t i = 0; i < view.width; ++i) {
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) steps[i * num_rows + r] = codes[i * num_rows + r] - zeros_R[r];
  }
  const at::Tensor products_WR = at::mm(view.hessian_WW, steps_WR);
  const std::vector<double> slopes_R =
      column_dots(steps, view.gradient_WR.const_data_ptr<float>(), view.width, num_rows);
  const std::vector<double> curvatures_R =
      column_dots(steps, products_WR.const_data_ptr<float>(), view.width, num_rows);

  std::vector<float> amounts_R(num_rows, 0.0f);
  bool changed = false;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (!(curvatures_R[r] > 0.0)) continue;
    const double exact = static_cast<double>(scales_R[r]) + slopes_R[r] / curvatures_R[r];
    const float stored = nearest_scale(exact * tensor_scale, scale_dtype), scale = stored / tensor_scale;
    if (!std::isfinite(stored) || stored < smallest_scale(scale_dtype)) continue;
    if (!falls(static_cast<double>(scale) - scales_R[r], curvatures_R[r], slopes_R[r])) continue;
    amounts_R[r] = scale - scales_R[r];
    scales_R[r] = scale;
    changed = true;
  }
  if (changed) shift_gradient(amounts_R, products_WR, view.gradient_WR);
  return changed;
}

// Sets the codes of a group's pruned weights to its zero.
void follow_zeros(RowChunk& chunk, const GroupView& view) {
  const int64_t num_rows = chunk.num_rows;
  const float* zeros_R = chunk.zeros_GR.data() + view.group * num_rows;
  for (int64_t p = view.begin; p < view.begin + view.width; ++p) {
    const float* kept_R = chunk.kept_IR.const_data_ptr<float>() + p * num_rows;
    float* codes_R = chunk.codes_IR.data() + p * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) codes_R[r] = kept_R[r] != 0.0f ? codes_R[r] : zeros_R[r];
  }
}

// Updates the group's zeros. A zero that is one higher lowers all kept values of the group by one scale.
bool update_zeros(RowChunk& chunk, GroupView& view, float levels) {
  const int64_t num_rows = chunk.num_rows;
  const float* scales_R = chunk.scales_GR.data() + view.group * num_rows;
  float* zeros_R = chunk.zeros_GR.data() + view.group * num_rows;
  const bool all_kept = !chunk.kept_IR.defined();
  const at::Tensor kept_WR =
      all_kept ? at::ones({view.width, num_rows}, at::kFloat) : chunk.kept_IR.narrow(0, view.begin, view.width);
  const at::Tensor products_WR = at::mm(view.hessian_WW, kept_WR);
  const float* kept = kept_WR.const_data_ptr<float>();
  const std::vector<double> slopes_R =
      column_dots(kept, view.gradient_WR.const_data_ptr<float>(), view.width, num_rows);
  const std::vector<double> curvatures_R = column_dots(kept, products_WR.const_data_ptr<float>(), view.width, num_rows);

  std::vector<float> amounts_R(num_rows, 0.0f);
  bool changed = false;
  for (int64_t r = 0; r < num_rows; ++r) {
    const double curvature = curvatures_R[all_kept ? 0 : r];
    if (!(curvature > 0.0) || !(scales_R[r] > 0.0f)) continue;
    const double exact = zeros_R[r] - slopes_R[r] / (curvature * scales_R[r]);
    const float zero = std::clamp(static_cast<float>(std::nearbyint(exact)), 0.0f, levels);
    const float amount = (zeros_R[r] - zero) * scales_R[r];
    if (!falls(amount, curvature, slopes_R[r])) continue;
    amounts_R[r] = amount;
    zeros_R[r] = zero;
    changed = true;
  }
  if (changed) shift_gradient(amounts_R, products_WR, view.gradient_WR);
  if (changed && !all_kept) follow_zeros(chunk, view);
  return changed;
}

// Chooses the best code of one column for every row where it is kept, with everything else held. changes_R is what W'
// moves by. Returns true when any code moved.
template <bool all_kept>
bool update_column(const float* gradient_R, const float* kept_R, const float* scales_R, float curvature, float levels,
                   int64_t num_rows, float* codes_R, float* changes_R) {
  float moved = 0.0f;
#pragma omp simd reduction(+ : moved)
  for (int64_t r = 0; r < num_rows; ++r) {
    const float steps = gradient_R[r] / (curvature * scales_R[r]);
    const float code = std::min(std::max(codes_R[r] + std::nearbyint(steps), 0.0f), levels);
    const float change = scales_R[r] * (code - codes_R[r]);
    bool better = change * (change * curvature - 2.0f * gradient_R[r]) < 0.0f;
    if constexpr (!all_kept) better = better && kept_R[r] != 0.0f;
    changes_R[r] = better ? change : 0.0f;
    codes_R[r] = better ? code : codes_R[r];
    moved += better ? 1.0f : 0.0f;
  }
  return moved > 0.0f;
}

// The same for a code with a table.
template <bool all_kept>
bool update_column_of_points(const CodePoints& points, const float* gradient_R, const float* kept_R,
                             const float* scales_R, float curvature, int64_t num_rows, float* values_R,
                             float* changes_R) {
  float moved = 0.0f;
#pragma omp simd reduction(+ : moved)
  for (int64_t r = 0; r < num_rows; ++r) {
    const float value = points.nearest(values_R[r] + gradient_R[r] / (curvature * scales_R[r]));
    const float change = scales_R[r] * (value - values_R[r]);
    bool better = change * (change * curvature - 2.0f * gradient_R[r]) < 0.0f;
    if constexpr (!all_kept) better = better && kept_R[r] != 0.0f;
    changes_R[r] = better ? change : 0.0f;
    values_R[r] = better ? value : values_R[r];
    moved += better ? 1.0f : 0.0f;
  }
  return moved > 0.0f;
}

// Updates one column, of integers or of a table.
bool update_any_column(const Steps& steps, const float* gradient_R, const float* kept_R, const float* scales_R,
                       float curvature, int64_t num_rows, float* codes_R, float* changes_R) {
  if (!steps.points) {
    const auto update = kept_R == nullptr ? update_column<true> : update_column<false>;
    return update(gradient_R, kept_R, scales_R, curvature, steps.levels, num_rows, codes_R, changes_R);
  }
  const auto update = kept_R == nullptr ? update_column_of_points<true> : update_column_of_points<false>;
  return update(*steps.points, gradient_R, kept_R, scales_R, curvature, num_rows, codes_R, changes_R);
}

bool update_codes(RowChunk& chunk, GroupView& view, const Steps& steps) {
  const int64_t num_rows = chunk.num_rows;
  const int64_t stride = view.hessian_WW.stride(0);
  const float* hessian = view.hessian_WW.const_data_ptr<float>();
  const float* scales_R = chunk.scales_GR.data() + view.group * num_rows;
  const float* kept = chunk.kept_IR.defined() ? chunk.kept_IR.const_data_ptr<float>() : nullptr;
  float* gradient = view.gradient_WR.mutable_data_ptr<float>();
  const at::Tensor changes_BR = at::empty({std::min(kBlockColumns, view.width), num_rows}, at::kFloat);
  float* changes = changes_BR.mutable_data_ptr<float>();
  bool changed = false;
  for (int64_t begin = 0; begin < view.width; begin += kBlockColumns) {
    const int64_t end = std::min(begin + kBlockColumns, view.width);
    bool block_changed = false;
    for (int64_t k = begin; k < end; ++k) {
      float* changes_R = changes + (k - begin) * num_rows;
      const float* hessian_row = hessian + k * stride;
      // An input that never fires (H_kk == 0) gives no reason to prefer a code: 0 / 0 compares as not better.
      const int64_t row_begin = (view.begin + k) * num_rows;
      if (!update_any_column(steps, gradient + k * num_rows, kept == nullptr ? nullptr : kept + row_begin, scales_R,
                             hessian_row[k], num_rows, &chunk.codes_IR[row_begin], changes_R)) {
        continue;
      }
      block_changed = true;
      spread_change(changes_R, hessian_row, k + 1, end, num_rows, gradient);
    }
    changed |= block_changed;
    if (!block_changed || end == view.width) continue;
    view.gradient_WR.narrow(0, end, view.width - end)
        .addmm_(view.hessian_WW.narrow(0, end, view.width - end).narrow(1, begin, end - begin),
                changes_BR.narrow(0, 0, end - begin), /*beta=*/1, /*alpha=*/-1);
  }
  return changed;
}

// Adds weight * E . P of every row, with E of the group's columns and P, float64 [W, R].
void add_dots(const RowChunk& chunk, int64_t begin, double weight, const std::vector<double>& products_WR,
              std::vector<double>& sums_R) {
  const int64_t num_rows = chunk.num_rows, width = static_cast<int64_t>(products_WR.size()) / num_rows;
  for (int64_t i = 0; i < width; ++i) {
    const float* errors_R = chunk.error_IR.const_data_ptr<float>() + (begin + i) * num_rows;
    const double* products_R = products_WR.data() + i * num_rows;
    double* sums = sums_R.data();
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) sums[r] += weight * static_cast<double>(errors_R[r]) * products_R[r];
  }
}

// The findings of a sweep about a chunk's rows.
struct Swept {
  bool changed = false;  // false: the next sweep would not move anything either
  // The traces under the damped H before and after the sweep, from the products that the sweep makes anyway.
  std::vector<double> before_R, after_R;
};

// Sweeps once over a chunk. after_R is found where nothing moved, and where `finds_after`.
Swept sweep(RowChunk& chunk, const Layout& layout, const runtime::QuantizedWeight& start, const RefineOptions& options,
            bool finds_after) {
  const Steps steps(start);
  const int64_t num_rows = chunk.num_rows;
  Swept swept{false, std::vector<double>(num_rows, 0.0), std::vector<double>(num_rows, 0.0)};
  for (int64_t g = 0; g < start.num_groups(); ++g) {
    const int64_t begin = layout.first_G[g], width = layout.first_G[g + 1] - begin, end = begin + width;
    if (width == 0) continue;
    const at::Tensor hessian_WI = layout.hessian_II.narrow(0, begin, width);
    const auto add_columns = [&](int64_t first, int64_t last, std::vector<double>& products_WR) {
      add_product(hessian_WI.narrow(1, first, last - first), chunk.error_IR.narrow(0, first, last - first),
                  products_WR);
    };
    // Columns of earlier groups have their new errors. H is symmetric: with the columns after a group counted twice,
    // the groups' products make up the trace before the sweep. With the columns in front of it, that after the sweep.
    std::vector<double> own_WR(width * num_rows, 0.0), others_WR(width * num_rows, 0.0);
    add_columns(begin, end, own_WR);
    add_columns(end, start.num_in, others_WR);
    add_dots(chunk, begin, 1.0, own_WR, swept.before_R);
    add_dots(chunk, begin, 2.0, others_WR, swept.before_R);
    GroupView view{g, begin, width, hessian_WI.narrow(1, begin, width), at::empty({width, num_rows}, at::kFloat)};
    std::vector<double> earlier_WR(width * num_rows, 0.0);
    add_columns(0, begin, earlier_WR);
    float* gradient = view.gradient_WR.mutable_data_ptr<float>();
    for (int64_t i = 0; i < width * num_rows; ++i) {
      gradient[i] = static_cast<float>(own_WR[i] + others_WR[i] + earlier_WR[i]);
    }
    bool group_changed = false;
    if (options.grids) group_changed |= update_scales(chunk, view, start.scale_dtype, start.tensor_scale);
    if (options.grids && !start.symmetric) group_changed |= update_zeros(chunk, view, steps.levels);
    group_changed |= update_codes(chunk, view, steps);
    if (group_changed) {
      refresh_errors(chunk, g, begin, width);
      if (finds_after) {
        std::fill(own_WR.begin(), own_WR.end(), 0.0);
        add_columns(begin, end, own_WR);
      }
    }
    add_dots(chunk, begin, 1.0, own_WR, swept.after_R);
    add_dots(chunk, begin, 2.0, earlier_WR, swept.after_R);
    swept.changed |= group_changed;
  }
  return swept;
}

void scatter_row(const RowChunk& chunk, const Layout& layout, int64_t r, int64_t row,
                 runtime::QuantizedWeight& result) {
  const Steps steps(result);
  const int64_t num_groups = result.num_groups();
  uint8_t* codes_I = result.codes_OI.data() + row * result.num_in;
  for (int64_t p = 0; p < result.num_in; ++p) {
    const float code = chunk.codes_IR[p * chunk.num_rows + r];
    codes_I[layout.order_I[p]] =
        steps.points ? steps.points->code_at(steps.points->place(code)) : static_cast<uint8_t>(code);
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    // The product errs by a unit in the last place of float32, which rounding to a narrower type undoes.
    const float scale = chunk.scales_GR[g * chunk.num_rows + r];
    result.scales_OG[row * num_groups + g] =
        result.tensor_scale == 1.0f ? scale : runtime::round_to(scale * result.tensor_scale, result.scale_dtype);
    if (!result.symmetric) {
      result.zeros_OG[row * num_groups + g] = static_cast<uint8_t>(chunk.zeros_GR[g * chunk.num_rows + r]);
    }
  }
}

void check_damping(double damping) {
  if (damping >= 0.0 && damping <= 1.0) return;
  throw std::invalid_argument("damping: expected a number from 0 to 1, found " + std::to_string(damping));
}

void check_refine_options(const RefineOptions& options, const DampedHessian& hessian) {
  if (options.sweeps < 0 || options.sweeps > kMaxRefineSweeps) {
    throw std::invalid_argument("sweeps: expected 0 to " + std::to_string(kMaxRefineSweeps) + ", found " +
                                std::to_string(options.sweeps));
  }
  check_damping(options.damping);
  if (options.damping != hessian.damping) {
    throw std::invalid_argument("refine: the Hessian was damped by " + std::to_string(hessian.damping) +
                                ", and the options say " + std::to_string(options.damping));
  }
}

// The traces of a chunk before and after, and whether each row fell.
struct Judged {
  std::vector<double> before_R, after_R;  // without damping
  std::vector<bool> fell_R;
};

// Sets what float32 could not decide, from sums in float64. first_IR holds the errors as they were.
void judge_exactly(const at::Tensor& first_IR, const RowChunk& chunk, const Layout& layout,
                   const std::vector<int64_t>& rows, Judged& judged) {
  const at::Tensor index = at::tensor(rows);
  const RowTraces before = row_traces(first_IR.index_select(1, index), layout.hessian_II, layout.damping);
  const RowTraces after = row_traces(chunk.error_IR.index_select(1, index), layout.hessian_II, layout.damping);
  for (size_t k = 0; k < rows.size(); ++k) {
    judged.before_R[rows[k]] = before.plain_R[k];
    judged.after_R[rows[k]] = after.plain_R[k];
    judged.fell_R[rows[k]] = after.damped_R[k] < before.damped_R[k] && after.plain_R[k] <= before.plain_R[k];
  }
}

// Returns the sum over a chunk's rows of W H W^T, without damping. It is a figure for a record: products are float32.
double chunk_signal(const RowChunk& chunk, const Layout& layout) {
  const int64_t num_in = chunk.weight_IR.size(0), num_rows = chunk.num_rows;
  const float* weights = chunk.weight_IR.const_data_ptr<float>();
  double sum = 0.0;
  for (int64_t begin = 0; begin < num_in; begin += kBlockColumns) {
    const int64_t width = std::min(kBlockColumns, num_in - begin), end = begin + width;
    const at::Tensor hessian_WI = layout.hessian_II.narrow(0, begin, width);
    std::vector<double> own_WR(width * num_rows, 0.0), later_WR(width * num_rows, 0.0);
    add_product(hessian_WI.narrow(1, begin, width), chunk.weight_IR.narrow(0, begin, width), own_WR);
    add_product(hessian_WI.narrow(1, end, num_in - end), chunk.weight_IR.narrow(0, end, num_in - end), later_WR);
    const float* weights_WR = weights + begin * num_rows;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width * num_rows; ++i) {
      const double weight = static_cast<double>(weights_WR[i]);
      sum += weight * (own_WR[i] + 2.0 * later_WR[i] - layout.damping * weight);
    }
  }
  return std::max(sum, 0.0);
}

// Returns the rows of a chunk whose errors are others than they were.
std::vector<bool> moved_rows(const at::Tensor& first_IR, const RowChunk& chunk) {
  std::vector<bool> moved_R(chunk.num_rows, false);
  const float* was = first_IR.const_data_ptr<float>();
  const float* is = chunk.error_IR.const_data_ptr<float>();
  for (int64_t i = 0; i < chunk.error_IR.numel(); ++i) {
    if (was[i] != is[i]) moved_R[i % chunk.num_rows] = true;
  }
  return moved_R;
}

// Sweeps over a chunk and judges its rows. Both traces of a row must differ by more than they may be off. Where they
// do not, float64 decides.
Judged refine_chunk(RowChunk& chunk, const Layout& layout, const runtime::QuantizedWeight& start,
                    const RefineOptions& options) {
  const int64_t num_rows = chunk.num_rows;
  const at::Tensor first_IR = chunk.error_IR.clone();
  const std::vector<double> bounds_before_R = trace_bounds(chunk.error_IR, layout.norms_IB);
  const std::vector<double> squares_before_R = squared_errors(chunk.error_IR);
  std::vector<double> before_R, after_R;
  for (int step = 0; step < options.sweeps; ++step) {
    Swept swept = sweep(chunk, layout, start, options, step + 1 == options.sweeps);
    if (step == 0) before_R = std::move(swept.before_R);
    after_R = std::move(swept.after_R);
    if (!swept.changed) break;
  }
  const std::vector<double> bounds_after_R = trace_bounds(chunk.error_IR, layout.norms_IB);
  const std::vector<double> squares_after_R = squared_errors(chunk.error_IR);
  Judged judged{std::vector<double>(num_rows), std::vector<double>(num_rows), std::vector<bool>(num_rows, false)};
  std::vector<int64_t> unsure;
  for (int64_t r = 0; r < num_rows; ++r) {
    judged.before_R[r] = before_R[r] - layout.damping * squares_before_R[r];
    judged.after_R[r] = after_R[r] - layout.damping * squares_after_R[r];
    const double bound = bounds_before_R[r] + bounds_after_R[r];
    const double fall = before_R[r] - after_R[r], plain_fall = judged.before_R[r] - judged.after_R[r];
    judged.fell_R[r] = fall > bound && plain_fall > bound;
    const bool rose = fall < -bound || plain_fall < -bound;
    if (!judged.fell_R[r] && !rose) unsure.push_back(r);
  }
  if (unsure.empty()) return judged;
  const std::vector<bool> moved_R = moved_rows(first_IR, chunk);
  std::erase_if(unsure, [&](int64_t r) { return !moved_R[r] && std::isfinite(before_R[r]); });
  if (!unsure.empty()) judge_exactly(first_IR, chunk, layout, unsure, judged);
  return judged;
}

}  // namespace

DampedHessian damped_hessian(const at::Tensor& hessian_II, double damping) {
  check_damping(damping);
  const at::Tensor hessian = checked_hessian(hessian_II);
  DampedHessian result;
  result.damping = damping;
  result.added = absolute_damping(hessian, damping);
  result.hessian_II = damped(hessian, result.added);
  result.norms_IB = row_norms(result.hessian_II);
  return result;
}

RefineResult refine(const at::Tensor& weight_OI, const runtime::QuantizedWeight& start, const at::Tensor& hessian_II,
                    const RefineOptions& options, const at::Tensor& kept_OI) {
  return refine(weight_OI, start, damped_hessian(hessian_II, options.damping), options, kept_OI);
}

RefineResult refine(const at::Tensor& weight_OI, const runtime::QuantizedWeight& start, const DampedHessian& hessian,
                    const RefineOptions& options, const at::Tensor& kept_OI) {
  check_refine_options(options, hessian);
  runtime::validate(start, "the weight to refine");
  const at::Tensor weight = checked_weight(weight_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  if (start.num_out != num_out || start.num_in != num_in || hessian.hessian_II.size(0) != num_in) {
    throw std::invalid_argument("refine: expected a rounded weight of shape " + shape_text(weight) +
                                " and a Hessian of its " + std::to_string(num_in) + " columns, found [" +
                                std::to_string(start.num_out) + ", " + std::to_string(start.num_in) + "] and " +
                                shape_text(hessian.hessian_II));
  }
  if (kept_OI.defined()) check_kept(kept_OI, num_out, num_in);
  const at::Tensor kept = kept_OI.defined() ? kept_OI.contiguous() : kept_OI;
  const Layout layout = make_layout(start, hessian);
  RefineResult result{start, 0.0, 0.0, 0.0};
  std::vector<double> before_O(num_out), after_O(num_out);
  std::vector<double> signals((num_out + kRefinedRows - 1) / kRefinedRows);
  for_row_chunks(num_out, kRefinedRows, [&](int64_t first_row, int64_t num_rows) {
    RowChunk chunk = gather_chunk(weight, start, kept, layout, first_row, num_rows);
    signals[first_row / kRefinedRows] = chunk_signal(chunk, layout);
    if (options.sweeps == 0) {
      const RowTraces traces = row_traces(chunk.error_IR, layout.hessian_II, layout.damping);
      std::copy(traces.plain_R.begin(), traces.plain_R.end(), before_O.begin() + first_row);
      std::copy(traces.plain_R.begin(), traces.plain_R.end(), after_O.begin() + first_row);
      return;
    }
    const Judged judged = refine_chunk(chunk, layout, start, options);
    for (int64_t r = 0; r < num_rows; ++r) {
      if (judged.fell_R[r]) scatter_row(chunk, layout, r, first_row + r, result.weight);
      before_O[first_row + r] = judged.before_R[r];
      after_O[first_row + r] = judged.fell_R[r] ? judged.after_R[r] : judged.before_R[r];
    }
  });
  result.signal = std::accumulate(signals.begin(), signals.end(), 0.0);
  result.trace_before = std::accumulate(before_O.begin(), before_O.end(), 0.0);
  result.trace_after = std::accumulate(after_O.begin(), after_O.end(), 0.0);
  return result;
}

}  // namespace pare::quant
