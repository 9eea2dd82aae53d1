#include "distill/straight_through.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "distill/by_ops.h"
#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

constexpr int64_t kRowsOfTask = 8;

void check(bool fits, const std::string& what, const at::Tensor& found) {
  if (fits) return;
  throw std::invalid_argument(
      "trained grid: expected " + what + ", found " +
      (found.defined() ? found.toString() + " " + quant::shape_text(found) : std::string("none")));
}

void check_values(const at::Tensor& values_OI, const TrainedGrid& grid, const std::string& name) {
  check(values_OI.defined() && values_OI.scalar_type() == at::kFloat && values_OI.sizes() == grid.start_OI.sizes() &&
            values_OI.is_contiguous(),
        name + " as contiguous float32 " + quant::shape_text(grid.start_OI), values_OI);
}

void check_grid(const TrainedGrid& grid, const at::Tensor& offsets_OI) {
  check(grid.bits >= 1 && grid.bits <= 8 && grid.start_OI.defined() && grid.start_OI.dim() == 2 &&
            grid.start_OI.scalar_type() == at::kByte && grid.start_OI.is_contiguous(),
        "codes of 1 to 8 bits as contiguous uint8 [O, I]", grid.start_OI);
  check_values(offsets_OI, grid, "offsets");
  check(!grid.kept_OI.defined() || (grid.kept_OI.scalar_type() == at::kBool &&
                                    grid.kept_OI.sizes() == grid.start_OI.sizes() && grid.kept_OI.is_contiguous()),
        "kept as contiguous bool " + quant::shape_text(grid.start_OI), grid.kept_OI);
  check(grid.group_I.defined() && grid.group_I.scalar_type() == at::kLong && grid.group_I.dim() == 1 &&
            grid.group_I.size(0) == grid.start_OI.size(1) && grid.group_I.is_contiguous(),
        "a group of every column, contiguous int64 [I]", grid.group_I);
  check(grid.zeros_OG.defined() && grid.zeros_OG.dim() == 2 && grid.zeros_OG.scalar_type() == at::kFloat &&
            grid.zeros_OG.size(0) == grid.start_OI.size(0) && grid.zeros_OG.is_contiguous(),
        "zeros as contiguous float32 [O, G]", grid.zeros_OG);
}

void check_scales(const TrainedGrid& grid, const at::Tensor& scales_OG) {
  check(scales_OG.defined() && scales_OG.scalar_type() == at::kFloat && scales_OG.sizes() == grid.zeros_OG.sizes() &&
            scales_OG.is_contiguous(),
        "scales as contiguous float32 " + quant::shape_text(grid.zeros_OG), scales_OG);
}

// Neighbouring columns of one group. With a stored order of activations, a run may be as short as one column.
struct Run {
  int64_t first, count, group;
};

std::vector<Run> runs_of(const TrainedGrid& grid) {
  const int64_t* const group = grid.group_I.const_data_ptr<int64_t>();
  const int64_t num_in = grid.group_I.size(0), num_groups = grid.zeros_OG.size(1);
  std::vector<Run> runs;
  for (int64_t i = 0; i < num_in; ++i) {
    if (group[i] < 0 || group[i] >= num_groups) {
      throw std::invalid_argument("trained grid: expected groups 0 .. " + std::to_string(num_groups - 1) + ", found " +
                                  std::to_string(group[i]));
    }
    if (runs.empty() || runs.back().group != group[i]) {
      runs.push_back({i, 1, group[i]});
    } else {
      ++runs.back().count;
    }
  }
  return runs;
}

// Pointers to row `o` of a grid's tensors.
struct Row {
  const uint8_t* start;
  const bool* kept;  // null: all
  const float* offsets;
  const float* zeros;
  float top;

  Row(const TrainedGrid& grid, const at::Tensor& offsets_OI, int64_t o)
      : start(grid.start_OI.const_data_ptr<uint8_t>() + o * grid.start_OI.size(1)),
        kept(grid.kept_OI.defined() ? grid.kept_OI.const_data_ptr<bool>() + o * grid.start_OI.size(1) : nullptr),
        offsets(offsets_OI.const_data_ptr<float>() + o * grid.start_OI.size(1)),
        zeros(grid.zeros_OG.const_data_ptr<float>() + o * grid.zeros_OG.size(1)),
        top(static_cast<float>((1 << grid.bits) - 1)) {}

  float place(int64_t i) const { return offsets[i] + static_cast<float>(start[i]); }
  bool keeps(int64_t i) const { return kept == nullptr || kept[i]; }
  float code(int64_t i, float zero) const {
    return keeps(i) ? std::rint(std::min(std::max(place(i), 0.0f), top)) : zero;
  }
};

// Calls work(row, o, run) for all rows, from several threads, and all runs.
template <typename Work>
void for_runs(const TrainedGrid& grid, const at::Tensor& offsets_OI, const Work& work) {
  const std::vector<Run> runs = runs_of(grid);
  at::parallel_for(0, grid.start_OI.size(0), kRowsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const Row row(grid, offsets_OI, o);
      for (const Run& run : runs) work(row, o, run);
    }
  });
}

}  // namespace

at::Tensor codes_of(const TrainedGrid& grid, const at::Tensor& offsets_OI) {
  check_grid(grid, offsets_OI);
  if (!offsets_OI.is_cpu()) return codes_by_ops(grid, offsets_OI);
  at::Tensor codes_OI = at::empty_like(grid.start_OI);
  const int64_t num_in = codes_OI.size(1);
  uint8_t* const codes = codes_OI.data_ptr<uint8_t>();
  for_runs(grid, offsets_OI, [&](const Row& row, int64_t o, const Run& run) {
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      codes[o * num_in + i] = static_cast<uint8_t>(row.code(i, row.zeros[run.group]));
    }
  });
  return codes_OI;
}

at::Tensor weight_of(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG) {
  check_grid(grid, offsets_OI);
  check_scales(grid, scales_OG);
  if (!offsets_OI.is_cpu()) return weight_by_ops(grid, offsets_OI, scales_OG);
  at::Tensor weight_OI = at::empty_like(offsets_OI);
  const int64_t num_in = weight_OI.size(1), num_groups = scales_OG.size(1);
  const float* const scales = scales_OG.const_data_ptr<float>();
  float* const weight = weight_OI.data_ptr<float>();
  for_runs(grid, offsets_OI, [&](const Row& row, int64_t o, const Run& run) {
    const float zero = row.zeros[run.group], scale = scales[o * num_groups + run.group];
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      weight[o * num_in + i] = scale * (row.code(i, zero) - zero);
    }
  });
  return weight_OI;
}

at::Tensor grid_gradients(const TrainedGrid& grid, const at::Tensor& offsets_OI, const at::Tensor& scales_OG,
                          at::Tensor& gradient_OI) {
  check_grid(grid, offsets_OI);
  check_scales(grid, scales_OG);
  check_values(gradient_OI, grid, "the gradient");
  if (!offsets_OI.is_cpu()) return grid_gradients_by_ops(grid, offsets_OI, scales_OG, gradient_OI);
  const int64_t num_in = gradient_OI.size(1), num_groups = scales_OG.size(1);
  at::Tensor by_scale_OG = at::zeros(scales_OG.sizes(), scales_OG.options());
  const float* const scales = scales_OG.const_data_ptr<float>();
  float* const by_scale = by_scale_OG.data_ptr<float>();
  float* const gradient = gradient_OI.data_ptr<float>();
  for_runs(grid, offsets_OI, [&](const Row& row, int64_t o, const Run& run) {
    constexpr int64_t kLanes = 16;  // fixes the order of the sum and fills vectors
    float lanes[kLanes] = {};
    const float zero = row.zeros[run.group], scale = scales[o * num_groups + run.group];
    float* const g = gradient + o * num_in;
    const auto take = [&](int64_t i, float& sum) {
      sum += g[i] * (row.code(i, zero) - zero);
      const float by_offset = scale * g[i], place = row.place(i);
      // Outside the range only a step back into it changes anything. Descent goes against the gradient.
      const bool leads_on = (place < -0.5f && by_offset > 0.0f) || (place > row.top + 0.5f && by_offset < 0.0f);
      g[i] = leads_on || !row.keeps(i) ? 0.0f : by_offset;
    };
    int64_t i = run.first;
    for (; i + kLanes <= run.first + run.count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) take(i + lane, lanes[lane]);
    }
    for (int64_t lane = 0; i < run.first + run.count; ++i, ++lane) take(i, lanes[lane]);
    float sum = 0.0f;
    for (const float lane : lanes) sum += lane;
    by_scale[o * num_groups + run.group] += sum;
  });
  return by_scale_OG;
}

}  // namespace pare::distill
