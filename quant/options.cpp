#include "quant/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace pare::quant {

namespace {

// Visits the code by its name. FP8 has a pass of its own.
void visit_code(runtime::FieldVisitor& visit, const runtime::WeightCode*& code) {
  std::vector<std::string_view> names;
  for (const runtime::WeightCode* known : runtime::weight_codes()) {
    if (known->numbers != runtime::CodeNumbers::e4m3 && !known->is_blocks()) names.push_back(known->name);
  }
  std::string name(code->name);
  visit(
      "code", name, std::span<const std::string_view>(names),
      "The numbers that codes stand for. `int` is evenly spaced. `nvfp4` and `mxfp4` are 4-bit floats in blocks of 16 "
      "and 32, and `nf4` has quantiles of a normal distribution.");
  code = runtime::find_weight_code(name);
}

}  // namespace

runtime::FieldLimits bits_limits() {
  const std::span<const int> widths = runtime::kIntegerCode.widths;
  return {.values = {widths.begin(), widths.end()}};
}

runtime::FieldLimits group_limits() {
  return {.values = {kGroupSizes.begin(), kGroupSizes.end()}};
}

void GridOptions::fields(runtime::FieldVisitor& visit) {
  visit_code(visit, code);
  visit("bits", bits, bits_limits(), "Each weight becomes a code of this many bits.");
  visit("group_size", group_size, group_limits(),
        "This many neighbouring inputs of a row share one scale. With -1 a whole row shares one.");
  visit("symmetric", symmetric, "Codes lie evenly around zero. With `false` each group has a zero point of its own.");
  visit("per_tensor", per_tensor, "The whole weight shares one scale. It needs `group_size: -1`.");
  visit(
      "scales", scales,
      "`minmax` takes the scale that holds the largest weight, and `squared_error` the one with the least error. "
      "`hessian_diagonal` and `hessian` weigh errors by calibration data, the second by all of H. Without calibration "
      "the default is `squared_error`.");
  visit.decided("scale_dtype", scale_dtype);
}

void GptqOptions::fields(runtime::FieldVisitor& visit) {
  grid.fields(visit);
  visit("act_order", act_order,
        "`static` rounds columns with large inputs first and leaves groups where they are. `group` forms the groups in "
        "that order and stores an index for each input. `none` keeps the stored order.");
  loop_fields(visit);
}

void GptqOptions::loop_fields(runtime::FieldVisitor& visit) {
  visit("damping", damping, {.low = runtime::kAboveZero, .high = 1.0},
        "This share of the mean of H's diagonal is added to the diagonal.");
  visit("block_size", block_size, {.low = 1, .high = 4096},
        "Errors are spread over later columns in blocks of this many. This changes only speed and rounding errors.");
}

void RefineOptions::fields(runtime::FieldVisitor& visit) {
  visit(
      "refine", sweeps, {.low = 0, .high = kMaxRefineSweeps},
      "This many sweeps over the codes lower the error on calibration data after rounding. 0 leaves the codes as they "
      "are.");
  visit.decided("refine_damping", damping);
  visit.decided("refine_grids", grids);
}

void FitOptions::fields(runtime::FieldVisitor& visit) {
  visit(
      "fit", fit,
      "Before anything else, each layer is moved towards what the original model does in its place. This needs a text "
      "to calibrate on. Without one, the default is `false`.");
  visit.decided("fit_ridge", ridge);
}

void AwqOptions::fields(runtime::FieldVisitor& visit) {
  visit("duo_scaling", duo_scaling,
        "Candidates for the scales follow both inputs and weights. With `false` they follow only the inputs.");
  visit("grid_points", num_grid_points, {.low = 1, .high = 1000},
        "This many strengths of scaling are tried, and no scaling as well.");
  visit.decided("powers_of_two", powers_of_two);
  visit.decided("max_rows", max_rows);
  visit.decided("screen_rows", screen_rows);
  visit.decided("num_finalists", num_finalists);
}

// The grid is that of the rounding that follows.
void SmoothQuantOptions::fields(runtime::FieldVisitor& visit) {
  visit("alpha", alpha, {.low = 0.0, .high = 1.0},
        "This share of the difficulty moves from inputs to weights. Without it, each input's share is searched.");
  visit.decided("power_of_two", power_of_two);
}

void LlmInt8Options::fields(runtime::FieldVisitor& visit) {
  visit("threshold", value, {.low = runtime::kAboveZero, .high = 1e6},
        "An input column that reaches this value is an outlier and is not rounded. `measure` says what it is a "
        "multiple of.");
  visit("measure", measure,
        "`absolute` compares with the threshold itself. `rms` multiplies it by the root mean square of the layer's "
        "inputs. `median` multiplies it by the median over columns of their largest inputs.");
  visit("outliers", time,
        "`dynamic` finds the outlier columns in each sequence that is run. `static` takes them from calibration data, "
        "once and for all.");
  visit(
      "layout", layout,
      "`bitsandbytes` stores all columns in 8 bits, as that library does. `pare` keeps the outlier columns in 16 bits. "
      "The default is `pare` where the other options need it.");
}

}  // namespace pare::quant
