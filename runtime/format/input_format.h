// How the input of a linear is rounded before it is multiplied, and the one scalar definition of that arithmetic. The
// consumer states the format, the operation before it emits it; kernels give the same codes, scales and zeros bit by
// bit.
//
// int8:  scale = absmax / 127.5, zero = 0 (symmetric); or, with low = min(0, min x) and high = max(0, max x),
//        scale = (high - low) / 255, zero = rint(clamp(-128 - low / scale, -128, 127)).
//        code = rint(clamp(x / scale + zero, -128, 127)), value = (code - zero) * scale.
// fp8:   scale = absmax / 448, code = e4m3(clamp(x / scale, -448, 448)), value = code * scale.
// Every operation is rounded to float32, rint and e4m3 take ties to even, and a scale of 0 becomes 2^-23: this is what
// compressed-tensors 0.19 computes in float32 (quantization/utils/helpers.py: calculate_qparams;
// lifecycle/forward_helpers.py: _quantize_dequantize). Two things it leaves open: when all x are 0 the zero is 0, and a
// NaN (or, where the range is measured, an infinity) makes the row's scale NaN, so that it reaches every output.
//
// int8 with outlier columns (LLM.int8, Dettmers et al., arXiv 2208.07339, section 3.2): columns that hold a value of at
// least the threshold in some token of the sequence stay as they are, their codes are 0, and the others have
//        code = rint(x * (127 / absmax)), value = code * (absmax * (1 / 127)),
// absmax taken over the row's values below the threshold, as bitsandbytes does (backends/default/ops.py:
// int8_vectorwise_quant), or over the columns that are not in a list given beforehand. Asymmetric (the paper's
// zeropoint quantization, section 2.1): low and high of the same values on the asymmetric grid above; codes of outlier
// columns are the row's zero.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/fields.h"

namespace pare {

enum class InputType : uint8_t { plain, int8, fp8 };
inline std::span<const EnumName<InputType>> enum_names(InputType) {
  static constexpr std::array<EnumName<InputType>, 3> kNames = {
      {{InputType::plain, "none"}, {InputType::int8, "int8"}, {InputType::fp8, "fp8"}}};
  return kNames;
}

// What one scale serves and when it is found, in the recipes' words: each token; the tensor of one sequence, which is
// what is multiplied together of one text (a window in evaluation, a prompt or a decoded token in generation; never a
// batch); or all inputs, found by calibration.
enum class InputRange : uint8_t { token, tensor, static_ };
inline std::span<const EnumName<InputRange>> enum_names(InputRange) {
  static constexpr std::array<EnumName<InputRange>, 3> kNames = {
      {{InputRange::token, "token"}, {InputRange::tensor, "tensor"}, {InputRange::static_, "static"}}};
  return kNames;
}

// Which columns LLM.int8 keeps: those with |x| >= threshold, those with |x| >= threshold * rms of all x of the
// sequence, or a list.
enum class OutlierRule : uint8_t { none, absolute, relative, columns };
inline std::span<const EnumName<OutlierRule>> enum_names(OutlierRule) {
  static constexpr std::array<EnumName<OutlierRule>, 4> kNames = {{{OutlierRule::none, "none"},
                                                                   {OutlierRule::absolute, "absolute"},
                                                                   {OutlierRule::relative, "relative"},
                                                                   {OutlierRule::columns, "columns"}}};
  return kNames;
}

struct InputFormat {
  InputType type = InputType::plain;
  InputRange range = InputRange::token;
  bool symmetric = true;
  float scale = 0.0f;  // of a fixed range
  int zero = 0;        // of a fixed asymmetric range
  OutlierRule outliers = OutlierRule::none;
  float outlier_threshold = 0.0f;
  std::vector<int32_t> outlier_columns = {};  // ascending; of OutlierRule::columns

  bool is_plain() const { return type == InputType::plain; }
  bool has_outliers() const { return outliers != OutlierRule::none; }
  // Whether a row is rounded without a look at the others of its sequence.
  bool is_rowwise() const {
    return range != InputRange::tensor && (outliers == OutlierRule::none || outliers == OutlierRule::columns);
  }
  bool operator==(const InputFormat&) const = default;

  // Without the columns, which belong to one linear and are stored and hashed with its weight.
  void fields(FieldVisitor& visit) {
    visit("type", type);
    visit("range", range);
    visit("symmetric", symmetric);
    visit.decided("scale", scale);
    visit.decided("zero", zero);
    visit.decided("outliers", outliers);
    visit.decided("outlier_threshold", outlier_threshold);
  }
};

// Checks what the fields can be together, for an input of num_in columns. Throws std::invalid_argument naming `name`:
// fp8 with a zero or outliers, outliers with a range other than a token's, a fixed scale that is not positive
// and finite or a zero outside [-128, 127], a threshold that is not positive, columns out of order or of range.
void validate(const InputFormat& format, int64_t num_in, const std::string& name);

// "float" (plain), "a8", "a8z" (asymmetric), "a8seq", "a8fixed", "a8+outliers",
// "afp8"...: part of kernel names.
std::string input_format_name(const InputFormat& format);

// One row's grid.
struct InputGrid {
  float scale = 0.0f;
  int32_t zero = 0;
};

// Smallest and largest value and 0; NaN when there is one.
struct InputExtremes {
  float low = 0.0f;
  float high = 0.0f;
};
InputExtremes input_extremes(std::span<const float> x);
InputExtremes join(const InputExtremes& a, const InputExtremes& b);

// The grid of int8 or fp8 values in [low, high]; a fixed format's own. Formats with outliers: outlier_row_grid.
InputGrid input_grid(const InputFormat& format, const InputExtremes& extremes);

// codes[i] of int8 on a grid. A NaN among x makes grid.scale NaN and all codes 0, as does a scale that is no number.
void input_codes(std::span<const float> x, InputGrid& grid, std::span<int8_t> codes);
// x[i] becomes its fp8 value on the grid; NaN stays NaN.
void round_to_fp8(std::span<float> x, const InputGrid& grid);

// The columns that stay in floating point: x is one sequence, [T, num_in] dense. Ascending.
std::vector<int32_t> outlier_columns(const InputFormat& format, std::span<const float> x_TI, int64_t num_in);
// The limit that outlier_columns compares with; infinity with a list of columns. The mean square is that of the rows'
// sums, added in order in float64: rows may be summed apart, by any thread.
float outlier_limit(const InputFormat& format, std::span<const float> x_TI, int64_t num_in);
float outlier_limit(const InputFormat& format, std::span<const double> squares_T, int64_t num_in);
double sum_of_squares(std::span<const float> x);
// 127 / absmax; 0 where that overflows, so that the codes of such a row are 0.
float outlier_row_factor(float largest);
// The grid of a row of a format with outliers, from the extremes of what does not stay in floating point.
InputGrid outlier_row_grid(const InputFormat& format, const InputExtremes& extremes);
// One row beside its outlier columns (see the head of this file): codes and their grid.
InputGrid outlier_row_codes(const InputFormat& format, std::span<const float> x, const std::vector<int32_t>& columns,
                            float limit, std::span<int8_t> codes);

// Replaces one sequence x [T, num_in] by the values that the runtime multiplies. The oracle of all kernels. Throws what
// validate() throws.
void fake_quantize(const InputFormat& format, std::span<float> x_TI, int64_t num_in);

}  // namespace pare
