// The options of every method and their defaults, in one place. It is free of LibTorch, so that recipes can be read
// without it. options.cpp lists them for recipes, with their ranges and meanings.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/format/fields.h"
#include "runtime/format/linear_weights.h"

namespace pare::quant {

// The way in which a group's scale is chosen (grid.h). hessian_diagonal weighs each column's error with H_jj. hessian
// asks what an error costs under the whole of H. Rounding to nearest then weighs a group's errors with the group's
// square of H. In GPTQ later columns make up for an error, so it weighs each column's error with 1 / (H^-1)_jj.
enum class ScaleSearch { minmax, squared_error, hessian_diagonal, hessian };
inline std::span<const runtime::EnumName<ScaleSearch>> enum_names(ScaleSearch) {
  static constexpr std::array<runtime::EnumName<ScaleSearch>, 4> kNames = {
      {{ScaleSearch::minmax, "minmax"},
       {ScaleSearch::squared_error, "squared_error"},
       {ScaleSearch::hessian_diagonal, "hessian_diagonal"},
       {ScaleSearch::hessian, "hessian"}}};
  return kNames;
}

// The groups that recipes offer for codes without a block of their own.
inline constexpr std::array<int64_t, 4> kGroupSizes = {32, 64, 128, runtime::kPerChannel};
// Returns the widths of integer codes, or kGroupSizes, as the values of a recipe's field.
runtime::FieldLimits bits_limits();
runtime::FieldLimits group_limits();

struct GridOptions {
  int bits = 4;  // one of the code's widths
  // kPerChannel, or a divisor of I (kGroupSizes in recipes). The code's block, where it has one.
  int64_t group_size = 128;
  bool symmetric = true;
  ScaleSearch scales = ScaleSearch::hessian_diagonal;
  runtime::DType scale_dtype = runtime::DType::BF16;  // scales are rounded to it before codes are chosen
  bool per_tensor = false;  // one scale for the whole weight, repeated for each row (group_size kPerChannel)
  // The scale of the whole weight that others must share (engines join the weights of one input). 0: the weight's own.
  float tensor_scale = 0.0f;
  const runtime::WeightCode* code = &runtime::kIntegerCode;  // integers, or one with a table

  void fields(runtime::FieldVisitor& visit);
};

// The order in which GPTQ rounds columns. none: storage order. static_groups ("static"): descending diag(H), while
// every group keeps its place and its grid. group: descending diag(H), groups are formed in that order, and the weight
// carries g_idx.
enum class ActOrder { none, static_groups, group };
inline std::span<const runtime::EnumName<ActOrder>> enum_names(ActOrder) {
  static constexpr std::array<runtime::EnumName<ActOrder>, 3> kNames = {
      {{ActOrder::none, "none"}, {ActOrder::static_groups, "static"}, {ActOrder::group, "group"}}};
  return kNames;
}

struct GptqOptions {
  GridOptions grid;
  int64_t block_size = 128;  // columns whose errors are spread lazily, by one matrix product per block
  double damping = 0.01;     // relative to mean diag(H) over live columns, added to the diagonal; 0 .. 1
  ActOrder act_order = ActOrder::static_groups;

  void fields(runtime::FieldVisitor& visit);
  // The options of the loop alone, without grid and order.
  void loop_fields(runtime::FieldVisitor& visit);
};

inline constexpr int kMaxRefineSweeps = 100;

struct RefineOptions {
  int sweeps = 4;         // each visits all groups of a row; 0 leaves the weight as it is
  double damping = 0.03;  // relative to mean diag(H) over live columns, added to the diagonal of the H that is
                          // minimized; 0 .. 1
  bool grids = true;      // scales and zero points change too; false where they are shared beyond a row

  void fields(runtime::FieldVisitor& visit);
};

// Says whether a layer is first moved towards what the original model does in its place (fit.h).
struct FitOptions {
  bool fit = false;     // each pass has its own default
  double ridge = 0.01;  // relative to mean diag(H), added to the diagonal
  // True if the recipe asks for it itself. Where nothing can be fitted, a default gives way without a message. This is
  // not an option.
  bool is_asked = false;

  void fields(runtime::FieldVisitor& visit);
};

// The options of AWQ's search for the scales s of a stage's inputs.
struct AwqOptions {
  bool duo_scaling = true;     // s = mean_abs^a / mean|w|^(1-a); otherwise mean_abs^a
  int num_grid_points = 20;    // a = 0, 1/n, ... (n-1)/n, beside s = 1
  bool powers_of_two = false;  // s rounded to powers of two: exact to fold into scales that are already stored
  int64_t max_rows = 512;      // evenly spaced rows of each weight, on which candidates are judged
  int64_t screen_rows = 64;    // likewise: rows on which all candidates are judged first ...
  int64_t num_finalists = 6;   // ... to find the best few, which max_rows then decides between

  void fields(runtime::FieldVisitor& visit);
};

// The alphas that a search tries.
inline constexpr std::array<double, 14> kSmoothAlphas = {0.3,  0.35, 0.4,  0.45, 0.5,  0.55, 0.6,
                                                         0.65, 0.7,  0.75, 0.8,  0.85, 0.9,  0.95};

// The default for SmoothQuant's weights: 8 bits, one scale per output row.
inline constexpr GridOptions kW8PerChannel{.bits = 8, .group_size = runtime::kPerChannel};

struct SmoothQuantOptions {
  std::optional<double> alpha = {};  // 0 .. 1; empty: searched for each input, with s = 1 among the candidates
  bool power_of_two = false;         // s rounded to powers of two, so that every fold into 16-bit values is exact
  GridOptions grid = kW8PerChannel;

  void fields(runtime::FieldVisitor& visit);
};

// The rule that finds LLM.int8's outlier columns in the calibration's statistics. Channel j is one when max|X_j| >=
// threshold. absolute: the threshold is `value` itself (the paper's 6.0). median_absmax: it is `value` times the median
// of max|X_j| over the layer's channels. rms: it is `value` times the root mean square of all the layer's inputs.
enum class OutlierMeasure { absolute, median_absmax, rms };
inline std::span<const runtime::EnumName<OutlierMeasure>> enum_names(OutlierMeasure) {
  static constexpr std::array<runtime::EnumName<OutlierMeasure>, 3> kNames = {
      {{OutlierMeasure::absolute, "absolute"},
       {OutlierMeasure::rms, "rms"},
       {OutlierMeasure::median_absmax, "median"}}};
  return kNames;
}

// own: outlier columns have 16-bit weights and no part in the int8 scales. bitsandbytes: all columns are in int8.
enum class LlmInt8Layout { own, bitsandbytes };
inline std::span<const runtime::EnumName<LlmInt8Layout>> enum_names(LlmInt8Layout) {
  static constexpr std::array<runtime::EnumName<LlmInt8Layout>, 2> kNames = {
      {{LlmInt8Layout::bitsandbytes, "bitsandbytes"}, {LlmInt8Layout::own, "pare"}}};
  return kNames;
}

// When outlier columns are found. dynamic: in every sequence that is run. static: once for all, by the calibration.
enum class OutlierTime { dynamic, static_ };
inline std::span<const runtime::EnumName<OutlierTime>> enum_names(OutlierTime) {
  static constexpr std::array<runtime::EnumName<OutlierTime>, 2> kNames = {
      {{OutlierTime::dynamic, "dynamic"}, {OutlierTime::static_, "static"}}};
  return kNames;
}

struct LlmInt8Options {
  OutlierMeasure measure = OutlierMeasure::absolute;
  double value = 6.0;
  OutlierTime time = OutlierTime::dynamic;
  LlmInt8Layout layout = LlmInt8Layout::own;

  void fields(runtime::FieldVisitor& visit);
};

}  // namespace pare::quant
