// CpuPackedLinear for many rows on instructions that multiply bfloat16 (bf16_kernels.h), with the accuracy of float32.
//
// The threads first pack up to kBlockRows rows as their parts. A task then takes the outputs of some tiles of two
// panels. It walks over K in blocks. A block's weights are expanded once and stay in L2. A strip of rows stays in L1
// while it meets them, and the sums of all strips are kept in L2:
//
//   for block of K:  for tile of panels: expand;  for strip of rows:  for tile of panels:  sums += strip * tile
//
// All blocks are those of the shape alone, and so are the bits of y.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/team.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr int64_t kBlockRows = 512;
// Fewer rows at a time where those would take more memory than this, and where every thread has rows of its own, as
// those of experts.
constexpr int64_t kMaxBlockBytes = int64_t{16} << 20;
constexpr int64_t kFewBlockRows = 128;
constexpr int64_t kBlockK = 192;  // a strip's parts take 36 KiB of 48 KiB of L1
constexpr int64_t kTaskTiles = 8;
// Tasks with fewer tiles than this read the strips too often, so the rows are divided first.
constexpr int64_t kFewTiles = 4;
constexpr int64_t kTasksPerThread = 2;
constexpr int64_t kTileOuts = kBf16TilePanels * kPanel;
constexpr int64_t kStripSums = kBf16StripRows * kTileOuts;
// Below this many multiply-adds, another thread costs more than it saves.
constexpr int64_t kMinThreadProducts = int64_t{1} << 21;

// How the product of some rows and tiles is divided into tasks.
struct TaskGrid {
  int64_t strip_tasks = 1;
  int64_t tile_tasks = 1;
};

TaskGrid divide(int64_t num_strips, int64_t num_tiles, int64_t wanted_tasks) {
  TaskGrid grid;
  grid.tile_tasks = std::max(divide_up(num_tiles, kTaskTiles), std::min(divide_up(num_tiles, kFewTiles), wanted_tasks));
  grid.strip_tasks = std::clamp<int64_t>(divide_up(wanted_tasks, grid.tile_tasks), 1, num_strips);
  grid.tile_tasks =
      std::max(grid.tile_tasks, std::min({num_tiles, divide_up(wanted_tasks, grid.strip_tasks), wanted_tasks}));
  return grid;
}

// The outputs of one strip and tile. Those that are not whole go through a whole tile.
class StripOutputs {
 public:
  StripOutputs(float* y, int64_t y_stride, int64_t num_rows, int64_t num_outs)
      : y_(y), y_stride_(y_stride), num_rows_(num_rows), num_outs_(num_outs) {}

  bool is_whole() const { return num_outs_ == kTileOuts && (num_rows_ == 16 || num_rows_ == kBf16StripRows); }
  void write(const float* whole) const {
    for (int64_t r = 0; r < num_rows_; ++r) std::copy_n(whole + r * kTileOuts, num_outs_, y_ + r * y_stride_);
  }
  // Rows of y lie far apart, so the hardware does not foresee them, and each store would wait for its line.
  void prefetch() const {
    for (int64_t r = 0; r < num_rows_; ++r) {
      for (int64_t o = 0; o < num_outs_; o += kPanel) __builtin_prefetch(y_ + r * y_stride_ + o, 1, 3);
    }
  }

 private:
  float* y_;
  int64_t y_stride_, num_rows_, num_outs_;
};

// The significant bits of a float.
int significant_bits(float value) {
  if (value == 0.0f || !std::isfinite(value)) return 1;
  const uint32_t mantissa = (std::bit_cast<uint32_t>(value) & 0x7fffff) | 0x800000;
  return 24 - std::countr_zero(mantissa);
}

int scale_bits(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::bf16:
      return 8;
    case ScaleFormat::f16:
      return 11;
    case ScaleFormat::e4m3:
      return 4;
    case ScaleFormat::e8m0:
      return 1;
    default:
      return 24;
  }
}

}  // namespace

// Returns how the weights of a part are multiplied. By themselves codes need one part. With their scales they need as
// many as hold both exactly, at 8 bits and a sign each.
CpuPackedLinear::Bf16Plan CpuPackedLinear::bf16_plan(const Part& part, int64_t group_len) {
  const WeightFormat format = value_format(part.format);
  if (part.scale_format == ScaleFormat::none) {
    return {.num_parts = format == WeightFormat::bf16 ? 1 : format == WeightFormat::f16 ? 2 : 3};
  }
  int code = code_bits(part.format);  // the bits of a code less its zero, without the sign
  if (format == WeightFormat::fp8) code = 4;
  if (format == WeightFormat::table4) {
    code = 1;
    for (const float value : part.values) code = std::max(code, significant_bits(value));
  }
  const int scale = part.tensor_scale == 1.0f ? scale_bits(part.scale_format) : 24;
  const int num_parts = static_cast<int>(divide_up(std::min(24, scale + code), 8));
  const bool has_codes =
      part.order == PanelOrder::outputs && !is_two_of_four(part.format) && part.format != WeightFormat::table4;
  const bool has_whole_groups = part.num_groups == 1 || (group_len % kBf16TileK == 0 && group_len <= kBlockK);
  if (num_parts > 1 && has_codes && has_whole_groups) return {.num_parts = 1, .scales_apart = true};
  return {.num_parts = num_parts};
}

void CpuPackedLinear::choose_bf16_kernels(Isa isa) {
  const auto has_one_part = [&](const Part& part) {
    return bf16_plan(part, layouts_[part.layout].group_len).num_parts == 1;
  };
  bf16_kernels_ = bf16_kernels(isa, has_bf16_input_ && std::all_of(parts_.begin(), parts_.end(), has_one_part));
  if (bf16_kernels_ != nullptr) isa_ = isa;
}

// Positions of a block: whole groups, where one fits into it.
int64_t CpuPackedLinear::bf16_block_k(const InputLayout& layout) {
  const int64_t group_len = layout.group_len;
  return group_len % kBf16TileK == 0 && group_len <= kBlockK ? kBlockK / group_len * group_len : kBlockK;
}

void CpuPackedLinear::gemm_bf16(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y,
                                int64_t y_stride) const {
  const int64_t fitting_rows = kMaxBlockBytes / (2 * kInputParts * num_in_);
  const int64_t max_rows = omp_in_parallel() ? kFewBlockRows : std::clamp(fitting_rows, kFewBlockRows, kBlockRows);
  const int64_t num_blocks = divide_up(num_rows, max_rows);
  const int64_t block_rows = round_up(divide_up(num_rows, num_blocks), kBf16StripRows);
  for (int64_t row = 0; row < num_rows; row += block_rows) {
    const int64_t rows = std::min(block_rows, num_rows - row);
    for (size_t layout = 0; layout < layouts_.size(); ++layout) {
      multiply_bf16_rows(layout, x_RI + row * num_in_, rows, range, y + row * y_stride, y_stride);
    }
  }
}

// Multiplies up to kBlockRows rows with the parts of one layout.
void CpuPackedLinear::multiply_bf16_rows(size_t layout_index, const float* x_RI, int64_t num_rows,
                                         const PanelRange& range, float* y, int64_t y_stride) const {
  const InputLayout& layout = layouts_[layout_index];
  const std::vector<Tile> tiles = tiles_of(layout_index, range, kBf16TilePanels);
  if (tiles.empty()) return;
  const int64_t num_tiles = static_cast<int64_t>(tiles.size());
  const int64_t num_strips = divide_up(num_rows, kBf16StripRows);
  const int64_t worthwhile = num_rows * layout.num_k * num_tiles * kTileOuts / kMinThreadProducts;
  const int threads = team_size(num_threads(), worthwhile);
  const TaskGrid grid =
      divide(num_strips, num_tiles, threads == 1 ? 1 : kTasksPerThread * std::clamp<int64_t>(worthwhile, 1, threads));
  const int64_t padded_k = round_up(layout.num_k, kBf16TileK);
  thread_local Scratch of_rows;
  const int64_t strip_bytes = padded_k * bf16_strip_bytes(kBf16StripRows, input_parts());
  auto* const strips = reinterpret_cast<uint8_t*>(of_rows.reserve(num_strips * strip_bytes));
  FirstException error;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(dynamic)
    for (int64_t strip = 0; strip < num_strips; ++strip) {
      const int64_t row = strip * kBf16StripRows;
      error.capture([&] {
        pack_bf16_rows(layout, x_RI + row * num_in_, std::min(kBf16StripRows, num_rows - row),
                       strips + strip * strip_bytes);
      });
    }
    if (bf16_kernels_->begin_task) bf16_kernels_->begin_task();
#pragma omp for schedule(dynamic)
    for (int64_t index = 0; index < grid.strip_tasks * grid.tile_tasks; ++index) {
      const int64_t tile_task = index % grid.tile_tasks, strip_task = index / grid.tile_tasks;
      const int64_t first_tile = num_tiles * tile_task / grid.tile_tasks;
      const int64_t end_tile = num_tiles * (tile_task + 1) / grid.tile_tasks;
      const int64_t first_row = num_strips * strip_task / grid.strip_tasks * kBf16StripRows;
      const int64_t end_row = std::min(num_rows, num_strips * (strip_task + 1) / grid.strip_tasks * kBf16StripRows);
      if (first_row >= end_row || error.failed()) continue;
      error.capture([&] {
        multiply_bf16_task({.tiles = std::span(tiles).subspan(first_tile, end_tile - first_tile),
                            .num_following = num_tiles - end_tile,
                            .strips = strips + first_row / kBf16StripRows * strip_bytes,
                            .strip_bytes = strip_bytes,
                            .num_rows = end_row - first_row,
                            .y = y + first_row * y_stride,
                            .y_stride = y_stride},
                           range);
      });
    }
    if (bf16_kernels_->end_task) bf16_kernels_->end_task();
  }
  error.rethrow();
}

// Packs the parts of up to 32 rows.
void CpuPackedLinear::pack_bf16_rows(const InputLayout& layout, const float* x_RI, int64_t num_rows,
                                     uint8_t* strip) const {
  if (layout.column_of_k.empty()) {
    return pack_bf16_strip(x_RI, num_in_, num_rows, layout.num_k, input_parts(), strip);
  }
  thread_local Scratch scratch;
  float* const x = scratch.reserve_floats(num_rows * layout.num_k);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < layout.num_k; ++k) {
      const int32_t column = layout.column_of_k[k];
      x[r * layout.num_k + k] = column < 0 ? 0.0f : x_RI[r * num_in_ + column];
    }
  }
  pack_bf16_strip(x, layout.num_k, num_rows, layout.num_k, input_parts(), strip);
}

void CpuPackedLinear::multiply_bf16_task(const Bf16Task& task, const PanelRange& range) const {
  const int64_t num_tiles = static_cast<int64_t>(task.tiles.size());
  const int64_t num_strips = divide_up(task.num_rows, kBf16StripRows);
  const InputLayout& layout = layouts_[task.tiles.front().part->layout];
  const int64_t block_k = bf16_block_k(layout);
  constexpr int64_t kTileBytes = kBlockK * kTileOuts * 2 * kMaxWeightParts;
  thread_local Scratch scratch;
  std::byte* const memory = scratch.reserve(num_tiles * kTileBytes + num_strips * num_tiles * kStripSums * 4);
  auto* const blocks = reinterpret_cast<uint8_t*>(memory);
  auto* const sums = reinterpret_cast<float*>(memory + num_tiles * kTileBytes);
  thread_local std::vector<Bf16Tile> tiles;
  tiles.resize(num_tiles);
  for (int64_t begin_k = 0; begin_k < layout.num_k; begin_k += block_k) {
    const int64_t num_k = std::min(block_k, layout.num_k - begin_k);
    const bool ends = begin_k + num_k == layout.num_k;
    for (int64_t i = 0; i < num_tiles; ++i) {
      const Tile* const tile = &task.tiles[i];
      const Tile* const next = !ends ? tile : i < task.num_following ? tile + num_tiles : nullptr;
      tiles[i] = prepare_bf16_tile(*tile, begin_k, num_k, range, blocks + i * kTileBytes);
      tiles[i].ahead = next ? prefetch_of(*next, ends ? 0 : begin_k + num_k, block_k) : Prefetch{};
    }
    for (int64_t strip = 0; strip < num_strips; ++strip) {
      const int64_t row = strip * kBf16StripRows;
      const int64_t rows = std::min(kBf16StripRows, task.num_rows - row);
      Bf16Strip of_strip{.x = task.strips + strip * task.strip_bytes + begin_k * bf16_strip_bytes(rows, input_parts()),
                         .num_rows = rows,
                         .begins = begin_k == 0,
                         .ends = ends,
                         .num_k = num_k,
                         .sums = sums + strip * num_tiles * kStripSums,
                         .y = task.y + row * task.y_stride,
                         .y_stride = task.y_stride};
      for (Bf16Tile& tile : tiles) {
        tile.ahead.fetch(divide_up(tile.ahead.num_lines(), num_strips - strip));
        multiply_bf16_strip(of_strip, tile);
        of_strip.sums += kStripSums;
      }
    }
  }
}

// Adds the products of a strip and a tile at the positions of a block to their sums. The last block's go to y.
void CpuPackedLinear::multiply_bf16_strip(const Bf16Strip& strip, const Bf16Tile& tile) const {
  const auto& of_inputs = has_bf16_input_ ? bf16_kernels_->multiply_rounded : bf16_kernels_->multiply;
  const auto& kernels = of_inputs[strip.num_rows > 16];
  const StripOutputs outputs(strip.y + tile.first_out, strip.y_stride, strip.num_rows, tile.num_outs);
  const bool writes_y = strip.ends && outputs.is_whole();
  float* const dst = writes_y ? strip.y + tile.first_out : strip.sums;
  const int64_t dst_stride = writes_y ? strip.y_stride : kTileOuts;
  const float* start = strip.begins ? tile.bias : strip.sums;
  int64_t start_stride = strip.begins ? 0 : kTileOuts;
  if (writes_y) outputs.prefetch();
  if (!tile.scales_apart) {
    kernels[tile.num_parts - 1](strip.x, tile.panels, divide_up(strip.num_k, kBf16TileK), start, start_stride, dst,
                                dst_stride);
  } else if (tile.num_groups == 0) {  // one scale for all of K, which its sums are multiplied with at its end
    const float* const raw = strip.begins ? nullptr : strip.sums;
    kernels[0](strip.x, tile.panels, divide_up(strip.num_k, kBf16TileK), raw, kTileOuts, strip.sums, kTileOuts);
    if (strip.ends) {
      add_scaled_bf16_sums(strip.sums, strip.num_rows, tile.scales, tile.bias, 0, dst, dst_stride);
    }
  } else if (has_bf16_input_ && bf16_kernels_->rounded_groups[0] != nullptr) {
    bf16_kernels_->rounded_groups[strip.num_rows > 16](strip.x, tile.panels, strip.num_k / tile.num_groups / kBf16TileK,
                                                       tile.num_groups, tile.scales, start, start_stride, dst,
                                                       dst_stride);
  } else {
    alignas(64) float raw[kStripSums];
    const int64_t group_tiles = strip.num_k / tile.num_groups / kBf16TileK;
    Bf16Panels panels = tile.panels;
    const uint8_t* x = strip.x;
    for (int64_t group = 0; group < tile.num_groups; ++group) {
      kernels[0](x, panels, group_tiles, nullptr, 0, raw, kTileOuts);
      const bool is_last = group + 1 == tile.num_groups;
      add_scaled_bf16_sums(raw, strip.num_rows, tile.scales + group * kTileOuts, start, start_stride,
                           is_last ? dst : strip.sums, is_last ? dst_stride : kTileOuts);
      start = strip.sums;
      start_stride = kTileOuts;
      for (const uint8_t*& panel : panels.panels) panel += group_tiles * kBf16TileBytes;
      x += group_tiles * kBf16TileK * bf16_strip_bytes(strip.num_rows, input_parts());
    }
  }
  if (strip.ends && !writes_y) outputs.write(strip.sums);
}

// Makes a tile ready at positions [begin_k, begin_k + num_k). Its weights are the packed lines themselves where these
// are whole tiles of bfloat16, or else in `block`.
CpuPackedLinear::Bf16Tile CpuPackedLinear::prepare_bf16_tile(const Tile& tile, int64_t begin_k, int64_t num_k,
                                                             const PanelRange& range, uint8_t* block) const {
  const Part& part = *tile.part;
  const InputLayout& layout = layouts_[part.layout];
  const PanelRun run = run_of(part, tile.first_panel, tile.end_panel, range.end_out);
  const int64_t num_panels = tile.end_panel - tile.first_panel;
  const Bf16Plan plan = bf16_plan(part, layout.group_len);
  Bf16Tile prepared{.num_parts = plan.num_parts, .scales_apart = plan.scales_apart};
  prepared.first_out = part.first_out + tile.first_panel * kPanel - range.first_out;
  prepared.num_outs = run.num_outs;
  if (run.bias) std::copy_n(run.bias, num_panels * kPanel, prepared.bias);
  const int64_t padded_k = round_up(num_k, kBf16TileK);
  const int64_t panel_bytes = padded_k * kPanel * 2;
  if (part.format == WeightFormat::bf16 && part.order == PanelOrder::outputs && padded_k == num_k &&
      num_panels == kBf16TilePanels) {
    const std::byte* const lines = part.lines.get() + tile.first_panel * part.panel_bytes + begin_k * kPanel * 2;
    prepared.panels = {
        {reinterpret_cast<const uint8_t*>(lines), reinterpret_cast<const uint8_t*>(lines + part.panel_bytes)}, 0};
    return prepared;
  }
  prepared.panels = {{block, block + panel_bytes}, kBf16TilePanels * panel_bytes};
  if (plan.scales_apart) {
    prepared.num_groups = part.num_groups == 1 ? 0 : num_k / layout.group_len;
    for (int64_t panel = 0; panel < kBf16TilePanels; ++panel) {
      uint8_t* const tiles = block + panel * panel_bytes;
      if (panel >= num_panels) {
        std::memset(tiles, 0, panel_bytes);
        continue;
      }
      const PanelRun of_panel = run_of(part, tile.first_panel + panel, tile.first_panel + panel + 1, range.end_out);
      expand_bf16_codes(part.format, of_panel, begin_k, begin_k + num_k, tiles);
      std::memset(tiles + num_k * kPanel * 2, 0, (padded_k - num_k) * kPanel * 2);
      for (int64_t group = 0; group < std::max<int64_t>(prepared.num_groups, 1); ++group) {
        load_bf16_scales(of_panel, begin_k / layout.group_len + group,
                         prepared.scales + group * kTileOuts + panel * kPanel);
      }
    }
    return prepared;
  }
  alignas(64) float expanded[kBlockK * kTileOuts];
  expand_tile(tile, begin_k, num_k, range.end_out, kBf16TilePanels, expanded);
  std::fill(expanded + num_k * kTileOuts, expanded + padded_k * kTileOuts, 0.0f);
  for (int64_t panel = 0; panel < kBf16TilePanels; ++panel) {
    split_bf16_weights(expanded + panel * kPanel, kTileOuts, padded_k, plan.num_parts, block + panel * panel_bytes,
                       prepared.panels.part_bytes);
  }
  return prepared;
}

}  // namespace pare::runtime
