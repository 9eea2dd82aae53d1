#include "runtime/cpu/integer_linear.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/rounding.h"
#include "runtime/engine/activation_mode.h"

namespace pare::runtime {
namespace {

static_assert(LinearInput::code_stride(1) == int8_row_stride(1) &&
              LinearInput::code_stride(kInt8RowUnit + 1) == int8_row_stride(kInt8RowUnit + 1));

constexpr int kCodeBits = 8;

const QuantizedWeight& quantized(const LinearWeights& weights) {
  return std::get<QuantizedWeight>(weights.weight);
}

// True if one product can serve both; the second's outputs must begin a panel.
bool are_alike(const LinearWeights& a, const LinearWeights& b) {
  const QuantizedWeight &first = quantized(a), &second = quantized(b);
  return first.num_out % kPanel == 0 && first.bits == second.bits && first.group_size == second.group_size &&
         first.symmetric == second.symmetric && first.scale_dtype == second.scale_dtype &&
         first.group_of_I == second.group_of_I && a.outlier_weight_OJ.empty() == b.outlier_weight_OJ.empty();
}

template <typename T>
void append_to(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// Turns 2 and 3 bits into 8: codes minus their zeros.
QuantizedWeight widened(QuantizedWeight weight) {
  for (int64_t out = 0; out < weight.num_out; ++out) {
    for (int64_t i = 0; i < weight.num_in; ++i) {
      uint8_t& code = weight.codes_OI[out * weight.num_in + i];
      code = static_cast<uint8_t>(code - weight.zero(out, weight.group(i)) + (1 << (kCodeBits - 1)));
    }
  }
  weight.bits = kCodeBits;
  weight.symmetric = true;
  weight.zeros_OG.clear();
  return weight;
}

// Returns the alike weights stacked along O, in a width that the kernels multiply. 2:4 weights include their zeros.
QuantizedWeight stacked(std::span<const LinearWeights> alike) {
  QuantizedWeight all = quantized(alike.front());
  all.pattern = {};
  for (const LinearWeights& next : alike.subspan(1)) {
    const QuantizedWeight& weight = quantized(next);
    all.num_out += weight.num_out;
    append_to(all.codes_OI, weight.codes_OI);
    append_to(all.scales_OG, weight.scales_OG);
    append_to(all.zeros_OG, weight.zeros_OG);
  }
  return all.bits < 4 ? widened(std::move(all)) : all;
}

// Copies [O, J] into [panels, J, 16].
AlignedBytes panels_of_columns(std::span<const float> values_OJ, int64_t num_columns) {
  const int64_t num_out = static_cast<int64_t>(values_OJ.size()) / num_columns;
  AlignedBytes panels = allocate_aligned(round_up(num_out, kPanel) * num_columns * 4);
  auto* const floats = reinterpret_cast<float*>(panels.get());
  for (int64_t out = 0; out < num_out; ++out) {
    for (int64_t j = 0; j < num_columns; ++j) {
      floats[(out / kPanel * num_columns + j) * kPanel + out % kPanel] = values_OJ[out * num_columns + j];
    }
  }
  return panels;
}

// Loads the scales and zeros of a group of a panel, [16] each.
void load_group(const QuantizedPanels& panels, int64_t group, float* scales, int32_t* zeros) {
  const int64_t num_bytes = scale_bytes(panels.scale_format);
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    const int64_t at = group * kPanel + lane;
    scales[lane] = load_scale(panels.scale_format, panels.scales.get() + at * num_bytes);
    zeros[lane] = panels.zeros ? std::to_integer<int32_t>(panels.zeros[at]) : 1 << (code_bits(panels.format) - 1);
  }
}

}  // namespace

bool IntegerLinear::takes(std::span<const LinearWeights> parts) {
  return std::all_of(parts.begin(), parts.end(), [](const LinearWeights& part) {
    const auto* weight = std::get_if<QuantizedWeight>(&part.weight);
    return part.input.type == InputType::int8 && weight != nullptr && weight->code->is_integer() &&
           (weight->bits < kCodeBits || weight->symmetric);
  });
}

bool IntegerLinear::rounds_groups(std::span<const LinearWeights> parts) {
  return !parts.empty() && takes(parts) && std::all_of(parts.begin(), parts.end(), [&](const LinearWeights& part) {
    return part.input.range == InputRange::block && part.num_in() == parts.front().num_in();
  });
}

IntegerLinear::IntegerLinear(Isa isa, std::span<const LinearWeights> parts, int num_threads)
    : kernels_(int8_kernels(isa)),
      num_threads_(num_threads),
      num_in_(parts.front().num_in()),
      stride_(LinearInput::code_stride(num_in_)),
      input_(parts.front().input),
      rounds_groups_(input_.range == InputRange::block),
      row_kernels_(int8_row_kernels(isa)) {
  std::vector<std::string> names;
  for (const LinearWeights& weights : parts) {
    validate(quantized(weights), weights.name);
    const std::string name = weight_name(quantized(weights));
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    weight_names_ += (names.empty() ? "" : "+") + name;
    names.push_back(name);
  }
  for (size_t begin = 0, end = 1; begin < parts.size(); begin = end++) {
    while (end < parts.size() && are_alike(parts[end - 1], parts[end])) ++end;
    append(parts.subspan(begin, end - begin));
  }
}

void IntegerLinear::append(std::span<const LinearWeights> alike) {
  Part part;
  part.first_out = num_out_;
  part.panels = pack_panels(stacked(alike), alike.front().name);
  const QuantizedPanels& panels = part.panels;
  if (panels.num_k > kMaxInt8K) {
    throw std::invalid_argument("linear '" + alike.front().name + "': expected at most " + std::to_string(kMaxInt8K) +
                                " inputs with 8-bit activations, groups filled up to one size, found " +
                                std::to_string(panels.num_k));
  }
  // Rows are zeros after their last column, so positions may go on there.
  for (int64_t k = 0; k < panels.num_k; ++k) {
    part.gathers = part.gathers || panels.column_of_k[k] != (k < num_in_ ? k : -1);
  }
  if (panels.format == WeightFormat::int8) {
    part.sums = allocate_aligned(panels.num_panels * panels.num_groups * kPanel * 4);
    sum_int8_panels(panels.run(), reinterpret_cast<int32_t*>(part.sums.get()));
  }
  part.bias = allocate_aligned(panels.num_panels * kPanel * 4);
  std::vector<float> outlier_weight_OJ;
  int64_t out = 0;
  for (const LinearWeights& weights : alike) {
    if (!weights.bias_O.empty())
      std::memcpy(part.bias.get() + out * 4, weights.bias_O.data(), weights.bias_O.size() * 4);
    append_to(outlier_weight_OJ, weights.outlier_weight_OJ);
    out += weights.num_out();
  }
  if (!input_.outlier_columns.empty()) {
    part.outlier_weights =
        outlier_weight_OJ.empty()
            ? outlier_weights(part, input_.outlier_columns)
            : panels_of_columns(outlier_weight_OJ, static_cast<int64_t>(input_.outlier_columns.size()));
  }
  num_out_ += panels.num_out;
  parts_.push_back(std::move(part));
}

int64_t IntegerLinear::resident_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    const QuantizedPanels& panels = part.panels;
    bytes += panels.num_bytes() + panels.num_panels * kPanel * 4;
    if (part.sums) bytes += panels.num_panels * panels.num_groups * kPanel * 4;
    if (part.gathers) bytes += panels.num_k * 4;
    bytes += panels.num_panels * static_cast<int64_t>(input_.outlier_columns.size()) * kPanel * 4;
  }
  return bytes;
}

std::string IntegerLinear::kernel_name() const {
  const std::string input = rounds_groups_ ? std::string(kGroupInputName) : input_format_name(input_);
  return "matmul_" + weight_names_ + "_" + input + "_" + std::string(kernels_.name);
}

int IntegerLinear::threads() const {
  return omp_in_parallel() ? 1 : num_threads_ > 0 ? num_threads_ : omp_get_max_threads();
}

std::vector<IntegerLinear::Rows> IntegerLinear::split_by_outliers(const LinearInput& x, int64_t num_rows) const {
  if (input_.is_rowwise() || !input_.has_outliers()) return {{0, num_rows, &input_.outlier_columns}};
  const auto* notes = dynamic_cast<const OutlierNotes*>(x.notes());
  const std::span<const Sequence> sequences = x.sequences().table;
  if (notes == nullptr || notes->columns_of_sequence.size() != sequences.size()) {
    throw std::invalid_argument("linear: " + kernel_name() + ": expected rows that this backend has rounded");
  }
  std::vector<Rows> ranges;
  for (size_t s = 0; s < sequences.size(); ++s) {
    ranges.push_back({sequences[s].first_row, sequences[s].num_rows, &notes->columns_of_sequence[s]});
  }
  return ranges;
}

// Returns the codes in the order of the part's positions, [R, int8_row_stride(num_k)]. They are valid until this
// thread's next call.
const int8_t* IntegerLinear::gathered(const Part& part, const int8_t* codes, int64_t num_rows) const {
  thread_local Scratch scratch;
  const std::vector<int32_t>& column_of_k = part.panels.column_of_k;
  const int64_t num_k = part.panels.num_k, stride = int8_row_stride(num_k);
  auto* const out = reinterpret_cast<int8_t*>(scratch.reserve(num_rows * stride));
#pragma omp parallel for schedule(static) num_threads(threads()) if (num_rows > 4)
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < num_k; ++k) {
      out[r * stride + k] = column_of_k[k] < 0 ? int8_t{0} : codes[r * stride_ + column_of_k[k]];
    }
    std::memset(out + r * stride + num_k, 0, static_cast<size_t>(stride - num_k));
  }
  return out;
}

// Returns W[o, column] = scale * (code - zero), as dequantize() computes it, [panels, J, 16] float32.
AlignedBytes IntegerLinear::outlier_weights(const Part& part, const std::vector<int32_t>& columns) const {
  const QuantizedPanels& panels = part.panels;
  const auto num_columns = static_cast<int64_t>(columns.size());
  std::vector<int64_t> positions(columns.begin(), columns.end());
  if (part.gathers) {
    std::vector<int64_t> k_of_column(static_cast<size_t>(num_in_));
    for (int64_t k = 0; k < panels.num_k; ++k) {
      if (panels.column_of_k[k] >= 0) k_of_column[panels.column_of_k[k]] = k;
    }
    for (int64_t& position : positions) position = k_of_column[position];
  }
  const UnitShape unit = unit_shape(panels.format);
  const int bits = code_bits(panels.format);
  const int center = 1 << (bits - 1);
  AlignedBytes weights = allocate_aligned(panels.num_panels * num_columns * kPanel * 4);
  auto* const floats = reinterpret_cast<float*>(weights.get());
#pragma omp parallel for schedule(static) num_threads(threads()) if (panels.num_panels * num_columns > 1024)
  for (int64_t panel = 0; panel < panels.num_panels; ++panel) {
    const std::byte* const lines = panels.lines.get() + panel * panels.panel_bytes;
    int64_t at = -1;  // the group of the loaded scales and zeros
    float scales[kPanel];
    int32_t zeros[kPanel];
    for (int64_t j = 0; j < num_columns; ++j) {
      const int64_t k = positions[j], group = panel * panels.num_groups + k / panels.group_len;
      if (group != at) load_group(panels, group, scales, zeros);
      at = group;
      int32_t words[kPanel];
      std::memcpy(words, lines + k / unit.num_k * unit.num_bytes, sizeof(words));
      float* const out = floats + (panel * num_columns + j) * kPanel;
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        const int32_t code = ((words[lane] >> (k % unit.num_k * bits)) & (2 * center - 1)) ^ center;
        out[lane] = scales[lane] * static_cast<float>(code - zeros[lane]);
      }
    }
  }
  return weights;
}

void IntegerLinear::multiply_rounding(const float* x_RI, int64_t num_rows, float* y_RO) const {
  constexpr float kLargestCode = 127.0f;
  thread_local Scratch scratch, ones;
  float* const row_scales = ones.reserve_floats(num_rows);
  std::fill_n(row_scales, num_rows, 1.0f);
  for (const Part& part : parts_) {
    const int64_t num_groups = part.panels.num_groups, length = part.panels.group_len, num_k = part.panels.num_k;
    const int64_t stride = int8_row_stride(num_k), scale_bytes = round_up(num_rows * num_groups * 4, 64);
    const int64_t row_bytes = part.gathers ? num_rows * num_k * 4 : 0;
    std::byte* const memory =
        reinterpret_cast<std::byte*>(scratch.reserve(num_rows * stride + scale_bytes + row_bytes));
    auto* const codes = reinterpret_cast<int8_t*>(memory);
    auto* const scales = reinterpret_cast<float*>(memory + num_rows * stride);
    auto* const in_order = reinterpret_cast<float*>(memory + num_rows * stride + scale_bytes);
#pragma omp parallel for schedule(static) num_threads(threads()) if (num_rows > 4)
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* x = x_RI + r * num_in_;
      if (part.gathers) {
        float* const row = in_order + r * num_k;
        for (int64_t k = 0; k < num_k; ++k) {
          const int32_t column = part.panels.column_of_k[k];
          row[k] = column < 0 ? 0.0f : x[column];
        }
        x = row;
      }
      for (int64_t g = 0; g < num_groups; ++g) {
        // The last group of a row in the input's order may be filled up beyond it.
        const int64_t first = g * length, count = part.gathers ? length : std::min(length, num_in_ - first);
        float low = 0.0f, high = 0.0f;
        row_kernels_.extremes(x + first, count, &low, &high);
        const float scale = std::max(-low, high) / kLargestCode;
        int8_t* const codes_of_group = codes + r * stride + first;
        const bool is_number =
            row_kernels_.codes(x + first, count, scale > 0.0f ? scale : 1.0f, 0.0f, codes_of_group, length);
        scales[r * num_groups + g] = is_number ? scale : std::numeric_limits<float>::quiet_NaN();
      }
      std::memset(codes + r * stride + num_k, 0, static_cast<size_t>(stride - num_k));
    }
    Int8Weights weights{.format = part.panels.format, .run = part.panels.run(), .sums = nullptr};
    weights.run.bias = reinterpret_cast<const float*>(part.bias.get());
    weights.sums = reinterpret_cast<const int32_t*>(part.sums.get());
    const Int8Rows rows{
        .codes = codes, .stride = stride, .scales = row_scales, .zeros = nullptr, .group_scales = scales};
    int8_multiply(kernels_, weights, rows, num_rows, nullptr, y_RO + part.first_out, num_out_, num_threads_);
  }
}

void IntegerLinear::multiply(const LinearInput& x, int64_t num_rows, float* y_RO) const {
  if (rounds_groups_) return multiply_rounding(x.x(), num_rows, y_RO);
  for (const Rows& rows : split_by_outliers(x, num_rows)) {
    const std::vector<int32_t>& columns = *rows.outliers;
    const auto num_columns = static_cast<int64_t>(columns.size());
    std::vector<float> outliers_RJ(static_cast<size_t>(rows.num * num_columns));
    for (int64_t r = 0; r < rows.num && num_columns > 0; ++r) {
      const float* const values = x.x() + (rows.first + r) * num_in_;
      for (int64_t j = 0; j < num_columns; ++j) outliers_RJ[r * num_columns + j] = values[columns[j]];
    }
    const int8_t* const codes = x.codes() + rows.first * stride_;
    for (const Part& part : parts_) {
      Int8Weights weights{.format = part.panels.format, .run = part.panels.run(), .sums = nullptr};
      weights.run.bias = reinterpret_cast<const float*>(part.bias.get());
      weights.sums = reinterpret_cast<const int32_t*>(part.sums.get());
      const Int8Rows input{.codes = part.gathers ? gathered(part, codes, rows.num) : codes,
                           .stride = part.gathers ? int8_row_stride(part.panels.num_k) : stride_,
                           .scales = x.scales() + rows.first,
                           .zeros = input_.symmetric ? nullptr : x.zeros() + rows.first};
      AlignedBytes found;
      if (num_columns > 0 && !part.outlier_weights) found = outlier_weights(part, columns);
      const std::byte* const beside = found ? found.get() : part.outlier_weights.get();
      const OutlierColumns outliers{.num_columns = num_columns,
                                    .x = outliers_RJ.data(),
                                    .x_stride = num_columns,
                                    .weights = reinterpret_cast<const uint8_t*>(beside),
                                    .format = ScaleFormat::f32};
      int8_multiply(kernels_, weights, input, rows.num, &outliers, y_RO + rows.first * num_out_ + part.first_out,
                    num_out_, num_threads_);
    }
  }
}

}  // namespace pare::runtime
