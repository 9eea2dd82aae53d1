#include "runtime/format/input_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace pare::runtime {
namespace {

constexpr float kLeastScale = std::numeric_limits<float>::epsilon();
// The least absmax of a block whose scale is a power of two.
constexpr float kLeastMagnitude = 1e-4f;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void require(bool condition, const std::string& name, const std::string& what) {
  if (!condition) throw std::invalid_argument("input of '" + name + "': " + what);
}

float clamp(float x, float low, float high) {
  return std::min(std::max(x, low), high);
}

// Returns the least power of two that is not below x, a positive normal number.
float power_of_two_above(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x7FFFFFu) & 0x7F800000u);
}

void check_shape(std::span<const float> x_TI, int64_t num_in) {
  if (num_in > 0 && static_cast<int64_t>(x_TI.size()) % num_in == 0) return;
  throw std::invalid_argument("input format: " + std::to_string(x_TI.size()) + " values are not whole rows of " +
                              std::to_string(num_in));
}

}  // namespace

void InputFormat::fields(FieldVisitor& visit) {
  static const InputChoices kAll = {
      .types = {InputType::plain, InputType::int8, InputType::fp8, InputType::nvfp4},
      .ranges = {InputRange::token, InputRange::tensor, InputRange::static_, InputRange::block}};
  fields(visit, kAll);
}

void InputFormat::fields(FieldVisitor& visit, const InputChoices& choices) {
  const bool has_nvfp4 = std::find(choices.types.begin(), choices.types.end(), InputType::nvfp4) != choices.types.end();
  visit(
      "type", type, std::span<const InputType>(choices.types),
      choices.types.size() == 1 ? "Inputs are rounded to this type."
      : has_nvfp4
          ? "Inputs are rounded to this type. `none` leaves them as they are. `nvfp4` goes with `code: nvfp4` and "
            "needs `calibration`. It gives every 16 neighbouring inputs of a token a range of their own, and takes no "
            "other option."
          : "Inputs are rounded to this type. `none` leaves them as they are.");
  visit("range", range, std::span<const InputRange>(choices.ranges),
        choices.ranges.size() == 1
            ? "Each token has a range of its own."
            : "`token` gives each token a range of its own, and `tensor` each sequence. `static` measures one range on "
              "calibration data.");
  if (choices.has_zero_points) {
    visit("symmetric", symmetric, "Codes lie evenly around zero. With `false` each range has a zero point of its own.");
  } else {
    visit.decided("symmetric", symmetric);
  }
  visit.decided("scale", scale);
  visit.decided("zero", zero);
  visit.decided("power_of_two_scales", power_of_two_scales);
  visit.decided("outliers", outliers);
  visit.decided("outlier_threshold", outlier_threshold);
}

void validate(const InputFormat& format, int64_t num_in, const std::string& name) {
  const bool is_fixed = format.range == InputRange::static_;
  require(std::isfinite(format.sparsity_threshold) && format.sparsity_threshold >= 0.0f, name,
          "expected a sparsity threshold of 0 or more, found " + std::to_string(format.sparsity_threshold));
  if (format.type == InputType::fp8) require(format.symmetric, name, "fp8 is symmetric, found a format with a zero");
  if (format.range == InputRange::block) {
    require(format.type == InputType::fp8, name, "only fp8 has the range block, found another type");
  }
  if (format.power_of_two_scales) {
    require(format.range == InputRange::block, name,
            "scales that are powers of two go with the range block, found " + std::string(name_of(format.range)));
  }
  if (format.type == InputType::nvfp4) {
    require(format.symmetric, name, "nvfp4 is symmetric, found a format with a zero");
    require(format.range == InputRange::token, name,
            "nvfp4 has the range token, found " + std::string(name_of(format.range)));
    require(num_in % kNvfp4Block == 0, name,
            "blocks of " + std::to_string(kNvfp4Block) + " nvfp4 values do not divide its " + std::to_string(num_in) +
                " inputs");
    require(format.scale > 0.0f && std::isnormal(format.scale) && std::isnormal(1.0f / format.scale), name,
            "expected a fixed scale from 1.2e-38 to 8.5e+37, found " + std::to_string(format.scale));
  }
  if (is_fixed && !format.is_plain()) {
    require(std::isfinite(format.scale) && format.scale > 0.0f, name,
            "expected a positive fixed scale, found " + std::to_string(format.scale));
    require(format.zero >= -128 && format.zero <= 127 && (format.zero == 0 || !format.symmetric), name,
            "expected a zero in [-128, 127], and 0 in a symmetric format, found " + std::to_string(format.zero));
  }
  if (!format.has_outliers()) return;
  require(format.type == InputType::int8 && format.range == InputRange::token, name,
          "outlier columns need int8 codes per token");
  if (format.outliers != OutlierRule::columns) {
    require(std::isfinite(format.outlier_threshold) && format.outlier_threshold > 0.0f, name,
            "expected a positive outlier threshold, found " + std::to_string(format.outlier_threshold));
    return;
  }
  for (size_t i = 0; i < format.outlier_columns.size(); ++i) {
    const int32_t column = format.outlier_columns[i];
    require(column >= 0 && column < num_in && (i == 0 || format.outlier_columns[i - 1] < column), name,
            "expected ascending outlier columns below " + std::to_string(num_in) + ", found " + std::to_string(column) +
                " at place " + std::to_string(i));
  }
}

void drop_small(std::span<float> x, float threshold) {
  if (threshold == 0.0f) return;
  for (float& value : x) value = std::abs(value) <= threshold ? 0.0f : value;
}

std::string input_format_name(const InputFormat& format) {
  if (format.is_plain()) return "float";
  if (format.type == InputType::nvfp4) return "anvfp4";
  std::string name = format.type == InputType::fp8 ? "afp8" : "a8";
  if (!format.symmetric) name += "z";
  if (format.range == InputRange::tensor) name += "seq";
  if (format.range == InputRange::static_) name += "fixed";
  if (format.range == InputRange::block) name += "block";
  if (format.power_of_two_scales) name += "e8m0";
  if (format.has_outliers()) name += "+outliers";
  return name;
}

// Sixteen lanes, which compilers turn into vectors. The order does not change the result.
InputExtremes input_extremes(std::span<const float> x) {
  constexpr size_t kLanes = 16;
  float low[kLanes] = {}, high[kLanes] = {};
  uint32_t is_nan[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      low[lane] = value < low[lane] ? value : low[lane];
      high[lane] = value > high[lane] ? value : high[lane];
      is_nan[lane] |= value != value;
    }
  }
  for (; i < x.size(); ++i) {
    low[0] = std::min(low[0], x[i]);
    high[0] = std::max(high[0], x[i]);
    is_nan[0] |= std::isnan(x[i]);
  }
  if (std::any_of(is_nan, is_nan + kLanes, [](uint32_t n) { return n != 0; })) return {kNaN, kNaN};
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

InputExtremes join(const InputExtremes& a, const InputExtremes& b) {
  if (std::isnan(a.low) || std::isnan(b.low)) return {kNaN, kNaN};
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

InputGrid input_grid(const InputFormat& format, const InputExtremes& extremes) {
  if (format.has_stored_scale()) return {format.scale, format.zero};
  if (!std::isfinite(extremes.low) || !std::isfinite(extremes.high)) return {kNaN, 0};
  InputGrid grid;
  if (format.symmetric) {
    const float largest = std::max(-extremes.low, extremes.high);
    grid.scale = largest / (format.type == InputType::fp8 ? kLargestFp8 : 127.5f);
    if (format.power_of_two_scales) grid.scale = power_of_two_above(std::max(largest, kLeastMagnitude) / kLargestFp8);
  } else {
    grid.scale = (extremes.high - extremes.low) / 255.0f;
    if (grid.scale != 0.0f) {
      grid.zero = static_cast<int32_t>(std::rint(clamp(-128.0f - extremes.low / grid.scale, -128.0f, 127.0f)));
    }
  }
  if (std::isinf(grid.scale)) return {kNaN, 0};  // high - low overflowed
  if (grid.scale == 0.0f) grid.scale = kLeastScale;
  return grid;
}

void input_codes(std::span<const float> x, InputGrid& grid, std::span<int8_t> codes) {
  const float scale = grid.scale, zero = static_cast<float>(grid.zero);
  const float* const in = x.data();
  int8_t* const out = codes.data();
  uint32_t is_nan = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float scaled = in[i] / scale + zero;
    is_nan |= scaled != scaled;
    // Written so that a NaN becomes -128, because converting NaN to int is undefined.
    const float above = scaled > -128.0f ? scaled : -128.0f;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(__builtin_rintf(above < 127.0f ? above : 127.0f)));
  }
  if (is_nan == 0) return;
  grid = {kNaN, 0};
  std::fill_n(codes.begin(), x.size(), int8_t{0});
}

// Computes fp8_to_float(float_to_fp8(x / scale)) * scale without the codes. It rounds 20 bits of the float32's mantissa
// away; below 2^-6, where the spacing is 2^-9, it rounds by adding 2^14.
void round_to_fp8(std::span<float> x, const InputGrid& grid) {
  const float scale = grid.scale;
  for (float& value : x) {
    const float scaled = value / scale, absolute = std::abs(scaled);
    const float magnitude = absolute > kLargestFp8 ? kLargestFp8 : absolute;  // NaN stays
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const float normal = std::bit_cast<float>((bits + 0x7FFFFu + (bits >> 20 & 1u)) & 0xFFF00000u);
    const float small = (magnitude + 0x1p14f) - 0x1p14f;
    const float rounded = magnitude != magnitude ? magnitude : magnitude < 0x1p-6f ? small : normal;
    value = std::copysign(rounded, scaled) * scale;
  }
}

void round_to_fp8_blocks(const InputFormat& format, std::span<float> x) {
  for (size_t first = 0; first < x.size(); first += kFp8Block) {
    const std::span<float> block = x.subspan(first, std::min(static_cast<size_t>(kFp8Block), x.size() - first));
    round_to_fp8(block, input_grid(format, input_extremes(block)));
  }
}

// Computes the same on the grids of nvfp4. E4M3 and E2M1 are rounded as above: E2M1 keeps one bit of the mantissa, and
// has a spacing of 0.5 below 1. Adding 0 makes a negative zero positive, as the library does.
void round_to_nvfp4(std::span<float> x, float factor) {
  constexpr float kLargestE2m1 = 6.0f, kLeastBlockScale = 0.125f;
  for (size_t first = 0; first < x.size(); first += kNvfp4Block) {
    const std::span<float> block = x.subspan(first, kNvfp4Block);
    const InputExtremes extremes = input_extremes(block);
    const float largest = std::isnan(extremes.low) ? kNaN : std::max(-extremes.low, extremes.high);
    const float wanted = factor * (largest / kLargestE2m1);
    float block_scale = std::isnan(wanted) ? kNaN : fp8_to_float(float_to_fp8(std::min(wanted, kLargestFp8)));
    if (block_scale == 0.0f) block_scale = kLeastBlockScale;
    const float scale = block_scale / factor;
    for (float& value : block) {
      const float scaled = value / scale + 0.0f, absolute = std::abs(scaled);
      const float magnitude = absolute > kLargestE2m1 ? kLargestE2m1 : absolute;  // NaN stays
      const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
      const float normal = std::bit_cast<float>((bits + 0x1FFFFFu + (bits >> 22 & 1u)) & 0xFFC00000u);
      const float small = (magnitude + 0x1p22f) - 0x1p22f;
      const float rounded = magnitude != magnitude ? magnitude : magnitude < 1.0f ? small : normal;
      value = std::copysign(rounded, scaled) * scale;
    }
  }
}

DType input_scale_dtype(const InputFormat& format, DType scale_dtype) {
  return format.type == InputType::nvfp4 ? DType::F32 : scale_dtype;
}

// Eight interleaved sums, so that compilers vectorize the loop and every instruction set adds in the same order.
double sum_of_squares(std::span<const float> x) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= x.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      sums[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
    }
  }
  for (; i < x.size(); ++i) sums[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

float outlier_limit(const InputFormat& format, std::span<const double> squares_T, int64_t num_in) {
  if (format.outliers == OutlierRule::absolute) return format.outlier_threshold;
  if (format.outliers != OutlierRule::relative) return std::numeric_limits<float>::infinity();
  const double sum = std::accumulate(squares_T.begin(), squares_T.end(), 0.0);
  const double count = static_cast<double>(squares_T.size()) * static_cast<double>(num_in);
  return static_cast<float>(format.outlier_threshold * std::sqrt(sum / std::max(count, 1.0)));
}

float outlier_limit(const InputFormat& format, std::span<const float> x_TI, int64_t num_in) {
  check_shape(x_TI, num_in);
  std::vector<double> squares_T;
  for (size_t row = 0; row < x_TI.size(); row += static_cast<size_t>(num_in)) {
    squares_T.push_back(sum_of_squares(x_TI.subspan(row, static_cast<size_t>(num_in))));
  }
  return outlier_limit(format, squares_T, num_in);
}

std::vector<int32_t> outlier_columns(const InputFormat& format, std::span<const float> x_TI, int64_t num_in) {
  check_shape(x_TI, num_in);
  if (!format.has_outliers() || format.outliers == OutlierRule::columns) return format.outlier_columns;
  const float limit = outlier_limit(format, x_TI, num_in);
  std::vector<uint8_t> is_outlier(static_cast<size_t>(num_in), 0);
  for (size_t row = 0; row < x_TI.size(); row += static_cast<size_t>(num_in)) {
    for (size_t i = 0; i < is_outlier.size(); ++i) is_outlier[i] |= std::abs(x_TI[row + i]) >= limit;
  }
  std::vector<int32_t> columns;
  if (!(limit > 0.0f)) return columns;  // all x are 0, or one is NaN
  for (int64_t i = 0; i < num_in; ++i) {
    if (is_outlier[i]) columns.push_back(static_cast<int32_t>(i));
  }
  return columns;
}

float outlier_row_factor(float largest) {
  const float factor = 127.0f / largest;
  return std::isfinite(factor) ? factor : 0.0f;
}

InputGrid outlier_row_grid(const InputFormat& format, const InputExtremes& extremes) {
  if (!format.symmetric) return input_grid(format, extremes);
  const float largest = std::max(-extremes.low, extremes.high);
  return {std::isfinite(largest) ? largest * (1.0f / 127.0f) : kNaN, 0};
}

InputGrid outlier_row_codes(const InputFormat& format, std::span<const float> x, const std::vector<int32_t>& columns,
                            float limit, std::span<int8_t> codes) {
  // A limit decides value by value. Columns of a list are skipped.
  const bool passes_columns = std::isinf(limit);
  InputExtremes extremes;
  bool is_nan = std::isnan(limit);
  size_t next = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool in_column = next < columns.size() && static_cast<size_t>(columns[next]) == i;
    next += in_column;
    is_nan |= std::isnan(x[i]) || (std::isinf(x[i]) && !in_column);
    if (!(std::abs(x[i]) < limit) || (passes_columns && in_column)) continue;
    extremes = {std::min(extremes.low, x[i]), std::max(extremes.high, x[i])};
  }
  if (is_nan) extremes = {kNaN, kNaN};
  InputGrid grid = outlier_row_grid(format, extremes);
  if (std::isnan(grid.scale)) {
    std::fill_n(codes.begin(), x.size(), int8_t{0});
    return grid;
  }
  if (format.symmetric) {
    const float factor = outlier_row_factor(std::max(-extremes.low, extremes.high));
    for (size_t i = 0; i < x.size(); ++i) {
      codes[i] = static_cast<int8_t>(factor == 0.0f ? 0.0f : clamp(std::rint(x[i] * factor), -127.0f, 127.0f));
    }
  } else {
    input_codes(x, grid, codes);
  }
  for (const int32_t column : columns) codes[static_cast<size_t>(column)] = static_cast<int8_t>(grid.zero);
  return grid;
}

void fake_quantize(const InputFormat& format, std::span<float> x_TI, int64_t num_in) {
  check_shape(x_TI, num_in);
  validate(format, num_in, "fake_quantize");
  drop_small(x_TI, format.sparsity_threshold);
  if (format.is_plain()) return;
  if (format.type == InputType::nvfp4) return round_to_nvfp4(x_TI, format.scale);
  const auto width = static_cast<size_t>(num_in);
  const InputExtremes all = format.range == InputRange::tensor ? input_extremes(x_TI) : InputExtremes{};
  const std::vector<int32_t> columns = outlier_columns(format, x_TI, num_in);
  const float limit = outlier_limit(format, x_TI, num_in);
  std::vector<int8_t> codes(width);
  for (size_t first = 0; first < x_TI.size(); first += width) {
    const std::span<float> row = x_TI.subspan(first, width);
    const std::vector<float> before(row.begin(), row.end());
    InputGrid grid;
    if (format.has_outliers()) {
      grid = outlier_row_codes(format, row, columns, limit, codes);
    } else if (format.range == InputRange::block) {
      round_to_fp8_blocks(format, row);
      continue;
    } else {
      grid = input_grid(format, format.range == InputRange::token ? input_extremes(row) : all);
      if (format.type == InputType::fp8) {
        round_to_fp8(row, grid);
        continue;
      }
      input_codes(row, grid, codes);
    }
    for (size_t i = 0; i < width; ++i) row[i] = static_cast<float>(codes[i] - grid.zero) * grid.scale;
    for (const int32_t column : columns) row[static_cast<size_t>(column)] = before[static_cast<size_t>(column)];
  }
}

}  // namespace pare::runtime
