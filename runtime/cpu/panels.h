// Weights in the packed layout of linear_kernels.h, which float and integer products both read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/kernels/linear_kernels.h"
#include "runtime/cpu/weight_memory.h"
#include "runtime/format/linear_weights.h"

namespace pare::runtime {

// W[o, column_of_k[k]] stands at packed position k: groups are padded to whole units of the format, and act-order moves
// columns between groups. A padding position has column -1 and the code of its group's zero, so that it adds nothing to
// any product.
struct QuantizedPanels {
  WeightFormat format = WeightFormat::int8;
  bool by_columns = false;  // in column panels; num_panels then fills them
  ScaleFormat scale_format = ScaleFormat::none;
  float tensor_scale = 1.0f;
  int64_t num_out = 0;
  int64_t num_panels = 0;
  int64_t num_groups = 1;
  int64_t group_len = 0;             // positions
  int64_t num_k = 0;                 // num_groups * group_len
  int64_t panel_bytes = 0;           // the lines of one panel
  int64_t panel_scale_bytes = 0;     // num_groups * kPanel * bytes of a scale
  std::vector<int32_t> column_of_k;  // [num_k]
  WeightBytes lines, scales, zeros;  // zeros: null if symmetric
  // A table4 has its code's values here; codes of fewer bits repeat them.
  std::array<float, kTableValues> values = {};

  // Returns all panels, without a bias.
  PanelRun run() const;
  int64_t num_bytes() const;
};

// How weights of a format are packed: in panels, or in column panels where its inputs are often zero. 2:4 and formats
// without column panels stay in panels.
enum class PanelOrder : uint8_t { outputs, columns };
constexpr PanelOrder possible_order(WeightFormat format, PanelOrder wanted) {
  return panels_of_column(format) > 0 ? wanted : PanelOrder::outputs;
}
// Positions of a group are padded to whole multiples of this. In column panels they are even, as tiles need them.
constexpr int64_t positions_at_once(WeightFormat format, PanelOrder order) {
  return order == PanelOrder::columns ? 2 : unit_shape(format).num_k;
}
// The number of panels that hold num_out outputs.
int64_t num_panels_of(WeightFormat format, PanelOrder order, int64_t num_out);

// `weight` has passed validate(). Throws std::invalid_argument if a weight to be packed in a 2:4 format has more than
// two nonzero weights of four. The message has `name` and the place.
QuantizedPanels pack_panels(const QuantizedWeight& weight, const std::string& name,
                            PanelOrder wanted = PanelOrder::outputs);

// Returns the format in which a weight of `dense` format is packed. It is the 2:4 format of `dense` if there is one and
// the pattern is 2:4. No four may lie in two groups of group_size positions (the last group may end within a four), and
// the 2:4 format must take fewer bytes.
WeightFormat packed_format(WeightFormat dense, const SparsePattern& pattern, int64_t num_groups, int64_t group_size);

// A lane of a unit, with `lines` at the unit: its stored values, and the positions of the unit that they belong to.
struct StoredLane {
  bool is_kept_alone;       // true if the format is 2:4
  uint32_t places = 0;      // set if is_kept_alone
  const std::byte* values;  // units of value_format(format)
  int64_t num_values;

  StoredLane(WeightFormat format, const std::byte* lines, int64_t lane);
  int64_t position(int64_t i) const { return is_kept_alone ? i / 2 * 4 + (places >> (2 * i) & 3) : i; }
};

// Writes row `out` of a dense weight, in bytes of its type, into its lane of a panel whose lines begin at `lines`.
// Units are bf16, f16, f32, bf16_24 or f16_24. Throws what pack_panels throws.
void pack_dense_lane(WeightFormat format, std::span<const std::byte> row, const std::string& name, int64_t out,
                     std::byte* lines);
// Reads the values of such a lane in float32. Values that are not kept are not written.
void dense_lane(WeightFormat format, const std::byte* lines, int64_t lane, std::span<float> row);
// The same two for a column panel of bf16, f16 or f32 whose lines begin at `lines`. `out` counts within the linear.
void pack_dense_column_lane(WeightFormat format, std::span<const std::byte> row, int64_t out, std::byte* lines);
void dense_column_lane(WeightFormat format, const std::byte* lines, int64_t out, std::span<float> row);

// Returns a part of kernel names: "w4g64", "w8z", "wfp8".
std::string weight_name(const QuantizedWeight& weight);

float load_scale(ScaleFormat format, const std::byte* bytes);
void store_scale(ScaleFormat format, float value, std::byte* bytes);

// Returns the bits of a code of an integer format, of fp8 or of table4; for 2:4, of a kept code.
int code_bits(WeightFormat format);

}  // namespace pare::runtime
