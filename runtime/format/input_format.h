// The rounding of a linear's input before it is multiplied, and the one scalar definition of that arithmetic. The
// consumer states the format, and the operation before it emits it. Kernels give the same codes, scales and zeros bit
// by bit.
//
// int8:  scale = absmax / 127.5, zero = 0 (symmetric); or, with low = min(0, min x) and high = max(0, max x),
//        scale = (high - low) / 255, zero = rint(clamp(-128 - low / scale, -128, 127)).
//        code = rint(clamp(x / scale + zero, -128, 127)), value = (code - zero) * scale.
// fp8:   scale = absmax / 448, code = e4m3(clamp(x / scale, -448, 448)), value = code * scale.
// Every operation is rounded to float32, rint and e4m3 take ties to even, and a scale of 0 becomes 2^-23. This is what
// compressed-tensors 0.19 computes in float32 (quantization/utils/helpers.py: calculate_qparams;
// lifecycle/forward_helpers.py: _quantize_dequantize). It leaves two things open. Here, if all x are 0, the zero is 0;
// and a NaN (or, where the range is measured, an infinity) makes the row's scale NaN, so that it reaches every output.
//
// fp8 with the range "block": every 128 neighbouring values of a row have a scale of their own, as above; the last
//        ones may be fewer. Engines round so for weights with a scale for each block of 128 x 128 (DeepSeek-V3,
//        arXiv 2412.19437, section 3.3.2).
//        With power_of_two_scales, scale = 2^ceil(log2(max(absmax, 10^-4) / 448)), and log2 is exact. DeepSeek-V3.1 and
//        later are published for that ("scale_fmt": "ue8m0"; inference/kernel.py of DeepSeek-V3.2-Exp: act_quant).
//
// nvfp4: every 16 neighbouring values of a row have a scale of their own, beside one factor g of all inputs that
//        calibration found: g = 448 * 6 / (largest magnitude), so that the scales use the whole range of E4M3.
//        s = e4m3(min(g * (absmax / 6), 448)), with 2^-3 in place of 0; scale = s / g;
//        code = e2m1(clamp(x / scale, -6, 6)), value = code * scale. e2m1 takes ties to even.
// That is the library's "nvfp4-pack-quantized" with inputs of strategy "tensor_group" and dynamic "local"
// (lifecycle/forward.py: forward_quantize). A NaN makes its block NaN, and an infinity is clamped.
//
// int8 with outlier columns (LLM.int8, Dettmers et al., arXiv 2208.07339, section 3.2): columns that hold a value of at
// least the threshold in some token of the sequence stay in floating point, and their codes are 0. The others have
//        code = rint(x * (127 / absmax)), value = code * (absmax * (1 / 127)).
// absmax is taken over the row's values below the threshold, as bitsandbytes does (backends/default/ops.py:
// int8_vectorwise_quant), or over the columns that are not in a list given beforehand. Asymmetric (the paper's
// zeropoint quantization, section 2.1): low and high of the same values on the asymmetric grid above; codes of outlier
// columns are the row's zero.
//
// Activation sparsity (TEAL, Liu et al., arXiv 2408.14690, section 3; CATS, Lee et al., arXiv 2404.08763): before all
// of this, values with |x| <= sparsity_threshold become 0. A NaN stays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"
#include "runtime/format/fields.h"

namespace pare::runtime {

enum class InputType : uint8_t { plain, int8, fp8, nvfp4 };
inline std::span<const EnumName<InputType>> enum_names(InputType) {
  static constexpr std::array<EnumName<InputType>, 4> kNames = {
      {{InputType::plain, "none"}, {InputType::int8, "int8"}, {InputType::fp8, "fp8"}, {InputType::nvfp4, "nvfp4"}}};
  return kNames;
}

// The values that share one scale, and when it is found, in the recipes' words. "token": each token has its own.
// "tensor": one sequence, that is, the tokens of one text that are multiplied together (a window in evaluation, a
// prompt or a decoded token in generation; never a batch). "static": all inputs, found by calibration. "block":
// kFp8Block neighbours of a token; files have it, and no recipe. nvfp4 has "token", though its factor is static.
enum class InputRange : uint8_t { token, tensor, static_, block };
inline std::span<const EnumName<InputRange>> enum_names(InputRange) {
  static constexpr std::array<EnumName<InputRange>, 4> kNames = {{{InputRange::token, "token"},
                                                                  {InputRange::tensor, "tensor"},
                                                                  {InputRange::static_, "static"},
                                                                  {InputRange::block, "block"}}};
  return kNames;
}

// The columns that LLM.int8 keeps: those with |x| >= threshold, those with |x| >= threshold * rms of all x of the
// sequence, or a list.
enum class OutlierRule : uint8_t { none, absolute, relative, columns };
inline std::span<const EnumName<OutlierRule>> enum_names(OutlierRule) {
  static constexpr std::array<EnumName<OutlierRule>, 4> kNames = {{{OutlierRule::none, "none"},
                                                                   {OutlierRule::absolute, "absolute"},
                                                                   {OutlierRule::relative, "relative"},
                                                                   {OutlierRule::columns, "columns"}}};
  return kNames;
}

// So many neighbouring values of nvfp4 share a scale.
inline constexpr int64_t kNvfp4Block = 16;
// And so many of fp8 with the range of a block.
inline constexpr int64_t kFp8Block = 128;

// A recipe may give one of these types and ranges of a format, and zero points where inputs have them.
struct InputChoices {
  std::vector<InputType> types;
  std::vector<InputRange> ranges = {InputRange::token, InputRange::tensor, InputRange::static_};
  bool has_zero_points = true;
};

struct InputFormat {
  InputType type = InputType::plain;
  InputRange range = InputRange::token;
  bool symmetric = true;
  float scale = 0.0f;                // of a fixed range; of nvfp4 the factor g
  int zero = 0;                      // of a fixed asymmetric range
  bool power_of_two_scales = false;  // of blocks of fp8
  OutlierRule outliers = OutlierRule::none;
  float outlier_threshold = 0.0f;
  std::vector<int32_t> outlier_columns = {};  // ascending; for OutlierRule::columns
  float sparsity_threshold = 0.0f;

  // True if nothing is rounded; small values may be dropped.
  bool is_plain() const { return type == InputType::plain; }
  bool keeps_values() const { return is_plain() && sparsity_threshold == 0.0f; }
  // True if calibration finds `scale`, and files store it.
  bool has_stored_scale() const { return type == InputType::nvfp4 || (!is_plain() && range == InputRange::static_); }
  bool has_outliers() const { return outliers != OutlierRule::none; }
  // True if a row is rounded without the other rows of its sequence.
  bool is_rowwise() const {
    return range != InputRange::tensor && (outliers == OutlierRule::none || outliers == OutlierRule::columns);
  }
  bool operator==(const InputFormat&) const = default;

  // The columns are left out: they belong to one linear and are stored and hashed with its weight. So is the sparsity
  // threshold, which config.json holds (activation_sparsity.h).
  void fields(FieldVisitor& visit);
  // The same, where a recipe may give only these.
  void fields(FieldVisitor& visit, const InputChoices& choices);
};

// x[i] becomes 0 where |x[i]| <= threshold.
void drop_small(std::span<float> x, float threshold);

// Checks that the fields fit each other and num_in columns. Throws std::invalid_argument naming `name` for fp8 or nvfp4
// with a zero or outliers, the range of a block without fp8, powers of two without that range, and outliers with a
// range other than a token's. Also for a fixed scale that is not positive and finite, a zero outside [-128, 127], a
// threshold that is not positive, columns out of order or of range, and a sparsity threshold that is negative or not
// finite. nvfp4 needs the range of a token, a factor from 1.2e-38 to 8.5e+37 and whole blocks.
void validate(const InputFormat& format, int64_t num_in, const std::string& name);

// Returns a part of kernel names: "float" (plain), "a8", "a8z" (asymmetric), "a8seq", "a8fixed", "a8+outliers",
// "afp8", "afp8block", "afp8blocke8m0", "anvfp4"...
std::string input_format_name(const InputFormat& format);

// One row's grid.
struct InputGrid {
  float scale = 0.0f;
  int32_t zero = 0;
};

// The smallest and largest of the values and 0; NaN if one value is NaN.
struct InputExtremes {
  float low = 0.0f;
  float high = 0.0f;
};
InputExtremes input_extremes(std::span<const float> x);
InputExtremes join(const InputExtremes& a, const InputExtremes& b);

// Returns the grid of int8 or fp8 values in [low, high]; for a fixed format, its own grid. Formats with outliers use
// outlier_row_grid.
InputGrid input_grid(const InputFormat& format, const InputExtremes& extremes);

// Computes codes[i] of int8 on a grid. A NaN in x makes grid.scale NaN and all codes 0, and so does a NaN scale.
void input_codes(std::span<const float> x, InputGrid& grid, std::span<int8_t> codes);
// x[i] becomes its fp8 value on the grid; NaN stays NaN.
void round_to_fp8(std::span<float> x, const InputGrid& grid);
// The blocks of a row x become their fp8 values, each on its own grid of the format, which has the range of a block.
void round_to_fp8_blocks(const InputFormat& format, std::span<float> x);
// Whole blocks of x become their nvfp4 values.
void round_to_nvfp4(std::span<float> x, float factor);
// Returns the type in which a file holds `scale`, where other scales are of type scale_dtype.
DType input_scale_dtype(const InputFormat& format, DType scale_dtype);

// Returns the columns that stay in floating point, ascending. x is one sequence, [T, num_in] dense.
std::vector<int32_t> outlier_columns(const InputFormat& format, std::span<const float> x_TI, int64_t num_in);
// Returns the limit that outlier_columns compares with; infinity for a list of columns. The mean square comes from the
// rows' sums, added in order in float64. So any thread may sum a row.
float outlier_limit(const InputFormat& format, std::span<const float> x_TI, int64_t num_in);
float outlier_limit(const InputFormat& format, std::span<const double> squares_T, int64_t num_in);
double sum_of_squares(std::span<const float> x);
// Returns 127 / absmax, or 0 if that overflows, so that the codes of such a row are 0.
float outlier_row_factor(float largest);
// Returns the grid of a row of a format with outliers, from the extremes of the values that do not stay in floating
// point.
InputGrid outlier_row_grid(const InputFormat& format, const InputExtremes& extremes);
// Rounds one row of a format with outliers (see the top of this file): computes codes and returns their grid.
InputGrid outlier_row_codes(const InputFormat& format, std::span<const float> x, const std::vector<int32_t>& columns,
                            float limit, std::span<int8_t> codes);

// Replaces one sequence x [T, num_in] by the values that the runtime multiplies. This is the oracle of all kernels.
// Throws what validate() throws.
void fake_quantize(const InputFormat& format, std::span<float> x_TI, int64_t num_in);

}  // namespace pare::runtime
