#include "runtime/cpu/panels.h"

#include <algorithm>
#include <cstring>

namespace pare {
namespace {

int64_t divide_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

WeightFormat format_of(const QuantizedWeight& weight) {
  if (weight.code_type == CodeType::fp8) return WeightFormat::fp8;
  return weight.bits == 2   ? WeightFormat::int2
         : weight.bits == 3 ? WeightFormat::int3
         : weight.bits == 4 ? WeightFormat::int4
                            : WeightFormat::int8;
}

ScaleFormat scale_format_of(DType dtype) {
  return dtype == DType::BF16 ? ScaleFormat::bf16 : dtype == DType::F16 ? ScaleFormat::f16 : ScaleFormat::f32;
}

// Fills in group_len, num_k and column_of_k.
void lay_out_columns(const QuantizedWeight& weight, QuantizedPanels& panels) {
  std::vector<std::vector<int32_t>> columns_of_group(static_cast<size_t>(panels.num_groups));
  for (int64_t i = 0; i < weight.num_in; ++i) columns_of_group[weight.group(i)].push_back(static_cast<int32_t>(i));
  size_t longest = 0;
  for (const auto& columns : columns_of_group) longest = std::max(longest, columns.size());
  const int64_t unit_k = unit_shape(panels.format).num_k;
  panels.group_len = divide_up(static_cast<int64_t>(longest), unit_k) * unit_k;
  panels.num_k = panels.group_len * panels.num_groups;
  panels.column_of_k.assign(static_cast<size_t>(panels.num_k), -1);
  for (int64_t group = 0; group < panels.num_groups; ++group) {
    const std::vector<int32_t>& columns = columns_of_group[group];
    std::copy(columns.begin(), columns.end(), panels.column_of_k.begin() + group * panels.group_len);
  }
}

}  // namespace

PanelRun QuantizedPanels::run() const {
  return {.lines = reinterpret_cast<const uint8_t*>(lines.get()),
          .scales = reinterpret_cast<const uint8_t*>(scales.get()),
          .zeros = zeros ? reinterpret_cast<const uint8_t*>(zeros.get()) : nullptr,
          .bias = nullptr,
          .num_groups = num_groups,
          .group_len = group_len,
          .num_outs = num_out,
          .scale_format = scale_format};
}

int64_t QuantizedPanels::num_bytes() const {
  return num_panels * (panel_bytes + panel_scale_bytes + (zeros ? num_groups * kPanel : 0));
}

QuantizedPanels pack_panels(const QuantizedWeight& weight) {
  QuantizedPanels panels;
  panels.format = format_of(weight);
  panels.scale_format = scale_format_of(weight.scale_dtype);
  panels.num_out = weight.num_out;
  panels.num_panels = divide_up(weight.num_out, kPanel);
  panels.num_groups = weight.num_groups();
  lay_out_columns(weight, panels);
  const UnitShape unit = unit_shape(panels.format);
  panels.panel_bytes = panels.num_k / unit.num_k * unit.num_bytes;
  panels.panel_scale_bytes = panels.num_groups * kPanel * scale_bytes(panels.scale_format);
  panels.lines = allocate_aligned(panels.num_panels * panels.panel_bytes);
  panels.scales = allocate_aligned(panels.num_panels * panels.panel_scale_bytes);
  if (!weight.symmetric) panels.zeros = allocate_aligned(panels.num_panels * panels.num_groups * kPanel);
  const int bits = weight.bits;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  const bool is_fp8 = weight.code_type == CodeType::fp8;
  const uint32_t center = is_fp8 ? 0 : 1u << (bits - 1);
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < panels.num_panels; ++panel) {
    for (int64_t lane = 0; lane < std::min(kPanel, panels.num_out - panel * kPanel); ++lane) {
      const int64_t out = panel * kPanel + lane;
      const uint8_t* codes = weight.codes_OI.data() + out * weight.num_in;
      std::byte* line = panels.lines.get() + panel * panels.panel_bytes + lane * 4;
      for (int64_t k = 0; k < panels.num_k; k += unit.num_k, line += unit.num_bytes) {
        const uint32_t padding = is_fp8 ? 0 : static_cast<uint32_t>(weight.zero(out, k / panels.group_len));
        uint32_t words[4] = {};  // a lane's part of the unit, and room for the last code's upper half
        for (int64_t j = 0; j < unit.num_k; ++j) {
          const int32_t column = panels.column_of_k[k + j];
          const uint64_t stored = ((column < 0 ? padding : codes[column]) - center) & mask;
          const uint64_t shifted = stored << (j * bits % 32);
          words[j * bits / 32] |= static_cast<uint32_t>(shifted);
          words[j * bits / 32 + 1] |= static_cast<uint32_t>(shifted >> 32);
        }
        for (int64_t w = 0; w < unit.num_bytes / 64; ++w) std::memcpy(line + 64 * w, &words[w], 4);
      }
      for (int64_t group = 0; group < panels.num_groups; ++group) {
        store_scale(panels.scale_format, weight.scales_OG[out * panels.num_groups + group],
                    panels.scales.get() + panel * panels.panel_scale_bytes +
                        (group * kPanel + lane) * scale_bytes(panels.scale_format));
        if (panels.zeros) {
          panels.zeros[(panel * panels.num_groups + group) * kPanel + lane] =
              static_cast<std::byte>(weight.zeros_OG[out * panels.num_groups + group]);
        }
      }
    }
  }
  return panels;
}

std::string weight_name(const QuantizedWeight& weight) {
  std::string name = (weight.code_type == CodeType::fp8 ? "wfp" : "w") + std::to_string(weight.bits);
  if (weight.group_size != kPerChannel) name += "g" + std::to_string(weight.group_size);
  if (!weight.symmetric) name += "z";
  return name;
}

int64_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::none ? 0 : format == ScaleFormat::f32 ? 4 : 2;
}

float load_scale(ScaleFormat format, const std::byte* bytes) {
  if (format == ScaleFormat::f32) {
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return format == ScaleFormat::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_scale(ScaleFormat format, float value, std::byte* bytes) {
  if (format == ScaleFormat::f32) {
    std::memcpy(bytes, &value, 4);
    return;
  }
  const uint16_t bits = format == ScaleFormat::bf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(bytes, &bits, 2);
}

int code_bits(WeightFormat format) {
  const UnitShape unit = unit_shape(format);
  return static_cast<int>(unit.num_bytes * 8 / kPanel / unit.num_k);
}

}  // namespace pare
