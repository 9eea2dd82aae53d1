#include "runtime/cpu/panels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/cpu/divide_up.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

WeightFormat format_of(const QuantizedWeight& weight) {
  if (weight.code->numbers == CodeNumbers::e4m3) return WeightFormat::fp8;
  if (weight.code->numbers == CodeNumbers::table) return WeightFormat::table4;
  return weight.bits == 2   ? WeightFormat::int2
         : weight.bits == 3 ? WeightFormat::int3
         : weight.bits == 4 ? WeightFormat::int4
                            : WeightFormat::int8;
}

ScaleFormat scale_format_of(DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return ScaleFormat::bf16;
    case DType::F16:
      return ScaleFormat::f16;
    case DType::F8_E4M3:
      return ScaleFormat::e4m3;
    case DType::F8_E8M0:
      return ScaleFormat::e8m0;
    default:
      return ScaleFormat::f32;
  }
}

// Returns the byte of the i-th value of a lane within consecutive units of bf16, f16 or f32.
int64_t value_offset(WeightFormat format, int64_t i, int64_t lane) {
  if (format == WeightFormat::bf16) return i / 2 * 64 + lane * 4 + i % 2 * 2;
  return format == WeightFormat::f16 ? i * 32 + lane * 2 : i * 64 + lane * 4;
}

// Returns a stored value of bf16, f16 or f32.
float dense_value(WeightFormat format, const std::byte* bytes) {
  float value = 0.0f;
  uint16_t half = 0;
  if (format == WeightFormat::f32) {
    std::memcpy(&value, bytes, 4);
    return value;
  }
  std::memcpy(&half, bytes, 2);
  return format == WeightFormat::bf16 ? bf16_to_float(half) : f16_to_float(half);
}

// Stores a lane's codes of one unit as words at their places in its lines.
void store_codes(std::span<const uint32_t> stored, int bits, std::byte* line) {
  uint32_t words[3] = {};
  const auto num_codes = static_cast<int>(stored.size());
  for (int j = 0; j < num_codes; ++j) {
    if (bits == 3) {
      words[j / 16] |= (stored[j] & 3) << (j % 16 * 2);
      words[2] |= stored[j] >> 2 << int3_top(j);
    } else {
      words[j * bits / 32] |= stored[j] << (j * bits % 32);
    }
  }
  for (int w = 0; w * 32 < num_codes * bits; ++w) std::memcpy(line + 64 * w, &words[w], 4);
}

// Fills in group_len, num_k and column_of_k.
void lay_out_columns(const QuantizedWeight& weight, QuantizedPanels& panels) {
  std::vector<std::vector<int32_t>> columns_of_group(static_cast<size_t>(panels.num_groups));
  for (int64_t i = 0; i < weight.num_in; ++i) columns_of_group[weight.group(i)].push_back(static_cast<int32_t>(i));
  size_t longest = 0;
  for (const auto& columns : columns_of_group) longest = std::max(longest, columns.size());
  const PanelOrder order = panels.by_columns ? PanelOrder::columns : PanelOrder::outputs;
  panels.group_len = round_up(static_cast<int64_t>(longest), positions_at_once(panels.format, order));
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
          .scale_format = scale_format,
          .tensor_scale = tensor_scale,
          .values = values.data()};
}

int64_t QuantizedPanels::num_bytes() const {
  return num_panels * (panel_bytes + panel_scale_bytes + (zeros ? num_groups * kPanel : 0));
}

WeightFormat packed_format(WeightFormat dense, const SparsePattern& pattern, int64_t num_groups, int64_t group_size) {
  if (!(pattern == kTwoOfFour) || (num_groups > 1 && group_size % kTwoOfFour.group != 0)) return dense;
  const auto bytes_of_group = [&](WeightFormat format) {
    const UnitShape unit = unit_shape(format);
    return divide_up(group_size, unit.num_k) * unit.num_bytes;
  };
  for (WeightFormat format :
       {WeightFormat::bf16_24, WeightFormat::f16_24, WeightFormat::int8_24, WeightFormat::int4_24}) {
    if (value_format(format) == dense && bytes_of_group(format) < bytes_of_group(dense)) return format;
  }
  return dense;
}

namespace {

// The values that a lane of a 2:4 unit keeps of its 32 positions.
struct KeptPositions {
  uint32_t places = 0;               // the lane's word in the unit's first line
  uint8_t position[kKeptPerUnit]{};  // in the unit, ascending
};

// Bit j of `nonzero` says that the weight at position j of the unit, first_column + j of `row`, is not zero. A four
// with fewer than two nonzero weights also keeps its first others. Throws std::invalid_argument if a four has more.
KeptPositions kept_positions(uint32_t nonzero, const std::string& name, int64_t row, int64_t first_column) {
  KeptPositions kept;
  for (int i = 0; i < kKeptPerUnit; i += 2) {
    const int first_position = i / 2 * 4;
    uint32_t four = nonzero >> first_position & 0xF;
    if (std::popcount(four) > 2) {
      throw std::invalid_argument("weight of '" + name + "': expected at most 2 of 4 inputs other than zero, found " +
                                  std::to_string(std::popcount(four)) + " from [" + std::to_string(row) + ", " +
                                  std::to_string(first_column + first_position) + "] on");
    }
    for (int place = 0; std::popcount(four) < 2; ++place) four |= 1u << place;
    const int places[2] = {std::countr_zero(four), std::countr_zero(four & (four - 1))};
    for (int j = 0; j < 2; ++j) {
      kept.places |= static_cast<uint32_t>(places[j]) << (2 * (i + j));
      kept.position[i + j] = static_cast<uint8_t>(first_position + places[j]);
    }
  }
  return kept;
}

// Packs one output of a panel: the codes of the weight's row `out`, with `line` at the output's lane.
void pack_lane(const QuantizedWeight& weight, const std::string& name, const QuantizedPanels& panels, int64_t out,
               std::byte* line) {
  const UnitShape unit = unit_shape(panels.format);
  const UnitShape values = unit_shape(value_format(panels.format));
  // Integers are stored as signed ones.
  const int bits = code_bits(panels.format);
  const uint32_t mask = (1u << bits) - 1;
  const uint32_t center = weight.code->is_integer() ? 1u << (bits - 1) : 0;
  const uint8_t* codes = weight.codes_OI.data() + out * weight.num_in;
  for (int64_t k = 0; k < panels.num_k; k += unit.num_k, line += unit.num_bytes) {
    const auto padding = static_cast<uint32_t>(weight.zero(out, k / panels.group_len));
    uint32_t stored[32];
    uint32_t nonzero = 0;
    for (int64_t j = 0; j < unit.num_k; ++j) {
      const int32_t column = panels.column_of_k[k + j];
      const uint32_t code = column < 0 ? padding : codes[column];
      nonzero |= static_cast<uint32_t>(code != padding) << j;
      stored[j] = (code - center) & mask;
    }
    if (!is_two_of_four(panels.format)) {
      store_codes(std::span(stored).first(static_cast<size_t>(unit.num_k)), bits, line);
      continue;
    }
    const KeptPositions kept = kept_positions(nonzero, name, out, panels.column_of_k[k]);
    std::memcpy(line, &kept.places, 4);
    for (int64_t i = 0; i < kKeptPerUnit; i += values.num_k) {
      uint32_t stored_kept[kKeptPerUnit];
      for (int64_t j = 0; j < values.num_k; ++j) stored_kept[j] = stored[kept.position[i + j]];
      store_codes(std::span(stored_kept).first(static_cast<size_t>(values.num_k)), bits,
                  line + kPlacesBytes + i / values.num_k * values.num_bytes);
    }
  }
}

// Writes row `out` into its lane of the column panel that begins at `lines`.
void pack_column_lane(const QuantizedWeight& weight, const QuantizedPanels& panels, int64_t out, std::byte* lines) {
  const UnitShape unit = unit_shape(panels.format);
  const int bits = code_bits(panels.format);
  const uint32_t mask = (1u << bits) - 1;
  const uint32_t center = weight.code->is_integer() ? 1u << (bits - 1) : 0;
  const uint8_t* const codes = weight.codes_OI.data() + out * weight.num_in;
  const auto shift = static_cast<int>(out / kPanel % unit.num_k) * bits;
  std::byte* word = lines + out % kPanel * 4;
  for (int64_t k = 0; k < panels.num_k; ++k, word += unit.num_bytes) {
    const int32_t column = panels.column_of_k[k];
    const uint32_t code = column < 0 ? static_cast<uint32_t>(weight.zero(out, k / panels.group_len)) : codes[column];
    uint32_t bits_of_panels = 0;
    std::memcpy(&bits_of_panels, word, 4);
    bits_of_panels |= ((code - center) & mask) << shift;
    std::memcpy(word, &bits_of_panels, 4);
  }
}

}  // namespace

int64_t num_panels_of(WeightFormat format, PanelOrder order, int64_t num_out) {
  return round_up(divide_up(num_out, kPanel), order == PanelOrder::columns ? panels_of_column(format) : 1);
}

QuantizedPanels pack_panels(const QuantizedWeight& weight, const std::string& name, PanelOrder wanted) {
  QuantizedPanels panels;
  panels.num_groups = weight.num_groups();
  panels.format = format_of(weight);
  if (weight.group_of_I.empty()) {  // act-order moves the inputs of a four apart
    panels.format = packed_format(panels.format, weight.pattern, panels.num_groups, weight.num_in / panels.num_groups);
  }
  panels.scale_format = scale_format_of(weight.scale_dtype);
  panels.tensor_scale = weight.tensor_scale;
  for (size_t i = 0; i < panels.values.size() && !weight.code->values.empty(); ++i) {
    panels.values[i] = weight.code->values[i % weight.code->values.size()];
  }
  panels.num_out = weight.num_out;
  const PanelOrder order = possible_order(panels.format, wanted);
  panels.by_columns = order == PanelOrder::columns;
  panels.num_panels = num_panels_of(panels.format, order, weight.num_out);
  lay_out_columns(weight, panels);
  const UnitShape unit = unit_shape(panels.format);
  panels.panel_bytes = panels.num_k * unit.num_bytes / unit.num_k;
  panels.panel_scale_bytes = panels.num_groups * kPanel * scale_bytes(panels.scale_format);
  panels.lines = allocate_weights(panels.num_panels * panels.panel_bytes + kLineSlack);
  panels.scales = allocate_weights(panels.num_panels * panels.panel_scale_bytes);
  if (!weight.symmetric) panels.zeros = allocate_weights(panels.num_panels * panels.num_groups * kPanel);
  const int64_t at_once = panels.by_columns ? unit.num_k : 1;  // panels that share their lines
  FirstException error;
#pragma omp parallel for schedule(static)
  for (int64_t first_panel = 0; first_panel < panels.num_panels; first_panel += at_once) {
    const int64_t first_out = first_panel * kPanel;
    const int64_t end_out = std::min(first_out + at_once * kPanel, weight.num_out);
    std::byte* const lines = panels.lines.get() + first_panel * panels.panel_bytes;
    for (int64_t out = first_out; out < end_out && !error.failed(); ++out) {
      if (panels.by_columns) {
        pack_column_lane(weight, panels, out, lines);
      } else {
        error.capture([&] { pack_lane(weight, name, panels, out, lines + out % kPanel * 4); });
      }
      for (int64_t group = 0; group < panels.num_groups; ++group) {
        const int64_t place =
            (first_panel * panels.num_groups + group * at_once + out / kPanel - first_panel) * kPanel + out % kPanel;
        store_scale(panels.scale_format, weight.scales_OG[out * panels.num_groups + group],
                    panels.scales.get() + place * scale_bytes(panels.scale_format));
        if (panels.zeros) {
          panels.zeros[place] = static_cast<std::byte>(weight.zeros_OG[out * panels.num_groups + group]);
        }
      }
    }
  }
  error.rethrow();
  return panels;
}

StoredLane::StoredLane(WeightFormat format, const std::byte* lines, int64_t lane)
    : is_kept_alone(is_two_of_four(format)),
      values(is_kept_alone ? lines + kPlacesBytes : lines),
      num_values(is_kept_alone ? kKeptPerUnit : unit_shape(format).num_k) {
  if (is_kept_alone) std::memcpy(&places, lines + 4 * lane, 4);
}

void pack_dense_lane(WeightFormat format, std::span<const std::byte> row, const std::string& name, int64_t out,
                     std::byte* lines) {
  const WeightFormat type = value_format(format);
  const int64_t value_bytes = type == WeightFormat::f32 ? 4 : 2;
  const int64_t num_in = static_cast<int64_t>(row.size()) / value_bytes;
  const int64_t lane = out % kPanel;
  if (!is_two_of_four(format)) {
    for (int64_t k = 0; k < num_in; ++k) {
      std::memcpy(lines + value_offset(type, k, lane), row.data() + k * value_bytes, value_bytes);
    }
    return;
  }
  const UnitShape unit = unit_shape(format);
  for (int64_t k = 0; k < num_in; k += unit.num_k, lines += unit.num_bytes) {
    uint16_t halves[32] = {};
    std::memcpy(halves, row.data() + 2 * k, static_cast<size_t>(2 * std::min(unit.num_k, num_in - k)));
    uint32_t nonzero = 0;
    for (int64_t j = 0; j < unit.num_k; ++j) nonzero |= static_cast<uint32_t>((halves[j] & 0x7FFF) != 0) << j;
    const KeptPositions kept = kept_positions(nonzero, name, out, k);
    std::memcpy(lines + 4 * lane, &kept.places, 4);
    for (int64_t i = 0; i < kKeptPerUnit; ++i) {
      std::memcpy(lines + kPlacesBytes + value_offset(type, i, lane), &halves[kept.position[i]], 2);
    }
  }
}

void dense_lane(WeightFormat format, const std::byte* lines, int64_t lane, std::span<float> row) {
  const UnitShape unit = unit_shape(format);
  const WeightFormat type = value_format(format);
  const auto num_in = static_cast<int64_t>(row.size());
  for (int64_t k = 0; k < num_in; k += unit.num_k, lines += unit.num_bytes) {
    const StoredLane stored(format, lines, lane);
    for (int64_t i = 0; i < stored.num_values; ++i) {
      const int64_t column = k + stored.position(i);
      if (column >= num_in) continue;
      row[column] = dense_value(type, stored.values + value_offset(type, i, lane));
    }
  }
}

void pack_dense_column_lane(WeightFormat format, std::span<const std::byte> row, int64_t out, std::byte* lines) {
  const UnitShape unit = unit_shape(format);
  const int64_t value_bytes = format == WeightFormat::f32 ? 4 : 2;
  std::byte* value = lines + value_offset(format, out / kPanel % unit.num_k, out % kPanel);
  for (size_t at = 0; at < row.size(); at += value_bytes, value += unit.num_bytes) {
    std::memcpy(value, row.data() + at, value_bytes);
  }
}

void dense_column_lane(WeightFormat format, const std::byte* lines, int64_t out, std::span<float> row) {
  const UnitShape unit = unit_shape(format);
  const std::byte* value = lines + value_offset(format, out / kPanel % unit.num_k, out % kPanel);
  for (float& x : row) {
    x = dense_value(format, value);
    value += unit.num_bytes;
  }
}

std::string weight_name(const QuantizedWeight& weight) {
  std::string name = code_name(weight.code, weight.bits);
  if (weight.group_size != kPerChannel) name += "g" + std::to_string(weight.group_size);
  if (!weight.symmetric) name += "z";
  return name;
}

float load_scale(ScaleFormat format, const std::byte* bytes) {
  if (format == ScaleFormat::f32) {
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
  }
  if (format == ScaleFormat::e4m3) return fp8_to_float(std::to_integer<uint8_t>(*bytes));
  if (format == ScaleFormat::e8m0) return e8m0_to_float(std::to_integer<uint8_t>(*bytes));
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return format == ScaleFormat::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_scale(ScaleFormat format, float value, std::byte* bytes) {
  if (format == ScaleFormat::f32) {
    std::memcpy(bytes, &value, 4);
    return;
  }
  if (scale_bytes(format) == 1) {
    // Kernels read no sign, and a scale may be -0.
    *bytes = static_cast<std::byte>(format == ScaleFormat::e4m3 ? float_to_fp8(std::abs(value)) : float_to_e8m0(value));
    return;
  }
  const uint16_t bits = format == ScaleFormat::bf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(bytes, &bits, 2);
}

int code_bits(WeightFormat format) {
  const UnitShape unit = unit_shape(value_format(format));
  return static_cast<int>(unit.num_bytes * 8 / kPanel / unit.num_k);
}

}  // namespace pare::runtime
