// CpuPackedLinear for weights in column panels, whose inputs are often zero.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/share_panels.h"

namespace pare::runtime {
namespace {

// Decode skips columns if at most this share of them counts. Otherwise it reads all of them in their order, which is
// then as fast or faster (tests/bench/zero_inputs_bench.cpp: skipping pays from 15 % of zeros in bf16 to 40 % in int4).
constexpr double kMostToSkip = 0.7;
// Below this many values, counting them is work for one thread.
constexpr int64_t kMinThreadValues = int64_t{1} << 19;

}  // namespace

InputZeros CpuPackedLinear::input_zeros() const {
  return {.num_inputs = num_inputs_,
          .num_zeros = num_zeros_,
          .num_columns = num_columns_,
          .num_skipped = num_skipped_,
          .num_products = num_products_,
          .skipped_bytes = skipped_bytes_};
}

// Lists the positions that count, once for all panels. The list's order and the shape alone decide the order of sums.
void CpuPackedLinear::gemv_columns(ColumnInput x, int64_t num_rows, const PanelRange& range, float* y,
                                   int64_t y_stride) const {
  const Part& part = parts_.front();
  const InputLayout& layout = layouts_[part.layout];
  thread_local std::vector<int32_t> positions, first_of_group;
  positions.resize(static_cast<size_t>(layout.num_k + std::max(kPositionsSlack, kPositionsAhead)));
  first_of_group.resize(static_cast<size_t>(part.num_groups + 1));
  int64_t count = 0;
  for (int64_t group = 0; group < part.num_groups; ++group) {
    first_of_group[static_cast<size_t>(group)] = static_cast<int32_t>(count);
    count += column_kernels_->nonzero_positions(x.x, x.x_stride, num_rows, group * layout.group_len,
                                                (group + 1) * layout.group_len, positions.data() + count);
  }
  first_of_group.back() = static_cast<int32_t>(count);
  const bool skips = static_cast<double>(count) <= kMostToSkip * static_cast<double>(num_in_);
  if (skips) {
    for (int64_t i = 0; i < kPositionsAhead; ++i) {
      const int64_t next = count == 0 ? 0 : (1 + i / count) * layout.num_k + positions[static_cast<size_t>(i % count)];
      positions[static_cast<size_t>(count + i)] = static_cast<int32_t>(next);
    }
    x.positions = positions.data();
    x.first_of_group = first_of_group.data();
  }

  const ColumnKernel kernel = column_kernels_->gemv[static_cast<int>(part.format)][num_rows - 1];
  const int64_t at_once = part.panels_at_once();
  auto multiply_panels = [&](int64_t begin, int64_t end) {
    kernel(run_of(part, begin * at_once, end * at_once, range.end_out), x,
           y + begin * at_once * kPanel - range.first_out, y_stride);
  };
  const int64_t first_column = range.begin / at_once, num_columns = divide_up(range.end, at_once) - first_column;
  const int64_t num_skipped = skips ? layout.num_k - count : 0;
  const int64_t skipped_bytes = num_columns * num_skipped * unit_shape(part.format).num_bytes;
  num_columns_.fetch_add(num_in_, std::memory_order_relaxed);
  num_skipped_.fetch_add(skips ? num_in_ - count : 0, std::memory_order_relaxed);
  num_products_.fetch_add(1, std::memory_order_relaxed);
  skipped_bytes_.fetch_add(skipped_bytes, std::memory_order_relaxed);
  const int64_t num_bytes = num_columns * at_once * part.panel_bytes - skipped_bytes;
  share_panels(num_threads(), num_columns, num_bytes,
               [&](int64_t begin, int64_t end) { multiply_panels(first_column + begin, first_column + end); });
}

void CpuPackedLinear::count_zeros(const float* x_RI, int64_t num_rows) const {
  const int64_t num_values = num_rows * num_in_;
  int64_t num_zeros = 0;
#pragma omp parallel for reduction(+ : num_zeros) num_threads(num_threads()) if (num_values > kMinThreadValues)
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < num_in_; ++i) num_zeros += x_RI[row * num_in_ + i] == 0.0f ? 1 : 0;
  }
  num_inputs_.fetch_add(num_values, std::memory_order_relaxed);
  num_zeros_.fetch_add(num_zeros, std::memory_order_relaxed);
}

void CpuPackedLinear::column_row(const Part& part, int64_t out, float* dst_I) const {
  const InputLayout& layout = layouts_[part.layout];
  const UnitShape unit = unit_shape(part.format);
  const int64_t at_once = part.panels_at_once(), column_panel = out / kPanel / at_once;
  const int64_t index = out / kPanel % at_once, lane = out % kPanel;
  const std::byte* const lines = part.lines.get() + column_panel * at_once * part.panel_bytes;
  if (part.scale_format == ScaleFormat::none) {
    return dense_column_lane(part.format, lines, out, std::span(dst_I, num_in_));
  }
  const int bits = code_bits(part.format);
  for (int64_t k = 0; k < layout.num_k; ++k) {
    const int64_t column = layout.column_of_k.empty() ? k : layout.column_of_k[k];
    if (column < 0) continue;
    const int64_t group = k / layout.group_len;
    const Grid grid = grid_at(part, ((column_panel * part.num_groups + group) * at_once + index) * kPanel + lane);
    uint32_t word = 0;
    std::memcpy(&word, lines + k * unit.num_bytes + 4 * lane, 4);
    dst_I[column] = value_of(part, grid, static_cast<int>(word >> (index * bits)) & ((1 << bits) - 1));
  }
}

}  // namespace pare::runtime
