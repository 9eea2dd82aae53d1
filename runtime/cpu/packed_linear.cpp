#include "runtime/cpu/packed_linear.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/share_panels.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

WeightFormat dense_format(DType dtype, const std::string& name) {
  switch (dtype) {
    case DType::BF16:
      return WeightFormat::bf16;
    case DType::F16:
      return WeightFormat::f16;
    case DType::F32:
      return WeightFormat::f32;
    default:
      break;
  }
  throw std::invalid_argument("weight of '" + name + "': expected F32, F16 or BF16, found " +
                              std::string(dtype_name(dtype)));
}

int64_t dense_bytes(WeightFormat format) {
  return format == WeightFormat::f32 ? 4 : 2;
}

// Part of kernel names, after the type's.
std::string pattern_name(WeightFormat format) {
  return is_two_of_four(format) ? "s24" : "";
}

// The rows that a kernel reads instead of the caller's x: in packed order, with their sums over groups, or as digits.
struct GemvInput {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  std::array<DigitRows, kNumWeightFormats> digits = {};
};

// The bytes of one panel.
struct PanelSizes {
  int64_t lines, scales, zeros;
};

// Takes the rows a few at a time, one panel after the other, so that its lines stay in the cache for all of them.
void multiply_few(const GemvKernel* kernels, const PanelRun& run, const PanelSizes& sizes, const GemvInput& input,
                  int64_t num_rows, float* y, int64_t y_stride) {
  PanelRun panel = run;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    panel.num_outs = std::min(kPanel, run.num_outs - out);
    for (int64_t row = 0; row < num_rows; row += kMaxGemvRows) {
      const int64_t rows = std::min<int64_t>(kMaxGemvRows, num_rows - row);
      const float* const sums = input.sums == nullptr ? nullptr : input.sums + row * input.sums_stride;
      kernels[rows - 1](panel, input.x + row * input.x_stride, input.x_stride, sums, input.sums_stride,
                        y + row * y_stride + out, y_stride);
    }
    panel.lines += sizes.lines;
    if (panel.scales != nullptr) panel.scales += sizes.scales;
    if (panel.zeros != nullptr) panel.zeros += sizes.zeros;
    if (panel.bias != nullptr) panel.bias += kPanel;
  }
}

}  // namespace

std::unique_ptr<CpuPackedLinear> pack_linear(Isa isa, std::span<const LinearWeights> parts, int num_threads) {
  if (parts.empty()) throw std::invalid_argument("pack_linear: expected at least one linear, found none");
  std::unique_ptr<CpuPackedLinear> packed(new CpuPackedLinear);
  packed->isa_ = float_isa(isa);
  packed->kernels_ = &linear_kernels(isa);
  packed->column_kernels_ = &column_kernels(isa);
  packed->digit_kernels_ = digit_kernels(isa);
  packed->num_threads_ = num_threads;
  packed->num_in_ = parts[0].num_in();
  packed->input_ = parts[0].input;
  packed->has_bf16_input_ = parts[0].has_bf16_input;
  for (const LinearWeights& weights : parts) {
    if (weights.num_out() <= 0 || weights.num_in() <= 0 || weights.num_in() != packed->num_in_) {
      throw std::invalid_argument("linear '" + weights.name + "': expected " + std::to_string(packed->num_in_) +
                                  " inputs, as '" + parts[0].name + "' has, found [" +
                                  std::to_string(weights.num_out()) + ", " + std::to_string(weights.num_in()) + "]");
    }
    if (weights.has_bf16_input != packed->has_bf16_input_) {
      throw std::invalid_argument("linear '" + weights.name + "': expected inputs in bfloat16 as those of '" +
                                  parts[0].name + "', or both exact");
    }
    if (!weights.bias_O.empty() && static_cast<int64_t>(weights.bias_O.size()) != weights.num_out()) {
      throw std::invalid_argument("bias of '" + weights.name + "': expected " + std::to_string(weights.num_out()) +
                                  " values, found " + std::to_string(weights.bias_O.size()));
    }
    CpuPackedLinear::Part part;
    part.first_out = packed->num_out_;
    part.first_panel = packed->num_panels_;
    part.num_out = weights.num_out();
    part.order = parts.size() == 1 && weights.has_sparse_input ? PanelOrder::columns : PanelOrder::outputs;
    if (const auto* dense = std::get_if<DenseWeight>(&weights.weight)) {
      packed->pack_dense(*dense, weights.name, part);
    } else {
      packed->pack_quantized(std::get<QuantizedWeight>(weights.weight), weights.name, part);
    }
    if (!weights.bias_O.empty()) {
      part.bias = allocate_weights(part.num_panels * kPanel * 4);
      std::memcpy(part.bias.get(), weights.bias_O.data(), weights.bias_O.size() * 4);
    }
    packed->num_out_ += part.num_out;
    packed->num_panels_ += part.num_panels;
    packed->parts_.push_back(std::move(part));
  }
  packed->choose_bf16_kernels(isa);
  return packed;
}

void CpuPackedLinear::pack_dense(const DenseWeight& weight, const std::string& name, Part& part) {
  part.format = dense_format(weight.dtype, name);
  const int64_t value_bytes = dense_bytes(part.format);
  if (static_cast<int64_t>(weight.data.size()) != weight.num_out * weight.num_in * value_bytes) {
    throw std::invalid_argument("weight of '" + name + "': expected " +
                                std::to_string(weight.num_out * weight.num_in * value_bytes) + " bytes, found " +
                                std::to_string(weight.data.size()));
  }
  part.name = part.format == WeightFormat::bf16 ? "bf16" : part.format == WeightFormat::f16 ? "f16" : "f32";
  part.format = packed_format(part.format, weight.pattern, 1, num_in_);
  part.name += pattern_name(part.format);
  part.order = possible_order(part.format, part.order);
  part.num_panels = num_panels_of(part.format, part.order, part.num_out);
  const UnitShape unit = unit_shape(part.format);
  InputLayout layout;
  layout.num_k = round_up(num_in_, positions_at_once(part.format, part.order));
  layout.group_len = layout.num_k;
  if (layout.num_k != num_in_) {
    layout.column_of_k.assign(layout.num_k, -1);
    for (int64_t i = 0; i < num_in_; ++i) layout.column_of_k[i] = static_cast<int32_t>(i);
  }
  part.panel_bytes = layout.num_k * unit.num_bytes / unit.num_k;
  part.layout = add_layout(std::move(layout));
  part.lines = allocate_weights(part.num_panels * part.panel_bytes + kLineSlack);
  const int64_t at_once = part.panels_at_once();
  FirstException error;
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < part.num_panels; panel += at_once) {
    std::byte* lines = part.lines.get() + panel * part.panel_bytes;
    for (int64_t out = panel * kPanel; out < std::min((panel + at_once) * kPanel, part.num_out); ++out) {
      const std::span row(weight.data.data() + out * num_in_ * value_bytes, num_in_ * value_bytes);
      if (part.order == PanelOrder::columns) {
        pack_dense_column_lane(part.format, row, out, lines);
      } else {
        error.capture([&] { pack_dense_lane(part.format, row, name, out, lines); });
      }
    }
  }
  error.rethrow();
}

void CpuPackedLinear::pack_quantized(const QuantizedWeight& weight, const std::string& name, Part& part) {
  validate(weight, name);
  QuantizedPanels panels = pack_panels(weight, name, part.order);
  part.order = panels.by_columns ? PanelOrder::columns : PanelOrder::outputs;
  part.num_panels = panels.num_panels;
  part.name = weight_name(weight) + pattern_name(panels.format);
  part.format = panels.format;
  part.scale_format = panels.scale_format;
  part.tensor_scale = panels.tensor_scale;
  part.values = panels.values;
  part.num_groups = panels.num_groups;
  part.panel_bytes = panels.panel_bytes;
  part.panel_scale_bytes = panels.panel_scale_bytes;
  part.lines = std::move(panels.lines);
  part.scales = std::move(panels.scales);
  part.zeros = std::move(panels.zeros);
  part.takes_digits = digit_kernels_ != nullptr && part.order == PanelOrder::outputs &&
                      digit_kernels_->prepare[static_cast<int>(panels.format)] != nullptr;
  InputLayout layout{.num_k = panels.num_k,
                     .group_len = panels.group_len,
                     .column_of_k = std::move(panels.column_of_k),
                     .has_zeros = !weight.symmetric && !is_two_of_four(panels.format)};
  layout.needs_sums = layout.has_zeros && !part.takes_digits;
  layout.needs_digits[static_cast<int>(panels.format)] = part.takes_digits;
  bool is_identity = layout.num_k == num_in_;
  for (int64_t k = 0; k < layout.num_k; ++k) is_identity = is_identity && layout.column_of_k[k] == k;
  if (is_identity) layout.column_of_k.clear();
  part.layout = add_layout(std::move(layout));
}

size_t CpuPackedLinear::add_layout(InputLayout layout) {
  for (size_t i = 0; i < layouts_.size(); ++i) {
    InputLayout& known = layouts_[i];
    if (known.num_k == layout.num_k && known.group_len == layout.group_len && known.column_of_k == layout.column_of_k) {
      known.has_zeros = known.has_zeros || layout.has_zeros;
      known.needs_sums = known.needs_sums || layout.needs_sums;
      for (int format = 0; format < kNumWeightFormats; ++format) {
        known.needs_digits[format] = known.needs_digits[format] || layout.needs_digits[format];
      }
      return i;
    }
  }
  layouts_.push_back(std::move(layout));
  return layouts_.size() - 1;
}

int64_t CpuPackedLinear::resident_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += part.num_panels * (part.panel_bytes + part.panel_scale_bytes);
    if (part.zeros) bytes += part.num_panels * part.num_groups * kPanel;
    if (part.bias) bytes += part.num_panels * kPanel * 4;
  }
  for (const InputLayout& layout : layouts_) bytes += static_cast<int64_t>(layout.column_of_k.size()) * 4;
  return bytes;
}

std::string CpuPackedLinear::kernel_name() const {
  std::vector<std::string> names;
  for (const Part& part : parts_) {
    if (std::find(names.begin(), names.end(), part.name) == names.end()) names.push_back(part.name);
  }
  std::string text = "matmul_";
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : "+") + names[i];
  if (parts_.front().order == PanelOrder::columns) text += "_columns";
  const std::string input = !input_.is_plain() ? input_format_name(input_) : has_bf16_input_ ? "abf16" : "a32";
  return text + "_" + input + "_" + std::string(isa_name(isa_));
}

int CpuPackedLinear::num_threads() const {
  if (omp_in_parallel()) return 1;
  return num_threads_ > 0 ? num_threads_ : omp_get_max_threads();
}

void CpuPackedLinear::multiply(const float* x_RI, int64_t num_rows, float* y_RO, int64_t batch_rows,
                               bool is_step) const {
  multiply_outputs(x_RI, num_rows, 0, num_out_, y_RO, num_out_, batch_rows, is_step);
}

void CpuPackedLinear::multiply_outputs(const float* x_RI, int64_t num_rows, int64_t first_out, int64_t num_outs,
                                       float* y, int64_t y_stride, int64_t batch_rows, bool is_step) const {
  if (num_rows < 0) throw std::invalid_argument("expected rows to multiply, found " + std::to_string(num_rows));
  const PanelRange range = range_of(first_out, num_outs);
  if (num_rows == 0 || num_outs == 0) return;
  if (parts_.front().order == PanelOrder::columns) count_zeros(x_RI, num_rows);
  const int64_t rows = std::max(num_rows, batch_rows);
  const bool is_decode = rows <= kernels_->max_gemv_rows;
  thread_local Scratch rounded;
  if (has_bf16_input_ && (is_decode || bf16_kernels_ == nullptr)) {
    float* const x = rounded.reserve_floats(num_rows * num_in_);
    for (int64_t i = 0; i < num_rows * num_in_; ++i) x[i] = bf16_to_float(float_to_bf16(x_RI[i]));
    x_RI = x;
  }
  if (is_decode) {
    gemv(x_RI, num_rows, range, y, y_stride, /*is_few=*/false);
  } else if (is_step && rows <= kernels_->max_few_rows && parts_.front().order != PanelOrder::columns) {
    gemv(x_RI, num_rows, range, y, y_stride, /*is_few=*/true);
  } else if (bf16_kernels_ != nullptr) {
    gemm_bf16(x_RI, num_rows, range, y, y_stride);
  } else {
    gemm(x_RI, num_rows, range, y, y_stride);
  }
}

const CpuPackedLinear::Part& CpuPackedLinear::part_of_out(int64_t out) const {
  size_t index = 0;
  while (index + 1 < parts_.size() && parts_[index + 1].first_out <= out) ++index;
  return parts_[index];
}

CpuPackedLinear::PanelRange CpuPackedLinear::range_of(int64_t first_out, int64_t num_outs) const {
  if (first_out < 0 || num_outs < 0 || first_out > num_out_ || num_outs > num_out_ - first_out) {
    throw std::invalid_argument("outputs [" + std::to_string(first_out) + ", +" + std::to_string(num_outs) +
                                ") lie outside a linear of " + std::to_string(num_out_) + " outputs");
  }
  if (num_outs == 0) return {};
  const Part& first = part_of_out(first_out);
  const int64_t outs_at_once = first.panels_at_once() * kPanel;
  if ((first_out - first.first_out) % outs_at_once != 0) {
    throw std::invalid_argument("first output " + std::to_string(first_out) + " does not begin a panel: expected " +
                                std::to_string(first.first_out) + " plus a multiple of " +
                                std::to_string(outs_at_once));
  }
  const Part& last = part_of_out(first_out + num_outs - 1);
  PanelRange range;
  range.begin = first.first_panel + (first_out - first.first_out) / kPanel;
  range.end = last.first_panel + (first_out + num_outs - 1 - last.first_out) / kPanel + 1;
  range.first_out = first_out;
  range.end_out = first_out + num_outs;
  return range;
}

PanelRun CpuPackedLinear::run_of(const Part& part, int64_t first_panel, int64_t end_panel, int64_t end_out) const {
  const InputLayout& layout = layouts_[part.layout];
  PanelRun run;
  run.lines = reinterpret_cast<const uint8_t*>(part.lines.get() + first_panel * part.panel_bytes);
  run.scales = part.scales ? reinterpret_cast<const uint8_t*>(part.scales.get() + first_panel * part.panel_scale_bytes)
                           : nullptr;
  run.zeros = part.zeros ? reinterpret_cast<const uint8_t*>(part.zeros.get() + first_panel * part.num_groups * kPanel)
                         : nullptr;
  run.bias = part.bias ? reinterpret_cast<const float*>(part.bias.get()) + first_panel * kPanel : nullptr;
  run.num_groups = part.num_groups;
  run.group_len = layout.group_len;
  run.num_outs = std::min({end_panel * kPanel, part.num_out, end_out - part.first_out}) - first_panel * kPanel;
  run.scale_format = part.scale_format;
  run.tensor_scale = part.tensor_scale;
  run.values = part.values.data();
  return run;
}

// Streams panels through registers. is_few: by the kernels of few rows, which take no digits.
void CpuPackedLinear::gemv(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride,
                           bool is_few) const {
  thread_local Scratch scratch;
  thread_local std::vector<GemvInput> inputs;
  inputs.resize(layouts_.size());
  int64_t num_floats = 0;
  int64_t num_bytes = 0;  // of digits
  for (const InputLayout& layout : layouts_) {
    const int64_t num_groups = layout.num_k / layout.group_len;
    if (!layout.column_of_k.empty()) num_floats += num_rows * layout.num_k;
    if ((is_few ? layout.has_zeros : layout.needs_sums)) num_floats += num_rows * num_groups;
    const int64_t num_formats = is_few ? 0 : std::count(layout.needs_digits.begin(), layout.needs_digits.end(), true);
    num_floats += num_formats * num_rows * num_groups * digit_blocks_of(layout.group_len) * (1 + kNumDigits);
    num_bytes += num_formats * num_rows * kNumDigits * layout.num_k;
  }
  float* floats = num_floats + num_bytes > 0 ? scratch.reserve_floats(num_floats + divide_up(num_bytes, 4)) : nullptr;
  auto* bytes = reinterpret_cast<uint8_t*>(floats + num_floats);
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const InputLayout& layout = layouts_[i];
    const int64_t num_groups = layout.num_k / layout.group_len;
    GemvInput& input = inputs[i];
    input = {.x = x_RI, .x_stride = num_in_};
    if (!layout.column_of_k.empty()) {
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t k = 0; k < layout.num_k; ++k) {
          const int32_t column = layout.column_of_k[k];
          floats[r * layout.num_k + k] = column < 0 ? 0.0f : x_RI[r * num_in_ + column];
        }
      }
      input.x = floats;
      input.x_stride = layout.num_k;
      floats += num_rows * layout.num_k;
    }
    if ((is_few ? layout.has_zeros : layout.needs_sums)) {
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t group = 0; group < num_groups; ++group) {
          const float* x_group = input.x + r * input.x_stride + group * layout.group_len;
          float sum = 0.0f;
          for (int64_t k = 0; k < layout.group_len; ++k) sum += x_group[k];
          floats[r * num_groups + group] = sum;
        }
      }
      input.sums = floats;
      input.sums_stride = num_groups;
      floats += num_rows * num_groups;
    }
    for (int format = 0; format < kNumWeightFormats; ++format) {
      if (is_few || !layout.needs_digits[format]) continue;
      const int64_t num_blocks = num_groups * digit_blocks_of(layout.group_len);
      auto* const sums = reinterpret_cast<int32_t*>(floats + num_rows * num_blocks);
      input.digits[format] = {bytes, kNumDigits * layout.num_k, floats, sums, num_blocks};
      for (int64_t r = 0; r < num_rows; ++r) {
        digit_kernels_->prepare[format](input.x + r * input.x_stride, num_groups, layout.group_len,
                                        bytes + r * kNumDigits * layout.num_k, floats + r * num_blocks,
                                        sums + r * num_blocks * kNumDigits);
      }
      bytes += num_rows * kNumDigits * layout.num_k;
      floats += num_rows * num_blocks * (1 + kNumDigits);
    }
  }

  const GemvInput* prepared = inputs.data();
  if (parts_.front().order == PanelOrder::columns) {
    const GemvInput& input = *prepared;
    return gemv_columns(
        {.x = input.x, .x_stride = input.x_stride, .sums = input.sums, .sums_stride = input.sums_stride}, num_rows,
        range, y, y_stride);
  }
  auto multiply_panels = [&](int64_t begin, int64_t end) {
    for (const Part& part : parts_) {
      const int64_t first_panel = std::max(begin, part.first_panel) - part.first_panel;
      const int64_t end_panel = std::min(end, part.first_panel + part.num_panels) - part.first_panel;
      if (first_panel >= end_panel) continue;
      const GemvInput& input = prepared[part.layout];
      const auto format = static_cast<int>(part.format);
      const PanelRun run = run_of(part, first_panel, end_panel, range.end_out);
      float* const y_part = y + part.first_out + first_panel * kPanel - range.first_out;
      if (is_few) {
        const PanelSizes sizes = {part.panel_bytes, part.panel_scale_bytes, part.num_groups * kPanel};
        multiply_few(kernels_->few[format], run, sizes, input, num_rows, y_part, y_stride);
      } else if (part.takes_digits) {
        digit_kernels_->gemv[format][num_rows - 1](run, input.digits[format], y_part, y_stride);
      } else {
        kernels_->gemv[format][num_rows - 1](run, input.x, input.x_stride, input.sums, input.sums_stride, y_part,
                                             y_stride);
      }
    }
  };
  share_panels(num_threads(), range.end - range.begin, bytes_of(range),
               [&](int64_t begin, int64_t end) { multiply_panels(range.begin + begin, range.begin + end); });
}

// Returns the bytes of packed lines in a range: the work of one row.
int64_t CpuPackedLinear::bytes_of(const PanelRange& range) const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    const int64_t begin = std::max(range.begin, part.first_panel);
    const int64_t end = std::min(range.end, part.first_panel + part.num_panels);
    bytes += std::max<int64_t>(0, end - begin) * part.panel_bytes;
  }
  return bytes;
}

void CpuPackedLinear::row(int64_t out, float* dst_I) const {
  if (out < 0 || out >= num_out_) {
    throw std::invalid_argument("row " + std::to_string(out) + " lies outside a linear of " + std::to_string(num_out_) +
                                " outputs");
  }
  const Part& part = part_of_out(out);
  const int64_t panel = (out - part.first_out) / kPanel;
  const int64_t lane = (out - part.first_out) % kPanel;
  if (is_two_of_four(part.format)) std::fill_n(dst_I, num_in_, 0.0f);
  if (part.order == PanelOrder::columns) {
    column_row(part, out, dst_I);
  } else if (part.scale_format == ScaleFormat::none) {
    dense_lane(part.format, part.lines.get() + panel * part.panel_bytes, lane, std::span(dst_I, num_in_));
  } else {
    quantized_row(part, panel, lane, dst_I);
  }
}

CpuPackedLinear::Grid CpuPackedLinear::grid_at(const Part& part, int64_t place) {
  return {load_scale(part.scale_format, part.scales.get() + place * scale_bytes(part.scale_format)) / part.tensor_scale,
          part.zeros ? std::to_integer<int>(part.zeros[place]) : 1 << (code_bits(part.format) - 1)};
}

float CpuPackedLinear::value_of(const Part& part, const Grid& grid, int code) {
  if (part.format == WeightFormat::fp8) return grid.scale * fp8_to_float(static_cast<uint8_t>(code));
  if (part.format == WeightFormat::table4) return grid.scale * part.values[static_cast<size_t>(code)];
  const int center = 1 << (code_bits(part.format) - 1);
  return grid.scale * static_cast<float>((code ^ center) - grid.zero);
}

void CpuPackedLinear::quantized_row(const Part& part, int64_t panel, int64_t lane, float* dst_I) const {
  const InputLayout& layout = layouts_[part.layout];
  const UnitShape unit = unit_shape(part.format);
  const UnitShape values = unit_shape(value_format(part.format));
  const int bits = code_bits(part.format);
  for (int64_t group = 0; group < part.num_groups; ++group) {
    const Grid grid = grid_at(part, (panel * part.num_groups + group) * kPanel + lane);
    for (int64_t k = group * layout.group_len; k < (group + 1) * layout.group_len; k += unit.num_k) {
      const std::byte* lines = part.lines.get() + panel * part.panel_bytes + k / unit.num_k * unit.num_bytes;
      const StoredLane stored(part.format, lines, lane);
      uint32_t words[4] = {};
      for (int64_t i = 0; i < stored.num_values; ++i) {
        const int64_t j = i % values.num_k;
        for (int64_t w = 0; j == 0 && w < values.num_bytes / 64; ++w) {
          std::memcpy(&words[w], stored.values + i / values.num_k * values.num_bytes + 64 * w + 4 * lane, 4);
        }
        const int64_t position = k + stored.position(i);
        const int64_t column = layout.column_of_k.empty() ? position : layout.column_of_k[position];
        if (column < 0) continue;
        const uint32_t code =
            bits == 3 ? (words[j / 16] >> (j % 16 * 2) & 3) | (words[2] >> int3_top(static_cast<int>(j)) & 1) << 2
                      : words[j * bits / 32] >> (j * bits % 32) & ((1u << bits) - 1);
        dst_I[column] = value_of(part, grid, static_cast<int>(code));
      }
    }
  }
}

}  // namespace pare::runtime
