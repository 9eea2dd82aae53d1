// Weights in the packed layout of linear_kernels.h: what float and integer products read alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/kernels/linear_kernels.h"
#include "runtime/format/linear_weights.h"
#include "runtime/system/aligned_memory.h"

namespace pare {

// W[o, column_of_k[k]] stands at packed position k: groups are padded to whole units of the format, and act-order
// moves columns between groups. A padding position has column -1 and the code of its group's zero, so that it adds
// nothing to any product.
struct QuantizedPanels {
  WeightFormat format = WeightFormat::int8;
  ScaleFormat scale_format = ScaleFormat::none;
  int64_t num_out = 0;
  int64_t num_panels = 0;
  int64_t num_groups = 1;
  int64_t group_len = 0;              // positions
  int64_t num_k = 0;                  // num_groups * group_len
  int64_t panel_bytes = 0;            // of lines
  int64_t panel_scale_bytes = 0;      // num_groups * kPanel * bytes of a scale
  std::vector<int32_t> column_of_k;   // [num_k]
  AlignedBytes lines, scales, zeros;  // zeros: null when symmetric

  // All panels, without a bias.
  PanelRun run() const;
  int64_t num_bytes() const;
};

// `weight` has passed validate(). Throws std::invalid_argument naming `name` and the place where a weight to be packed
// in a 2:4 format has more than two of four other than zero.
QuantizedPanels pack_panels(const QuantizedWeight& weight, const std::string& name);

// The format in which a weight of `dense` format is packed: its 2:4 format where the pattern is 2:4, there is one, no
// four lies in two groups of group_size positions (the last group may end within a four), and fewer bytes hold it.
WeightFormat packed_format(WeightFormat dense, const SparsePattern& pattern, int64_t num_groups, int64_t group_size);

// A lane of a unit, `lines` at the unit: its stored values, and which of the unit's positions they are of.
struct StoredLane {
  bool is_kept_alone;       // the format is 2:4
  uint32_t places = 0;      // then
  const std::byte* values;  // units of value_format(format)
  int64_t num_values;

  StoredLane(WeightFormat format, const std::byte* lines, int64_t lane);
  int64_t position(int64_t i) const { return is_kept_alone ? i / 2 * 4 + (places >> (2 * i) & 3) : i; }
};

// Writes row `out` of a dense weight, in bytes of its type, into its lane of a panel whose lines begin at `lines`:
// units of bf16, f16, f32, bf16_24 or f16_24. Throws as pack_panels does.
void pack_dense_lane(WeightFormat format, std::span<const std::byte> row, const std::string& name, int64_t out,
                     std::byte* lines);
// The values of the same in float32; what is not kept is not written.
void dense_lane(WeightFormat format, const std::byte* lines, int64_t lane, std::span<float> row);

// "w4g64", "w8z", "wfp8": part of kernel names.
std::string weight_name(const QuantizedWeight& weight);

int64_t scale_bytes(ScaleFormat format);
float load_scale(ScaleFormat format, const std::byte* bytes);
void store_scale(ScaleFormat format, float value, std::byte* bytes);

// Bits of a code of an integer format or of fp8; of a kept one where the format is 2:4.
int code_bits(WeightFormat format);

}  // namespace pare
