// CpuPackedLinear for many rows, by float32 FMAs: prefill, and batches. bf16_linear.cpp does the same on matrix
// instructions.
#include <omp.h>

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/float_tiles.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/team.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

// A task multiplies some rows with one tile of weights after another, and expands a block of it at a time. The task's
// strips of x (kStripBytes) stay in L2 meanwhile. More rows per task amortize the expansion better: 512 are some 3 %
// faster than 128.
constexpr int64_t kStripBytes = int64_t{1200} << 10;
constexpr int64_t kMinTaskRows = 64;
constexpr int64_t kMaxTaskRows = 512;
constexpr int64_t kMaxUnitK = 32;  // blocks are whole units of every format

}  // namespace

std::vector<CpuPackedLinear::Tile> CpuPackedLinear::tiles_of(size_t layout, const PanelRange& range,
                                                             int64_t tile_panels) const {
  std::vector<Tile> tiles;
  for (const Part& part : parts_) {
    if (part.layout != layout) continue;
    const int64_t end_panel = std::min(range.end - part.first_panel, part.num_panels);
    for (int64_t panel = std::max<int64_t>(range.begin - part.first_panel, 0); panel < end_panel;
         panel += tile_panels) {
      tiles.push_back({&part, panel, std::min(panel + tile_panels, end_panel)});
    }
  }
  return tiles;
}

// Threads take tasks of (some rows) x (some tiles) as they become free. Each task computes its outputs alone, so the
// thread that runs it changes no bit. A thread packs the rows of its task itself. Rows packed by another core would
// come from that core's cache, which cost 10 % of the whole product.
void CpuPackedLinear::gemm(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y,
                           int64_t y_stride) const {
  const int64_t strip_rows = kernels_->tile_rows;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const InputLayout& layout = layouts_[i];
    const std::vector<Tile> tiles = tiles_of(i, range, kernels_->tile_panels);
    if (tiles.empty()) continue;
    const int64_t num_tiles = static_cast<int64_t>(tiles.size());
    const int64_t products = num_rows * layout.num_k * num_tiles * kernels_->tile_panels * kPanel;
    const int threads = team_size(num_threads(), products / kMinFloatThreadProducts);
    const int64_t busy_threads = std::clamp<int64_t>(products / kMinFloatThreadProducts, 1, threads);
    const int64_t max_rows = std::clamp(kStripBytes / 4 / layout.num_k, kMinTaskRows, kMaxTaskRows);
    const int64_t row_tasks = divide_up(num_rows, max_rows);
    const int64_t task_rows = round_up(divide_up(num_rows, row_tasks), strip_rows);
    const int64_t tile_tasks =
        threads == 1 ? 1 : std::min(num_tiles, divide_up(kFloatTasksPerThread * busy_threads, row_tasks));
    FirstException error;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      thread_local Scratch scratch;
      float* strips = nullptr;
      error.capture([&] { strips = scratch.reserve_floats(task_rows * layout.num_k); });
      int64_t packed_row = -1;
#pragma omp for schedule(dynamic) nowait
      for (int64_t task = 0; task < row_tasks * tile_tasks; ++task) {
        const int64_t row = task / tile_tasks * task_rows;
        const int64_t rows = std::min(task_rows, num_rows - row);
        if (rows <= 0 || error.failed()) continue;
        if (packed_row != row) pack_rows(layout, x_RI + row * num_in_, rows, strips);
        packed_row = row;
        const int64_t first_tile = num_tiles * (task % tile_tasks) / tile_tasks;
        const int64_t end_tile = num_tiles * (task % tile_tasks + 1) / tile_tasks;
        error.capture([&] {
          multiply_tiles(layout, std::span(tiles).subspan(first_tile, end_tile - first_tile), strips, rows, range,
                         y + row * y_stride, y_stride);
        });
      }
    }
    error.rethrow();
  }
}

// Packs strips of tile_rows rows in the order in which the tile kernel reads them. The last may have fewer.
void CpuPackedLinear::pack_rows(const InputLayout& layout, const float* x_RI, int64_t num_rows, float* strips) const {
  for (int64_t row = 0; row < num_rows; row += kernels_->tile_rows) {
    const int64_t strip_rows = std::min<int64_t>(kernels_->tile_rows, num_rows - row);
    const float* const x = x_RI + row * num_in_;
    float* const strip = strips + row * layout.num_k;
    if (layout.column_of_k.empty()) {
      pack_strip(x, num_in_, strip_rows, num_in_, strip);
      continue;
    }
    for (int64_t k = 0; k < layout.num_k; ++k) {
      const int32_t column = layout.column_of_k[k];
      for (int64_t r = 0; r < strip_rows; ++r) strip[k * strip_rows + r] = column < 0 ? 0.0f : x[r * num_in_ + column];
    }
  }
}

void CpuPackedLinear::multiply_tiles(const InputLayout& layout, std::span<const Tile> tiles, const float* strips,
                                     int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride) const {
  alignas(64) float weights[kFloatBlockSize];
  thread_local Scratch scratch;
  const int64_t tile_outs = kernels_->tile_panels * kPanel;
  float* const sums = scratch.reserve_floats(num_rows * tile_outs);
  const int64_t num_blocks = divide_up(layout.num_k, kFloatBlockK);
  const int64_t block_k = round_up(divide_up(layout.num_k, num_blocks), kMaxUnitK);
  for (const Tile& tile : tiles) {
    const Part& part = *tile.part;
    const PanelRun run = run_of(part, tile.first_panel, tile.end_panel, range.end_out);
    float* const y_tile = y + part.first_out + tile.first_panel * kPanel - range.first_out;
    for (int64_t begin_k = 0; begin_k < layout.num_k; begin_k += block_k) {
      const int64_t num_k = std::min(block_k, layout.num_k - begin_k);
      expand_tile(tile, begin_k, num_k, range.end_out, kernels_->tile_panels, weights);
      const bool ends_tile = begin_k + num_k == layout.num_k;
      const Tile* const next_tile = !ends_tile ? &tile : &tile == &tiles.back() ? nullptr : &tile + 1;
      Prefetch next = next_tile ? prefetch_of(*next_tile, ends_tile ? 0 : begin_k + num_k, block_k) : Prefetch{};
      const int64_t lines_per_strip = divide_up(next.num_lines(), divide_up(num_rows, kernels_->tile_rows));
      const bool is_first = begin_k == 0;
      for (int64_t row = 0; row < num_rows; row += kernels_->tile_rows) {
        next.fetch(lines_per_strip);
        const int64_t strip_rows = std::min<int64_t>(kernels_->tile_rows, num_rows - row);
        if (ends_tile) prefetch_outputs(y_tile + row * y_stride, y_stride, strip_rows, run.num_outs);
        float* const sums_row = sums + row * tile_outs;
        kernels_->tile[strip_rows - 1](strips + row * layout.num_k + begin_k * strip_rows, weights, num_k,
                                       is_first ? run.bias : sums_row, is_first ? 0 : tile_outs,
                                       ends_tile ? y_tile + row * y_stride : sums_row, ends_tile ? y_stride : tile_outs,
                                       run.num_outs);
      }
    }
  }
}

CpuPackedLinear::Prefetch CpuPackedLinear::prefetch_of(const Tile& tile, int64_t begin_k, int64_t num_k) const {
  const Part& part = *tile.part;
  const UnitShape unit = unit_shape(part.format);
  const int64_t end_k = std::min(begin_k + num_k, layouts_[part.layout].num_k);
  const int64_t at_once = part.panels_at_once(), first = tile.first_panel / at_once;
  const int64_t unit_k = part.order == PanelOrder::columns ? 1 : unit.num_k;  // positions of a unit's lines
  Prefetch next;
  next.panel_bytes = at_once * part.panel_bytes;
  next.line = part.lines.get() + first * next.panel_bytes + begin_k / unit_k * unit.num_bytes;
  next.panel_block_bytes = (end_k - begin_k) / unit_k * unit.num_bytes;
  next.panel_end = next.line + next.panel_block_bytes;
  next.num_panels = divide_up(tile.end_panel, at_once) - first;
  return next;
}

int64_t CpuPackedLinear::Prefetch::num_lines() const {
  return num_panels * panel_block_bytes / 64;
}

void CpuPackedLinear::Prefetch::fetch(int64_t count) {
  for (; count > 0 && num_panels > 0; --count) {
    __builtin_prefetch(line, 0, 2);
    line += 64;
    if (line == panel_end) {
      panel_end += panel_bytes;
      line += panel_bytes - panel_block_bytes;
      --num_panels;
    }
  }
}

// Fills weights[k * tile_outs + o] for the tile's outputs and num_k positions from begin_k. Missing panels are zeros.
void CpuPackedLinear::expand_tile(const Tile& tile, int64_t begin_k, int64_t num_k, int64_t end_out,
                                  int64_t tile_panels, float* weights) const {
  const int64_t tile_outs = tile_panels * kPanel;
  const auto format = static_cast<int>(tile.part->format);
  const int64_t at_once = tile.part->panels_at_once();
  for (int64_t panel = tile.first_panel; panel < tile.end_panel; ++panel) {
    const int64_t index = panel % at_once;
    const PanelRun run = run_of(*tile.part, panel - index, panel - index + 1, end_out);
    float* const dst = weights + (panel - tile.first_panel) * kPanel;
    if (tile.part->order == PanelOrder::columns) {
      column_kernels_->expand[format](run, index, begin_k, begin_k + num_k, dst, tile_outs);
    } else {
      kernels_->expand[format](run, begin_k, begin_k + num_k, dst, tile_outs);
    }
  }
  const int64_t missing = tile_outs - (tile.end_panel - tile.first_panel) * kPanel;
  if (missing > 0) {
    for (int64_t k = 1; k <= num_k; ++k) std::fill_n(weights + k * tile_outs - missing, missing, 0.0f);
  }
}

}  // namespace pare::runtime
