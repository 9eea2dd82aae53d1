#include "quant/grid.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tril.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/code_points.h"
#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

// The search is compute bound, so the rows of a worker's piece only balance the load.
constexpr int64_t kSearchChunkRows = 16;
constexpr int64_t kGroupSearchRows = 64;  // the rows of one matrix product with a group's square of H
// The trace is a sum over blocks of the Hessian's columns. It takes this many rows at a time, whose float64 copy stays
// small beside the weight of a large model.
constexpr int64_t kTraceBlockColumns = 128;
constexpr int64_t kTraceRows = 2048;
constexpr int kMaxTieBits = 4;  // the most bits whose quotients bf16's 8 bits still resolve to 1/32

// Returns the importance of each column for the search: the one given, or ones.
std::vector<float> checked_importance(const at::Tensor& importance_I, int64_t num_in, ScaleSearch scales) {
  if (scales != ScaleSearch::hessian_diagonal && scales != ScaleSearch::hessian) {
    return std::vector<float>(num_in, 1.0f);
  }
  if (!importance_I.defined()) {
    throw std::invalid_argument(
        "scales searched with the Hessian need calibration data: give each column's importance, or search by squared "
        "error");
  }
  if (importance_I.dim() != 1 || importance_I.size(0) != num_in || importance_I.scalar_type() != at::kFloat) {
    throw std::invalid_argument("importance: expected a float32 vector of " + std::to_string(num_in) +
                                " elements (one per column), found " + importance_I.toString() + " of shape " +
                                shape_text(importance_I));
  }
  const at::Tensor importance = importance_I.detach().contiguous();
  const float* values = importance.const_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0.0f) continue;
    std::ostringstream message;
    message << "importance[" << i << "] is " << values[i] << "; expected a finite value that is not negative";
    throw std::invalid_argument(message.str());
  }
  return {values, values + num_in};
}

struct Range {
  float min = 0.0f;  // min(w, 0)
  float max = 0.0f;  // max(w, 0)
};

Range range_of(const float* weights, int64_t num_weights) {
  float min = 0.0f, max = 0.0f;
#pragma omp simd reduction(min : min) reduction(max : max)
  for (int64_t i = 0; i < num_weights; ++i) {
    min = std::min(min, weights[i]);
    max = std::max(max, weights[i]);
  }
  return {min, max};
}

struct GroupGrid {
  float scale = 1.0f;  // as it is stored
  float zero = 0.0f;
};

// This is the same for all groups of a weight.
struct GridRule {
  const GridOptions& options;
  std::optional<CodePoints> points = {};  // of a code with a table
  float largest = 0.0f;                   // its largest value
  float reach = 0.0f;                     // where its largest value and one step beyond would be equally near
  float tensor_scale = 1.0f;

  GridRule(const GridOptions& given, const at::Tensor& weight_OI) : options(given) {
    if (options.code->is_integer()) return;
    points.emplace(*options.code);
    const int last = points->num_values() - 1;
    const float below = points->value_at(last - 1);
    largest = options.code->largest();
    reach = largest + (points->value_at(last) - below) / 2.0f;
    if (!options.code->has_tensor_scale) return;
    tensor_scale = options.tensor_scale > 0.0f ? options.tensor_scale
                                               : tensor_scale_for(*options.code, largest_magnitude(weight_OI));
  }
  // The parts of the range that a search tries after the whole one.
  std::span<const float> shrink_factors() const {
    static constexpr std::array<float, 2> kNeighbours = {2.0f, 0.5f};
    if (options.scale_dtype == runtime::DType::F8_E8M0) return kNeighbours;
    return std::span(kShrinkFactors).subspan(1);
  }
};

// Returns the smallest power of two at which absmax does not lie beyond `reach`.
float power_for(float absmax, float reach) {
  int exponent = 0;
  std::frexp(absmax / reach, &exponent);
  float power = std::ldexp(1.0f, std::clamp(exponent, -126, 127));
  while (power > 0x1p-126f && power / 2.0f * reach > absmax) power /= 2.0f;
  return power;
}

// Returns the largest power of two whose product with the code's largest value is finite.
float largest_power(float largest) {
  float power = 0x1p127f;
  while (!std::isfinite(power * largest)) power /= 2.0f;
  return power;
}

GroupGrid shrunk_table_grid(Range range, float shrink, const GridRule& rule) {
  const float absmax = std::max(-range.min, range.max);
  if (absmax == 0.0f) return {1.0f, 0.0f};
  const runtime::DType dtype = rule.options.scale_dtype;
  if (dtype == runtime::DType::F8_E8M0) {
    return {std::min(power_for(absmax, rule.reach) * shrink, largest_power(rule.largest)), 0.0f};
  }
  const float exact = absmax * shrink / rule.largest * rule.tensor_scale;
  return {std::max(runtime::round_to(exact, dtype), smallest_scale(dtype)), 0.0f};
}

// Returns the grid that covers `shrink` of the range. Its scale is infinite where scale_dtype is too narrow. Ratios are
// taken in float64, because 2 * absmax overflows float32 for weights that are themselves finite.
GroupGrid shrunk_grid(Range range, float shrink, const GridRule& rule) {
  const GridOptions& options = rule.options;
  if (rule.points) return shrunk_table_grid(range, shrink, rule);
  const float middle = static_cast<float>(1 << (options.bits - 1));
  if (range.min == 0.0f && range.max == 0.0f) return {1.0f, options.symmetric ? middle : 0.0f};
  const double levels = (1 << options.bits) - 1;
  const double width =
      options.symmetric ? 2.0 * std::max(-range.min, range.max) : static_cast<double>(range.max) - range.min;
  const float exact = static_cast<float>(width * shrink / levels);
  GroupGrid grid;
  grid.scale = std::max(runtime::round_to(exact, options.scale_dtype), smallest_scale(options.scale_dtype));
  grid.zero = options.symmetric ? middle
                                : static_cast<float>(std::clamp(std::nearbyint(-range.min * shrink / grid.scale), 0.0f,
                                                                static_cast<float>(levels)));
  return grid;
}

// The nearest grid point of a quotient w / scale, for integers and for tables.
struct NearestInteger {
  float lowest, highest;
  NearestInteger(const GridRule& rule, GroupGrid grid)
      : lowest(-grid.zero), highest(static_cast<float>((1 << rule.options.bits) - 1) - grid.zero) {}
  float operator()(float steps) const { return std::min(std::max(std::nearbyint(steps), lowest), highest); }
};
struct NearestValue {
  const CodePoints& points;
  NearestValue(const GridRule& rule, GroupGrid) : points(*rule.points) {}
  float operator()(float steps) const { return points.nearest(steps); }
};

// Returns sum_i importance_i ((w_i - round_trip(w_i)) / scale)^2. It is in units of the scale, so that no weight is too
// large or too small to be squared.
template <typename Nearest>
float error_in_scales(const float* weights, const float* importance, int64_t num_weights, const GridRule& rule,
                      GroupGrid grid) {
  const float scale = grid.scale / rule.tensor_scale;
  const Nearest nearest(rule, grid);
  float error = 0.0f;
#pragma omp simd reduction(+ : error)
  for (int64_t i = 0; i < num_weights; ++i) {
    const float steps = weights[i] / scale;
    const float rounded = nearest(steps);
    error += importance[i] * (rounded - steps) * (rounded - steps);
  }
  return error;
}

// Searches one grid for the `width` neighbouring weights of each of num_rows rows. importance has one value per column.
GroupGrid search_group(const float* weights, const float* importance, int64_t num_rows, int64_t width,
                       const GridRule& rule) {
  const Range range = range_of(weights, num_rows * width);
  const GroupGrid widest = shrunk_grid(range, 1.0f, rule);
  if (rule.options.scales == ScaleSearch::minmax || !std::isfinite(widest.scale)) return widest;

  const auto error_in_units = rule.points ? error_in_scales<NearestValue> : error_in_scales<NearestInteger>;
  const auto error_of = [&](GroupGrid grid) {
    double error = 0.0;
    for (int64_t row = 0; row < num_rows; ++row) {
      error += error_in_units(weights + row * width, importance, width, rule, grid);
    }
    return error;
  };
  GroupGrid best = widest;
  double best_error = error_of(widest);
  for (const float shrink : rule.shrink_factors()) {
    const GroupGrid candidate = shrunk_grid(range, shrink, rule);
    const double relative_scale = static_cast<double>(candidate.scale) / widest.scale;
    const double error = error_of(candidate) * relative_scale * relative_scale;
    if (error < best_error) {
      best_error = error;
      best = candidate;
    }
  }
  return best;
}

// Searches one group of some rows with the group's square of H. triangle_WW is that square's lower triangle with the
// elements off the diagonal doubled, so that e triangle e^T = e H_gg e^T for any e. Errors are in units of a row's
// widest scale.
template <typename Nearest>
void search_rows_of_group(const at::Tensor& weight_RW, const at::Tensor& triangle_WW, const GridRule& rule,
                          std::vector<GroupGrid>& best_R) {
  const int64_t num_rows = weight_RW.size(0), width = weight_RW.size(1), stride = weight_RW.stride(0);
  const float* weights = weight_RW.const_data_ptr<float>();
  const at::Tensor errors_RW = at::empty({num_rows, width}, at::kFloat);
  float* errors = errors_RW.mutable_data_ptr<float>();
  std::vector<Range> ranges_R(num_rows);
  for (int64_t r = 0; r < num_rows; ++r) ranges_R[r] = range_of(weights + r * stride, width);
  std::vector<GroupGrid> widest_R(num_rows), candidate_R(num_rows);
  std::vector<double> least_R(num_rows);
  const std::span<const float> shrink_factors = rule.shrink_factors();
  for (size_t k = 0; k <= shrink_factors.size(); ++k) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const GroupGrid grid = candidate_R[r] = shrunk_grid(ranges_R[r], k == 0 ? 1.0f : shrink_factors[k - 1], rule);
      if (k == 0) widest_R[r] = grid;
      const float scale = grid.scale / rule.tensor_scale, unit = grid.scale / widest_R[r].scale;
      const Nearest nearest(rule, grid);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float steps = weights[r * stride + i] / scale;
        const float rounded = nearest(steps);
        errors[r * width + i] = unit * (rounded - steps);
      }
    }
    const at::Tensor products_RW = at::mm(errors_RW, triangle_WW);
    const float* products = products_RW.const_data_ptr<float>();
    for (int64_t r = 0; r < num_rows; ++r) {
      double error = 0.0;
      for (int64_t i = 0; i < width; ++i) error += static_cast<double>(products[r * width + i] * errors[r * width + i]);
      if (k > 0 && !(error < least_R[r])) continue;
      least_R[r] = error;
      best_R[r] = candidate_R[r];
    }
  }
}

void check_scales(const at::Tensor& scales_OG, const GridOptions& options) {
  const int64_t bad = find_non_finite(scales_OG.const_data_ptr<float>(), scales_OG.numel());
  if (bad < 0) return;
  const int64_t num_groups = scales_OG.size(1);
  throw std::invalid_argument("the scale of row " + std::to_string(bad / num_groups) + ", group " +
                              std::to_string(bad % num_groups) + " overflows " +
                              std::string(runtime::dtype_name(options.scale_dtype)) +
                              ": its weights are too large; store scales as BF16 or F32");
}

// Adds sum_r D_r H D_r^T of some rows, in float64, to block_sums, with one term for each block of H's columns. H is
// symmetric, so a block reads only its square on the diagonal and what lies below it, which counts twice. That is half
// the work.
void add_quadratic_form(const at::Tensor& difference_RI, const at::Tensor& hessian_II,
                        std::vector<double>& block_sums) {
  const int64_t num_in = hessian_II.size(0);
  for_row_chunks(num_in, kTraceBlockColumns, [&](int64_t begin, int64_t width) {
    const int64_t height = num_in - begin;
    const at::Tensor block = hessian_II.narrow(0, begin, height).narrow(1, begin, width).to(at::kDouble);
    block.narrow(0, width, height - width).mul_(2.0);
    const at::Tensor product = at::mm(difference_RI.narrow(1, begin, height), block);
    block_sums[begin / kTraceBlockColumns] += product.mul_(difference_RI.narrow(1, begin, width)).sum().item<double>();
  });
}

// Chooses the codes of the values that are nearest to the weights. Groups are `width` columns.
void round_to_points(const CodePoints& points, const float* weights, int64_t width, runtime::QuantizedWeight& result) {
#pragma omp parallel for schedule(static)
  for (int64_t group = 0; group < static_cast<int64_t>(result.scales_OG.size()); ++group) {
    const float scale = result.scales_OG[group] / result.tensor_scale;
    for (int64_t i = group * width; i < (group + 1) * width; ++i) {
      result.codes_OI[i] = points.code_at(points.place(weights[i] / scale));
    }
  }
}

}  // namespace

float smallest_scale(runtime::DType dtype) {
  return dtype == runtime::DType::F16       ? 0x1p-24f
         : dtype == runtime::DType::F8_E4M3 ? 0x1p-9f
                                            : std::numeric_limits<float>::min();
}

float largest_magnitude(const at::Tensor& weight_OI) {
  const float* weights = weight_OI.const_data_ptr<float>();
  const Range range = range_of(weights, weight_OI.numel());
  return std::max(-range.min, range.max);
}

float tensor_scale_for(const runtime::WeightCode& code, float absmax) {
  const float largest_scale = code.scale_dtype == runtime::DType::F8_E4M3 ? runtime::kLargestFp8 : 1.0f;
  if (absmax == 0.0f) return 1.0f;
  return std::clamp(largest_scale * code.largest() / absmax, 0x1p-126f, 0x1p126f);  // as validate() asks
}

void check_grid_options(const GridOptions& options, int64_t num_in) {
  const runtime::WeightCode& code = *options.code;
  if (code.numbers == runtime::CodeNumbers::e4m3)
    throw std::invalid_argument("code: fp8 has no grid: use quantize_fp8");
  if (code.is_blocks()) throw std::invalid_argument("code: blocks have scales of their own: use gptq_to_blocks");
  if (!code.has_width(options.bits)) {
    throw std::invalid_argument("bits: expected " + runtime::widths_text(code) + ", found " +
                                std::to_string(options.bits));
  }
  if (!code.is_integer() && (!options.symmetric || options.per_tensor)) {
    throw std::invalid_argument("code: " + std::string(code.name) + " has neither zeros nor one scale for a weight");
  }
  if (code.block != 0 && options.group_size != code.block) {
    throw std::invalid_argument("group_size: " + std::string(code.name) + " has blocks of " +
                                std::to_string(code.block) + ", found " + std::to_string(options.group_size));
  }
  if (options.group_size != runtime::kPerChannel && (options.group_size < 1 || num_in % options.group_size != 0)) {
    throw std::invalid_argument("group_size: expected a divisor of the " + std::to_string(num_in) +
                                " inputs or -1 (one group per output channel), found " +
                                std::to_string(options.group_size));
  }
  if (options.per_tensor && options.group_size != runtime::kPerChannel) {
    throw std::invalid_argument("group_size: one scale for the whole weight leaves no groups: expected -1, found " +
                                std::to_string(options.group_size));
  }
  if (code.scale_dtype ? options.scale_dtype != *code.scale_dtype : !runtime::is_float_dtype(options.scale_dtype)) {
    throw std::invalid_argument(
        "scale_dtype: expected " +
        (code.scale_dtype ? std::string(runtime::dtype_name(*code.scale_dtype)) : "F32, F16 or BF16") + ", found " +
        std::string(runtime::dtype_name(options.scale_dtype)));
  }
}

int64_t group_width(const GridOptions& options, int64_t num_in) {
  return options.group_size == runtime::kPerChannel ? num_in : options.group_size;
}

Grid search_grid(const at::Tensor& weight_OI, const at::Tensor& importance_I, const GridOptions& options,
                 const at::Tensor& kept_OI) {
  const at::Tensor weight = checked_weight(weight_OI, kept_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  check_grid_options(options, num_in);
  const std::vector<float> importance = checked_importance(importance_I, num_in, options.scales);

  const int64_t width = group_width(options, num_in), num_groups = num_in / width;
  const GridRule rule(options, weight);
  Grid grid{at::empty({num_out, num_groups}, at::kFloat), at::empty({num_out, num_groups}, at::kFloat),
            rule.tensor_scale};
  const float* weights = weight.const_data_ptr<float>();
  float* scales = grid.scales_OG.mutable_data_ptr<float>();
  float* zeros = grid.zeros_OG.mutable_data_ptr<float>();
  if (options.per_tensor) {
    const GroupGrid best = search_group(weights, importance.data(), num_out, num_in, rule);
    std::fill_n(scales, num_out, best.scale);
    std::fill_n(zeros, num_out, best.zero);
    check_scales(grid.scales_OG, options);
    return grid;
  }
  for_row_chunks(num_out, kSearchChunkRows, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t begin = group * width;
        const GroupGrid best = search_group(weights + row * num_in + begin, importance.data() + begin, 1, width, rule);
        scales[row * num_groups + group] = best.scale;
        zeros[row * num_groups + group] = best.zero;
      }
    }
  });
  check_scales(grid.scales_OG, options);
  return grid;
}

Grid search_grid_in_groups(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const GridOptions& options,
                           const at::Tensor& kept_OI) {
  const at::Tensor weight = checked_weight(weight_OI, kept_OI), hessian = checked_hessian(hessian_II);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  check_grid_options(options, num_in);
  if (hessian.size(0) != num_in || options.scales != ScaleSearch::hessian) {
    throw std::invalid_argument("grid search in groups: expected scales searched with the Hessian, of the weight's " +
                                std::to_string(num_in) + " columns; found one of shape " + shape_text(hessian));
  }
  if (options.per_tensor) {
    throw std::invalid_argument(
        "grid search in groups: one scale for the whole weight cannot be searched by rows; use another search");
  }
  const int64_t width = group_width(options, num_in), num_groups = num_in / width;
  std::vector<at::Tensor> triangles_G;
  for (int64_t g = 0; g < num_groups; ++g) {
    const at::Tensor square = hessian.narrow(0, g * width, width).narrow(1, g * width, width);
    triangles_G.push_back(at::tril(square, -1).mul_(2.0).add_(at::diag(square.diagonal())));
  }
  const GridRule rule(options, weight);
  const auto search_rows = rule.points ? search_rows_of_group<NearestValue> : search_rows_of_group<NearestInteger>;
  Grid grid{at::empty({num_out, num_groups}, at::kFloat), at::empty({num_out, num_groups}, at::kFloat),
            rule.tensor_scale};
  float* scales = grid.scales_OG.mutable_data_ptr<float>();
  float* zeros = grid.zeros_OG.mutable_data_ptr<float>();
  for_row_chunks(num_out, kGroupSearchRows, [&](int64_t first_row, int64_t num_rows) {
    std::vector<GroupGrid> best_R(num_rows);
    for (int64_t g = 0; g < num_groups; ++g) {
      search_rows(weight.narrow(0, first_row, num_rows).narrow(1, g * width, width), triangles_G[g], rule, best_R);
      for (int64_t r = 0; r < num_rows; ++r) {
        scales[(first_row + r) * num_groups + g] = best_R[r].scale;
        zeros[(first_row + r) * num_groups + g] = best_R[r].zero;
      }
    }
  });
  check_scales(grid.scales_OG, options);
  return grid;
}

runtime::QuantizedWeight round_to_grid(const at::Tensor& weight_OI, const Grid& grid, const GridOptions& options,
                                       const at::Tensor& kept_OI) {
  const at::Tensor weight = checked_weight(weight_OI, kept_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  check_grid_options(options, num_in);
  const int64_t width = group_width(options, num_in), num_groups = num_in / width;
  const at::Tensor scales_OG = checked_float_matrix(grid.scales_OG, "scales");
  const at::Tensor zeros_OG = checked_float_matrix(grid.zeros_OG, "zeros");
  for (const at::Tensor& part : {scales_OG, zeros_OG}) {
    if (part.size(0) != num_out || part.size(1) != num_groups) {
      throw std::invalid_argument("grid: expected shape [" + std::to_string(num_out) + ", " +
                                  std::to_string(num_groups) + "], found " + shape_text(part));
    }
  }

  runtime::QuantizedWeight result;
  result.num_out = num_out;
  result.num_in = num_in;
  result.code = options.code;
  result.bits = options.bits;
  result.group_size = options.group_size;
  result.symmetric = options.symmetric;
  result.scale_dtype = options.scale_dtype;
  result.tensor_scale = grid.tensor_scale;
  result.codes_OI.resize(weight.numel());
  const float* weights = weight.const_data_ptr<float>();
  const float* scales = scales_OG.const_data_ptr<float>();
  const float* zeros = zeros_OG.const_data_ptr<float>();
  result.scales_OG.assign(scales, scales + num_out * num_groups);
  if (!options.symmetric) result.zeros_OG.assign(zeros, zeros + num_out * num_groups);

  if (!options.code->is_integer()) {
    round_to_points(CodePoints(*options.code), weights, width, result);
    return result;
  }
  // A symmetric min-max grid puts each group's largest weight exactly between two codes. The scale's rounding would
  // decide on which side it falls. In the stored type's precision the quotient is the tie that it should be, and the
  // codes are those of compressed-tensors. At 8 bits that precision would be too little for the codes themselves.
  const bool rounds_quotient =
      options.scales == ScaleSearch::minmax && options.symmetric && options.bits <= kMaxTieBits;
  const float levels = static_cast<float>((1 << options.bits) - 1);
#pragma omp parallel for schedule(static)
  for (int64_t group = 0; group < num_out * num_groups; ++group) {
    const float scale = scales[group], zero = zeros[group];
    const float* source = weights + group * width;
    uint8_t* codes = result.codes_OI.data() + group * width;
    for (int64_t i = 0; i < width; ++i) {
      const float steps =
          rounds_quotient ? runtime::round_to(source[i] / scale, options.scale_dtype) : source[i] / scale;
      const float code = std::nearbyint(steps) + zero;
      codes[i] = static_cast<uint8_t>(std::min(std::max(code, 0.0f), levels));
    }
  }
  return result;
}

double trace_error(const at::Tensor& weight_OI, const at::Tensor& rounded_OI, const at::Tensor& hessian_II) {
  const at::Tensor weight = checked_float_matrix(weight_OI, "weight");
  const at::Tensor rounded = checked_float_matrix(rounded_OI, "rounded weight");
  const at::Tensor hessian = checked_float_matrix(hessian_II, "Hessian");
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  if (rounded.sizes() != weight.sizes() || hessian.size(0) != num_in || hessian.size(1) != num_in) {
    throw std::invalid_argument("trace error: expected a rounded weight of shape " + shape_text(weight) +
                                " and a Hessian of shape [" + std::to_string(num_in) + ", " + std::to_string(num_in) +
                                "], found " + shape_text(rounded) + " and " + shape_text(hessian));
  }
  std::vector<double> block_sums((num_in + kTraceBlockColumns - 1) / kTraceBlockColumns, 0.0);
  for (int64_t row = 0; row < num_out; row += kTraceRows) {
    const int64_t num_rows = std::min(kTraceRows, num_out - row);
    const at::Tensor difference =
        weight.narrow(0, row, num_rows).to(at::kDouble).sub_(rounded.narrow(0, row, num_rows));
    add_quadratic_form(difference, hessian, block_sums);
  }
  return std::accumulate(block_sums.begin(), block_sums.end(), 0.0);
}

}  // namespace pare::quant
