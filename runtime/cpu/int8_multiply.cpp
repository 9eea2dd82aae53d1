// Splits the products of int8_kernels.h into blocks and over threads.
//
// FEW ROWS. The panels are handed out in chunks; each streams through registers once.
//
// MANY ROWS. A task takes a block of rows and some panels. It copies its rows into strips (at most 1 MiB: they stay in
// L2). For each tile of panels it walks over K in blocks whose weights stay in L1, over all strips:
//
//   for tile of panels:  for block of K:  for strip of rows:  acc[strip] += strip * block
//
// With one group per channel, acc holds the strips' int32 sums until the last block. With several, a block is whole
// groups and the strips' float32 totals are kept instead. Meanwhile the next block's weights are prefetched.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/kernels/int8_kernels.h"
#include "runtime/cpu/share_panels.h"
#include "runtime/cpu/team.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr int64_t kStripBytes = int64_t{1} << 20;
constexpr int64_t kMaxTaskRows = 512;
// If a thread would have fewer rows than this, the panels are split too, and each thread copies the few rows.
constexpr int64_t kMinTaskRows = 64;
// Below this many multiply-adds, a second thread costs more than it saves.
constexpr int64_t kMinThreadProducts = int64_t{1} << 21;
// Outputs larger than this would leave the caches before anyone reads them. They are written past the caches, which
// saves reading each line first (a quarter of the time of 512 x 2048 x 5632 on AMX).
constexpr int64_t kMinStreamedBytes = int64_t{2} << 20;
constexpr int64_t kBytesPerK = 16;  // one position of a panel in signed bytes

int64_t scale_line_bytes(ScaleFormat format) {
  return scale_bytes(format) * kPanel;
}

// One product, with the strides of its panels.
struct Product {
  const Int8Kernels& kernels;
  const Int8Weights& weights;
  const Int8Rows& rows;
  const OutlierColumns* outliers;
  float* y;
  int64_t y_stride;
  int64_t num_k, num_panels;
  int64_t panel_bytes, panel_scale_bytes, panel_outlier_bytes;
  bool streams;

  const Int8Tiles& tiles() const {
    return weights.format == WeightFormat::int8 ? kernels.tiles_int8 : kernels.tiles_int4;
  }

  Int8Weights panels_from(int64_t panel, int64_t end_panel) const {
    const PanelRun& run = weights.run;
    Int8Weights part = weights;
    part.run.lines += panel * panel_bytes;
    part.run.scales += panel * panel_scale_bytes;
    if (run.zeros) part.run.zeros += panel * run.num_groups * kPanel;
    if (run.bias) part.run.bias += panel * kPanel;
    if (weights.sums) part.sums += panel * run.num_groups * kPanel;
    part.run.num_outs = std::min(end_panel * kPanel, run.num_outs) - panel * kPanel;
    return part;
  }

  int64_t num_outliers() const { return outliers ? outliers->num_columns : 0; }

  // Fills out[j * out_stride + r] for num_rows rows from `row`: the order in which a finish reads outliers.
  void transpose_outliers(int64_t row, int64_t num_rows, float* out, int64_t out_stride) const {
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* const x = outliers->x + (row + r) * outliers->x_stride;
      for (int64_t j = 0; j < num_outliers(); ++j) out[j * out_stride + r] = x[j];
    }
  }

  // Returns what the last group's finish needs for rows from `row` and one panel, except the outliers' x.
  PanelFinish finish_of(int64_t row, int64_t panel) const {
    PanelFinish finish{};
    finish.scale_format = weights.run.scale_format;
    finish.row_scales = rows.scales + row;
    finish.bias = weights.run.bias ? weights.run.bias + panel * kPanel : nullptr;
    if (outliers) {
      finish.num_outliers = outliers->num_columns;
      finish.outlier_weights = outliers->weights + panel * panel_outlier_bytes;
      finish.outlier_format = outliers->format;
    }
    finish.y = y + row * y_stride + panel * kPanel;
    finish.y_stride = y_stride;
    finish.num_outs = std::min(kPanel, weights.run.num_outs - panel * kPanel);
    finish.streams = streams;
    return finish;
  }
};

void check(const Int8Weights& weights, const Int8Rows& rows, int64_t num_rows, int64_t num_k) {
  if (weights.format != WeightFormat::int8 && weights.format != WeightFormat::int4) {
    throw std::invalid_argument("8-bit product: expected int8 or int4 weights, found format " +
                                std::to_string(static_cast<int>(weights.format)));
  }
  if (weights.run.scale_format == ScaleFormat::none || weights.run.scales == nullptr) {
    throw std::invalid_argument("8-bit product: expected scales of the weights, found none");
  }
  if (weights.format == WeightFormat::int8 && (weights.sums == nullptr || weights.run.zeros != nullptr)) {
    throw std::invalid_argument(
        weights.sums == nullptr ? "8-bit product: expected the sums of the int8 weights (sum_int8_panels), found none"
                                : "8-bit product: expected symmetric int8 weights, found zeros");
  }
  if (num_k <= 0 || num_k > kMaxInt8K || weights.run.group_len % unit_shape(weights.format).num_k != 0) {
    throw std::invalid_argument("8-bit product: expected 1 to " + std::to_string(kMaxInt8K) +
                                " positions in groups of whole units, found " + std::to_string(weights.run.num_groups) +
                                " groups of " + std::to_string(weights.run.group_len));
  }
  if (num_rows < 0 || rows.stride < num_k || rows.stride % kInt8RowUnit != 0) {
    throw std::invalid_argument("8-bit product: expected rows of " + std::to_string(int8_row_stride(num_k)) +
                                " codes, found " + std::to_string(num_rows) + " rows of " +
                                std::to_string(rows.stride));
  }
}

// Computes offsets[r] = path_offset + zero. Returns null if all are 0, so that kernels skip the subtraction.
const int32_t* offsets_of(const Int8Rows& rows, int64_t row, int64_t num_rows, int32_t path_offset, int32_t* offsets) {
  if (rows.zeros == nullptr && path_offset == 0) return nullptr;
  for (int64_t r = 0; r < num_rows; ++r) offsets[r] = path_offset + (rows.zeros ? rows.zeros[row + r] : 0);
  return offsets;
}

void multiply_few(const Product& product, int64_t num_rows, int max_threads) {
  const Int8Kernels& kernels = product.kernels;
  const PanelRun& run = product.weights.run;
  const bool is_int8 = product.weights.format == WeightFormat::int8;
  const int64_t stride = round_up(product.num_k * (is_int8 ? kernels.gemv_k_bytes : 1), 64);
  thread_local Scratch scratch;
  uint8_t* const x =
      reinterpret_cast<uint8_t*>(scratch.reserve(num_rows * (stride + (run.num_groups + product.num_outliers()) * 4)));
  int32_t* const group_sums = reinterpret_cast<int32_t*>(x + num_rows * stride);
  for (int64_t r = 0; r < num_rows; ++r) {
    (is_int8 ? kernels.prepare_int8 : kernels.prepare_int4)(product.rows.codes + r * product.rows.stride,
                                                            run.num_groups, run.group_len, x + r * stride,
                                                            group_sums + r * run.num_groups);
  }
  float* const outliers = reinterpret_cast<float*>(group_sums + num_rows * run.num_groups);
  if (product.outliers) product.transpose_outliers(0, num_rows, outliers, num_rows);
  int32_t offsets[kMaxGemvRows];
  Int8GemvRows rows{x, stride, group_sums, nullptr, product.rows.group_scales};
  rows.offsets = offsets_of(product.rows, 0, num_rows, is_int8 ? kernels.gemv_offset : 0, offsets);
  const Int8GemvKernel kernel = (is_int8 ? kernels.gemv_int8 : kernels.gemv_int4)[num_rows - 1];
  share_panels(max_threads, product.num_panels, product.num_panels * product.panel_bytes,
               [&](int64_t begin, int64_t end) {
                 PanelFinish finish = product.finish_of(0, begin);
                 finish.outliers = outliers;
                 finish.outliers_stride = num_rows;
                 kernel(product.panels_from(begin, end), rows, finish);
               });
}

// The product of a block of rows with a range of panels.
class RowBlock {
 public:
  RowBlock(const Product& product, int64_t begin_row, int64_t end_row)
      : product_(product),
        kernels_(product.kernels),
        tiles_(product.tiles()),
        run_(product.weights.run),
        begin_row_(begin_row),
        num_rows_(end_row - begin_row),
        padded_len_(round_up(run_.group_len, tiles_.k_unit)),
        padded_k_(padded_len_ * run_.num_groups),
        tile_outs_(tiles_.panels * kPanel),
        is_expanded_(product.weights.format == WeightFormat::int4 || padded_len_ != run_.group_len) {
    const int64_t groups_per_block = std::max<int64_t>(1, tiles_.block_k / padded_len_);
    const int64_t num_blocks = divide_up(padded_k_, tiles_.block_k);
    // One long group is cut into even blocks; several groups are taken whole.
    block_k_ = run_.num_groups == 1 ? round_up(divide_up(padded_k_, num_blocks), tiles_.k_unit)
                                    : groups_per_block * padded_len_;
    block_groups_ = run_.num_groups == 1 ? 1 : groups_per_block;
    const int64_t padded_rows = round_up(num_rows_, tiles_.rows);
    const int64_t strip_bytes = round_up(padded_rows * padded_k_ * tiles_.strip_k_bytes, 64);
    const int64_t tile_bytes = padded_rows * tile_outs_ * 4;
    // A group that is widened is widened whole, even if it is cut into blocks.
    const int64_t line_bytes = is_expanded_ ? tiles_.panels * expanded_k() * kBytesPerK : 0;
    const int64_t sum_bytes = tiles_.panels * block_groups_ * kPanel * 4;
    thread_local Scratch scratch;
    const int64_t offset_bytes = round_up(num_rows_ * 4, 64);
    strips_ = reinterpret_cast<uint8_t*>(scratch.reserve(strip_bytes + tile_bytes + line_bytes + 2 * sum_bytes +
                                                         offset_bytes + padded_rows * product.num_outliers() * 4));
    acc_ = reinterpret_cast<int32_t*>(strips_ + strip_bytes);
    lines_ = strips_ + strip_bytes + tile_bytes;
    sums_ = reinterpret_cast<int32_t*>(lines_ + line_bytes);
    starts_ = reinterpret_cast<int32_t*>(lines_ + line_bytes + sum_bytes);
    offsets_ = offsets_of(product.rows, begin_row, num_rows_, 0,
                          reinterpret_cast<int32_t*>(lines_ + line_bytes + 2 * sum_bytes));
    outliers_ = reinterpret_cast<float*>(lines_ + line_bytes + 2 * sum_bytes + offset_bytes);
    for (int64_t row = 0; row < num_rows_; row += tiles_.rows) pack_strip(row);
  }

  void multiply(int64_t begin_panel, int64_t end_panel) {
    if (kernels_.begin_task) kernels_.begin_task();
    for (int64_t panel = begin_panel; panel < end_panel; panel += tiles_.panels) {
      multiply_tile(panel, std::min(panel + tiles_.panels, end_panel), end_panel);
    }
    if (kernels_.end_task) kernels_.end_task();
    if (product_.streams && kernels_.end_streams) kernels_.end_streams();
  }

 private:
  int64_t expanded_k() const { return run_.num_groups == 1 ? padded_k_ : block_k_; }
  int64_t strip_rows(int64_t row) const {
    return round_up(std::min<int64_t>(tiles_.rows, num_rows_ - row), tiles_.strip_unit_rows);
  }
  uint8_t* strip(int64_t row, int64_t k) const {
    return strips_ + (row * padded_k_ + k * strip_rows(row)) * tiles_.strip_k_bytes;
  }

  void pack_strip(int64_t row) const {
    const int64_t count = std::min<int64_t>(tiles_.rows, num_rows_ - row);
    if (product_.outliers) {
      product_.transpose_outliers(begin_row_ + row, count, outliers_ + row * product_.num_outliers(), tiles_.rows);
    }
    const int8_t* const codes = product_.rows.codes + (begin_row_ + row) * product_.rows.stride;
    if (padded_len_ == run_.group_len) {
      tiles_.strip(codes, product_.rows.stride, count, padded_k_, padded_k_, strip(row, 0));
      return;
    }
    for (int64_t group = 0; group < run_.num_groups; ++group) {
      tiles_.strip(codes + group * run_.group_len, product_.rows.stride, count, run_.group_len, padded_len_,
                   strip(row, group * padded_len_));
    }
  }

  // Sets the initial sums of tiles in groups [begin_group, end_group): [group, tile_outs].
  void set_starts(int64_t panel, int64_t end_panel, int64_t begin_group, int64_t end_group) const {
    for (int64_t group = begin_group; group < end_group; ++group) {
      int32_t* const starts = starts_of(group, begin_group);
      for (int64_t p = 0; p < end_panel - panel; ++p) {
        const int32_t* const sums = sums_of(panel, p, group, begin_group);
        for (int64_t lane = 0; lane < kPanel; ++lane) starts[p * kPanel + lane] = -tiles_.strip_offset * sums[lane];
      }
    }
  }
  int32_t* starts_of(int64_t group, int64_t begin_group) const { return starts_ + (group - begin_group) * tile_outs_; }

  // Points to the signed bytes of positions [begin_k, ...) of panels [panel, end_panel). Missing panels repeat the
  // first.
  void point_to_lines(int64_t panel, int64_t end_panel, int64_t begin_k, const uint8_t** lines) const {
    const int64_t begin_group = begin_k / padded_len_;
    const int64_t end_group = std::min(begin_group + block_groups_, run_.num_groups);
    for (int64_t p = 0; p < tiles_.panels; ++p) {
      if (panel + p >= end_panel) {
        lines[p] = lines[0];
      } else if (!is_expanded_) {
        lines[p] = run_.lines + (panel + p) * product_.panel_bytes + begin_k * kBytesPerK;
      } else {
        uint8_t* const widened = lines_ + p * expanded_k() * kBytesPerK;
        const bool is_new = begin_k % padded_len_ == 0;
        if (is_new) expand(panel + p, begin_group, end_group, widened, sums_ + p * block_groups_ * kPanel);
        lines[p] = widened + (begin_k - begin_group * padded_len_) * kBytesPerK;
      }
    }
    set_starts(panel, end_panel, begin_group, end_group);
  }

  void expand(int64_t panel, int64_t begin_group, int64_t end_group, uint8_t* lines, int32_t* sums) const {
    const Int8Weights weights = product_.panels_from(panel, panel + 1);
    if (weights.format == WeightFormat::int4) {
      kernels_.expand_int4(weights.run, begin_group, end_group, padded_len_, lines, sums);
      return;
    }
    for (int64_t group = begin_group; group < end_group; ++group) {
      const int64_t bytes = run_.group_len * kBytesPerK;
      std::memcpy(lines, weights.run.lines + group * bytes, bytes);
      std::memset(lines + bytes, 0, (padded_len_ - run_.group_len) * kBytesPerK);
      lines += padded_len_ * kBytesPerK;
    }
  }

  const int32_t* sums_of(int64_t panel, int64_t p, int64_t group, int64_t begin_group) const {
    if (product_.weights.sums) return product_.weights.sums + ((panel + p) * run_.num_groups + group) * kPanel;
    return sums_ + (p * block_groups_ + group - begin_group) * kPanel;
  }

  void multiply_tile(int64_t panel, int64_t end_panel, int64_t last_panel) const {
    const uint8_t* lines[kMaxInt8TilePanels];
    for (int64_t begin_k = 0; begin_k < padded_k_; begin_k += block_k_) {
      const int64_t end_k = std::min(begin_k + block_k_, padded_k_);
      point_to_lines(panel, end_panel, begin_k, lines);
      for (int64_t row = 0; row < num_rows_; row += tiles_.rows) {
        prefetch(panel, end_panel, last_panel, end_k, row);
        if (run_.num_groups == 1) {
          int32_t* const acc = acc_ + row * tile_outs_;
          const int64_t count = std::min<int64_t>(tiles_.rows, num_rows_ - row);
          tiles_.tile[count - 1](strip(row, begin_k), lines, end_k - begin_k, begin_k > 0, starts_, acc, tile_outs_);
          for (int64_t p = 0; end_k == padded_k_ && p < end_panel - panel; ++p) {
            kernels_.finish(acc + p * kPanel, tile_outs_, count, finish_of(panel, p, 0, 0, row));
          }
        } else {
          multiply_groups(panel, end_panel, begin_k / padded_len_, end_k / padded_len_, row, lines);
        }
      }
    }
  }

  // All groups of a row but its last, which has a finish, join the totals of a strip at once where a path can.
  void multiply_groups(int64_t panel, int64_t end_panel, int64_t begin_group, int64_t end_group, int64_t row,
                       const uint8_t* const* lines) const {
    const int64_t count = std::min<int64_t>(tiles_.rows, num_rows_ - row);
    int64_t group = begin_group;
    const int64_t fused_end = std::min(end_group, run_.num_groups - 1);
    if (tiles_.groups[count - 1] && offsets_ == nullptr && begin_group < fused_end) {
      add_groups(panel, end_panel, begin_group, fused_end, row, lines);
      group = fused_end;
    }
    if (group < end_group) finish_groups(panel, end_panel, begin_group, group, end_group, row, lines);
  }

  // Adds groups [begin_group, end_group) to the totals of a strip.
  void add_groups(int64_t panel, int64_t end_panel, int64_t begin_group, int64_t end_group, int64_t row,
                  const uint8_t* const* lines) const {
    const uint8_t* scales[kMaxInt8TilePanels];
    for (int64_t p = 0; p < tiles_.panels; ++p) {
      scales[p] = scales_of(panel + p < end_panel ? panel + p : panel, begin_group);
    }
    const int64_t count = std::min<int64_t>(tiles_.rows, num_rows_ - row);
    tiles_.groups[count - 1]({.strip = strip(row, begin_group * padded_len_),
                              .num_rows = count,
                              .panels = lines,
                              .scales = scales,
                              .scale_format = run_.scale_format,
                              .num_k = padded_len_,
                              .num_groups = end_group - begin_group,
                              .starts = starts_,
                              .group_scales = group_scales_of(row, begin_group),
                              .group_scales_stride = run_.num_groups,
                              .is_first_group = begin_group == 0,
                              .totals = totals_of(row),
                              .totals_stride = tile_outs_});
  }

  // The same for groups [group, end_group) of a block that begins at begin_group, one by one, and for a row's last one.
  void finish_groups(int64_t panel, int64_t end_panel, int64_t begin_group, int64_t group, int64_t end_group,
                     int64_t row, const uint8_t* const* block_lines) const {
    alignas(64) int32_t acc[kMaxInt8TileRows * kMaxInt8TilePanels * kPanel];
    const uint8_t* lines[kMaxInt8TilePanels];
    PanelFinish finishes[kMaxInt8TilePanels];
    for (int64_t p = 0; p < tiles_.panels; ++p) {
      lines[p] = block_lines[p] + (group - begin_group) * padded_len_ * kBytesPerK;
      if (panel + p < end_panel) finishes[p] = finish_of(panel, p, group, begin_group, row);
    }
    const int64_t count = std::min<int64_t>(tiles_.rows, num_rows_ - row);
    for (; group < end_group; ++group) {
      tiles_.tile[count - 1](strip(row, group * padded_len_), lines, padded_len_, false, starts_of(group, begin_group),
                             acc, tile_outs_);
      for (int64_t p = 0; p < tiles_.panels; ++p) lines[p] += padded_len_ * kBytesPerK;
      for (int64_t p = 0; p < end_panel - panel; ++p) {
        finishes[p].is_first_group = group == 0;
        finishes[p].is_last_group = group + 1 == run_.num_groups;
        kernels_.finish(acc + p * kPanel, tile_outs_, count, finishes[p]);
        advance(finishes[p]);
      }
    }
  }

  const uint8_t* scales_of(int64_t panel, int64_t group) const {
    return run_.scales + panel * product_.panel_scale_bytes + group * scale_line_bytes(run_.scale_format);
  }
  // Returns null where rows have no scales of groups.
  const float* group_scales_of(int64_t row, int64_t group) const {
    const float* const scales = product_.rows.group_scales;
    return scales == nullptr ? nullptr : scales + (begin_row_ + row) * run_.num_groups + group;
  }
  float* totals_of(int64_t row) const { return reinterpret_cast<float*>(acc_) + row * tile_outs_; }

  // Moves a finish to the next group.
  void advance(PanelFinish& finish) const {
    finish.scales += scale_line_bytes(run_.scale_format);
    finish.sums += kPanel;
    if (finish.group_scales) ++finish.group_scales;
  }

  PanelFinish finish_of(int64_t panel, int64_t p, int64_t group, int64_t begin_group, int64_t row) const {
    PanelFinish finish = product_.finish_of(begin_row_ + row, panel + p);
    finish.scales = scales_of(panel + p, group);
    finish.offsets = offsets_ ? offsets_ + row : nullptr;
    finish.sums = sums_of(panel, p, group, begin_group);
    finish.totals = totals_of(row) + p * kPanel;
    finish.totals_stride = tile_outs_;
    finish.group_scales_stride = run_.num_groups;
    finish.group_scales = group_scales_of(row, group);
    finish.outliers = outliers_ + row * product_.num_outliers();
    finish.outliers_stride = tiles_.rows;
    finish.is_first_group = finish.is_last_group = true;
    return finish;
  }

  // Prefetches this strip's share of the lines that the next block reads. In the last block it also prefetches the
  // lines of y that its finish is about to write. Rows of y lie far apart, and waiting for each cost a third of short
  // products.
  void prefetch(int64_t panel, int64_t end_panel, int64_t last_panel, int64_t end_k, int64_t row) const {
    const bool ends_tile = end_k == padded_k_;
    const int64_t next_panel = ends_tile ? end_panel : panel;
    const int64_t next_end = std::min(next_panel + tiles_.panels, last_panel);
    const int64_t next_k = ends_tile ? 0 : end_k;
    const int64_t panel_lines = product_.panel_bytes / 64;
    const int64_t begin = panel_lines * next_k / padded_k_;
    const int64_t end = panel_lines * std::min(next_k + block_k_, padded_k_) / padded_k_;
    const int64_t share = divide_up(end - begin, divide_up(num_rows_, tiles_.rows));
    const int64_t first = begin + row / tiles_.rows * share;
    for (int64_t p = next_panel; p < next_end; ++p) {
      const uint8_t* const lines = run_.lines + p * product_.panel_bytes;
      for (int64_t line = first; line < std::min(first + share, end); ++line)
        __builtin_prefetch(lines + line * 64, 0, 2);
    }
    if (!ends_tile || product_.streams) return;
    const int64_t num_outs = std::min(end_panel * kPanel, run_.num_outs) - panel * kPanel;
    for (int64_t r = row; r < std::min(row + tiles_.rows, num_rows_); ++r) {
      const float* const y = product_.y + (begin_row_ + r) * product_.y_stride + panel * kPanel;
      for (int64_t o = 0; o < num_outs; o += kPanel) __builtin_prefetch(y + o, 1, 3);
    }
  }

  const Product& product_;
  const Int8Kernels& kernels_;
  const Int8Tiles& tiles_;
  const PanelRun& run_;
  const int64_t begin_row_, num_rows_;
  const int64_t padded_len_, padded_k_;  // positions of a group and of a row, padded to the path's unit
  const int64_t tile_outs_;
  const bool is_expanded_;
  int64_t block_k_ = 0, block_groups_ = 0;
  uint8_t* strips_ = nullptr;
  int32_t* acc_ = nullptr;  // int32 sums of one group, or float32 totals of several: [rows, tile_outs]
  uint8_t* lines_ = nullptr;
  int32_t* sums_ = nullptr;
  int32_t* starts_ = nullptr;
  const int32_t* offsets_ = nullptr;
  float* outliers_ = nullptr;  // [strip, num_outliers, tile_rows]
};

// Threads take tasks as they become free. Each task computes its outputs alone, so the thread that runs it changes no
// bit.
void multiply_many(const Product& product, int64_t num_rows, int max_threads) {
  const Int8Tiles& tiles = product.tiles();
  const int64_t products = num_rows * product.num_k * product.num_panels * kPanel;
  const int team = team_size(max_threads, products / kMinThreadProducts);
  const int64_t threads = std::clamp<int64_t>(products / kMinThreadProducts, 1, team);  // that have work
  const int64_t max_rows = std::clamp(kStripBytes / tiles.strip_k_bytes / product.num_k, kMinTaskRows, kMaxTaskRows);
  int64_t row_tasks = divide_up(num_rows, max_rows);
  if (num_rows >= threads * kMinTaskRows) row_tasks = round_up(row_tasks, threads);
  const int64_t task_rows = round_up(divide_up(num_rows, row_tasks), tiles.rows);
  row_tasks = divide_up(num_rows, task_rows);
  const int64_t num_tiles = divide_up(product.num_panels, tiles.panels);
  const int64_t tile_tasks =
      threads == 1 || row_tasks % threads == 0 ? 1 : std::min(num_tiles, kChunksPerThread * threads);
  auto run_task = [&](int64_t task) {
    const int64_t row = task / tile_tasks * task_rows;
    const int64_t begin_tile = num_tiles * (task % tile_tasks) / tile_tasks;
    const int64_t end_tile = num_tiles * (task % tile_tasks + 1) / tile_tasks;
    RowBlock(product, row, std::min(row + task_rows, num_rows))
        .multiply(begin_tile * tiles.panels, std::min(end_tile * tiles.panels, product.num_panels));
  };
  const int64_t num_tasks = row_tasks * tile_tasks;
  if (team == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) run_task(task);
    return;
  }
  FirstException error;
#pragma omp parallel for schedule(dynamic) num_threads(team)
  for (int64_t task = 0; task < num_tasks; ++task) {
    error.capture([&] { run_task(task); });
  }
  error.rethrow();
}

}  // namespace

void sum_int8_panels(const PanelRun& run, int32_t* sums) {
  const int8_t* code = reinterpret_cast<const int8_t*>(run.lines);
  const int64_t num_panel_groups = divide_up(run.num_outs, kPanel) * run.num_groups;
  std::fill_n(sums, num_panel_groups * kPanel, 0);
  for (int64_t group = 0; group < num_panel_groups; ++group, sums += kPanel) {
    for (int64_t k = 0; k < run.group_len; k += 4) {
      for (int64_t lane = 0; lane < kPanel; ++lane, code += 4) sums[lane] += code[0] + code[1] + code[2] + code[3];
    }
  }
}

void int8_multiply(const Int8Kernels& kernels, const Int8Weights& weights, const Int8Rows& rows, int64_t num_rows,
                   const OutlierColumns* outliers, float* y, int64_t y_stride, int num_threads) {
  const PanelRun& run = weights.run;
  const int64_t num_k = run.num_groups * run.group_len;
  check(weights, rows, num_rows, num_k);
  if (num_rows == 0 || run.num_outs <= 0) return;
  const UnitShape unit = unit_shape(weights.format);
  const bool has_outliers = outliers != nullptr && outliers->num_columns > 0;
  const bool is_aligned = reinterpret_cast<uintptr_t>(y) % 64 == 0 && y_stride % kPanel == 0;
  const Product product{kernels,
                        weights,
                        rows,
                        has_outliers ? outliers : nullptr,
                        y,
                        y_stride,
                        num_k,
                        divide_up(run.num_outs, kPanel),
                        num_k / unit.num_k * unit.num_bytes,
                        run.num_groups * scale_line_bytes(run.scale_format),
                        has_outliers ? outliers->num_columns * scale_line_bytes(outliers->format) : 0,
                        is_aligned && num_rows * run.num_outs * 4 >= kMinStreamedBytes};
  const int threads = omp_in_parallel() ? 1 : num_threads > 0 ? num_threads : omp_get_max_threads();
  if (num_rows <= kernels.max_gemv_rows) {
    multiply_few(product, num_rows, threads);
  } else {
    multiply_many(product, num_rows, threads);
  }
}

}  // namespace pare::runtime
