// Quantized weights in the packed layout of linear_kernels.h: what float and integer products read alike.
#pragma once

#include <cstdint>
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

// `weight` has passed validate().
QuantizedPanels pack_panels(const QuantizedWeight& weight);

// "w4g64", "w8z", "wfp8": part of kernel names.
std::string weight_name(const QuantizedWeight& weight);

int64_t scale_bytes(ScaleFormat format);
float load_scale(ScaleFormat format, const std::byte* bytes);
void store_scale(ScaleFormat format, float value, std::byte* bytes);

// Bits of a code of an integer format or of fp8.
int code_bits(WeightFormat format);

}  // namespace pare
