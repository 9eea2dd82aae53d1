#include "runtime/format/linear_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "runtime/format/block_bytes.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

std::string place(int64_t row, int64_t column) {
  return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw std::runtime_error("quantized weight '" + name + "': " + what);
}

void check_size(const std::string& name, const char* what, size_t found, int64_t expected) {
  if (found == static_cast<size_t>(expected)) return;
  fail(name, std::string("expected ") + std::to_string(expected) + " " + what + ", found " + std::to_string(found));
}

void check_codes(const QuantizedWeight& weight, const std::string& name) {
  if (weight.code->numbers == CodeNumbers::e4m3) {
    const auto nan = std::find_if(weight.codes_OI.begin(), weight.codes_OI.end(),
                                  [](uint8_t code) { return (code & 0x7F) == 0x7F; });
    if (nan == weight.codes_OI.end()) return;
    const int64_t index = nan - weight.codes_OI.begin();
    fail(name, "the fp8 code at " + place(index / weight.num_in, index % weight.num_in) + " is NaN");
  }
  const int limit = 1 << weight.bits;
  uint8_t largest = 0;
  for (uint8_t code : weight.codes_OI) largest = std::max(largest, code);
  if (largest < limit) return;
  const auto bad =
      std::find_if(weight.codes_OI.begin(), weight.codes_OI.end(), [&](uint8_t code) { return code >= limit; });
  const int64_t index = bad - weight.codes_OI.begin();
  fail(name, "code " + std::to_string(*bad) + " at " + place(index / weight.num_in, index % weight.num_in) +
                 " exceeds the largest of " + std::to_string(weight.bits) + " bits, " + std::to_string(limit - 1));
}

// Returns what is wrong with the pattern for rows of num_in columns; empty: nothing.
std::string pattern_problem(const SparsePattern& pattern, int64_t num_in) {
  if (pattern == SparsePattern{}) return "";
  if (pattern.num_kept < 1 || pattern.num_kept > pattern.group || pattern.group > kMaxPatternGroup) {
    return "expected a pattern N:M with 1 <= N <= M <= " + std::to_string(kMaxPatternGroup) + ", found " +
           std::to_string(pattern.num_kept) + ":" + std::to_string(pattern.group);
  }
  if (num_in % pattern.group == 0) return "";
  return "the groups of the pattern " + pattern_name(pattern) + " do not divide the input width " +
         std::to_string(num_in);
}

// Finds the first group that keeps more than the pattern says. Returns the index of its first element in [O, I], or -1.
// fill_kept(row, kept_I) marks the kept elements of a row with ones.
template <typename FillKept>
int64_t first_violation(const SparsePattern& pattern, int64_t num_out, int64_t num_in, const FillKept& fill_kept) {
  int64_t first = num_out * num_in;
  FirstException error;
#pragma omp parallel if (num_out * num_in > (int64_t{1} << 18))
  {
    std::vector<uint8_t> kept_I;
    error.capture([&] { kept_I.resize(static_cast<size_t>(num_in)); });
#pragma omp for schedule(static) reduction(min : first)
    for (int64_t row = 0; row < num_out; ++row) {
      if (error.failed() || row * num_in >= first) continue;
      fill_kept(row, kept_I);
      for (int64_t column = 0; column < num_in; column += pattern.group) {
        const uint8_t* const group = kept_I.data() + column;
        if (std::accumulate(group, group + pattern.group, int64_t{0}) <= pattern.num_kept) continue;
        first = row * num_in + column;
        break;
      }
    }
  }
  error.rethrow();
  return first == num_out * num_in ? -1 : first;
}

std::string violation_text(const SparsePattern& pattern, int64_t row, int64_t column) {
  return "the " + std::to_string(pattern.group) + " columns from " + place(row, column) + " on keep more than " +
         std::to_string(pattern.num_kept) + ": expected the pattern " + pattern_name(pattern);
}

void check_pattern(const QuantizedWeight& weight, const std::string& name) {
  if (const std::string problem = pattern_problem(weight.pattern, weight.num_in); !problem.empty()) fail(name, problem);
  if (weight.pattern.is_dense()) return;
  const int64_t width = weight.num_in;
  const int64_t index = first_violation(weight.pattern, weight.num_out, width, [&](int64_t row, auto& kept_I) {
    const uint8_t* const codes_I = weight.codes_OI.data() + row * width;
    const int64_t group_width = weight.group_size == kPerChannel ? width : weight.group_size;
    if (!weight.code->is_integer()) {
      for (int64_t i = 0; i < width; ++i) kept_I[i] = weight.code->value(codes_I[i]) != 0.0f;
    } else if (!weight.group_of_I.empty()) {
      for (int64_t i = 0; i < width; ++i) kept_I[i] = codes_I[i] != weight.zero(row, weight.group_of_I[i]);
    } else {
      for (int64_t first = 0; first < width; first += group_width) {
        const int zero = weight.zero(row, first / group_width);
        for (int64_t i = first; i < first + group_width; ++i) kept_I[i] = codes_I[i] != zero;
      }
    }
  });
  if (index >= 0) fail(name, violation_text(weight.pattern, index / width, index % width));
}

// Scales of integers may be negative: AutoRound and llama.cpp give the largest value of a group the code that lies
// farthest from the zero, whichever sign it has.
void check_scales(const QuantizedWeight& weight, const std::string& name) {
  const int64_t num_groups = weight.num_groups();
  const bool may_be_negative = weight.code->is_integer();
  for (size_t i = 0; i < weight.scales_OG.size(); ++i) {
    const float scale = weight.scales_OG[i] / weight.tensor_scale;
    if (std::isfinite(scale) && (scale >= 0.0f || may_be_negative)) continue;
    const auto index = static_cast<int64_t>(i);
    fail(name, "scale " + std::to_string(scale) + " at " + place(index / num_groups, index % num_groups) +
                   (may_be_negative ? " is not finite" : " is not finite or is negative"));
  }
}

void check_scale_dtype(const std::string& name, const WeightCode& code, DType dtype) {
  if (code.scale_dtype ? dtype == *code.scale_dtype : is_float_dtype(dtype)) return;
  fail(name, "expected scales of " +
                 (code.scale_dtype ? std::string(dtype_name(*code.scale_dtype)) : "F32, F16 or BF16") + ", found " +
                 std::string(dtype_name(dtype)));
}

// Checks what the code's row says of the weight as a whole.
void check_code(const QuantizedWeight& weight, const std::string& name) {
  const WeightCode& code = *weight.code;
  if (!code.has_width(weight.bits)) {
    fail(name, "expected " + widths_text(code) + " bits" + (code.is_integer() ? "" : " of " + std::string(code.name)) +
                   ", found " + std::to_string(weight.bits));
  }
  if (!code.is_integer() && !weight.symmetric) fail(name, std::string(code.name) + " codes have no zeros, found some");
  if (code.block != 0 && weight.group_size != code.block) {
    fail(name, std::string(code.name) + " codes have one scale for " + std::to_string(code.block) +
                   " columns, found groups of " + std::to_string(weight.group_size));
  }
  // Kernels multiply by its inverse, which must not be 0, infinite or inexact.
  const bool is_usable =
      weight.tensor_scale > 0.0f && std::isnormal(weight.tensor_scale) && std::isnormal(1.0f / weight.tensor_scale);
  if (code.has_tensor_scale ? is_usable : weight.tensor_scale == 1.0f) return;
  char found[32];
  std::snprintf(found, sizeof(found), "%g", static_cast<double>(weight.tensor_scale));
  fail(name, std::string("expected ") +
                 (code.has_tensor_scale ? "a positive scale from 1.2e-38 to 8.5e+37" : "no scale") +
                 " of the whole weight, found " + found);
}

// Decodes rows of blocks.
void decode_rows(const QuantizedWeight& weight, int64_t first_row, int64_t num_rows, std::span<float> out) {
  const auto row_bytes = static_cast<size_t>(block_row_bytes(*weight.code, weight.num_in));
  const auto width = static_cast<size_t>(weight.num_in);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(weight.codes_OI));
#pragma omp parallel for if (num_rows * weight.num_in > (int64_t{1} << 17))
  for (int64_t row = 0; row < num_rows; ++row) {
    decode_blocks(*weight.code, bytes.subspan(static_cast<size_t>(first_row + row) * row_bytes, row_bytes),
                  out.subspan(static_cast<size_t>(row) * width, width));
  }
}

// Blocks have all but their bytes and shape from the type.
void validate_blocks(const QuantizedWeight& weight, const std::string& name) {
  const int64_t num_elements = block_elements(*weight.code);
  if (weight.num_in % num_elements != 0) {
    fail(name, "expected rows of whole " + std::string(weight.code->name) + " blocks of " +
                   std::to_string(num_elements) + ", found " + std::to_string(weight.num_in) + " inputs");
  }
  check_size(name, "bytes of blocks", weight.codes_OI.size(),
             weight.num_out * block_row_bytes(*weight.code, weight.num_in));
  check_size(name, "scales beside blocks", weight.scales_OG.size(), 0);
  check_size(name, "zeros beside blocks", weight.zeros_OG.size(), 0);
  check_size(name, "group indices beside blocks", weight.group_of_I.size(), 0);
  if (!weight.pattern.is_dense()) fail(name, "blocks do not pack the pattern " + pattern_name(weight.pattern));
  constexpr int64_t kRows = 64;  // this many rows in float32 at a time
  std::vector<float> rows;
  for (int64_t first = 0; first < weight.num_out; first += kRows) {
    const int64_t num_rows = std::min(kRows, weight.num_out - first);
    rows.resize(static_cast<size_t>(num_rows * weight.num_in));
    decode_rows(weight, first, num_rows, rows);
    const auto bad = std::find_if(rows.begin(), rows.end(), [](float value) { return !std::isfinite(value); });
    if (bad == rows.end()) continue;
    const int64_t index = first * weight.num_in + (bad - rows.begin());
    fail(name, "the weight at " + place(index / weight.num_in, index % weight.num_in) +
                   " is not finite: its block's scale is damaged");
  }
}

int64_t checked_size(const std::string& name, int64_t num_out, int64_t num_in) {
  int64_t num_codes = 0;
  if (num_out > 0 && num_in > 0 && !__builtin_mul_overflow(num_out, num_in, &num_codes)) return num_codes;
  fail(name, "impossible shape " + place(num_out, num_in));
}

void check_rows(int64_t first_row, int64_t num_rows, int64_t num_out, int64_t num_in, size_t num_floats) {
  if (first_row >= 0 && num_rows >= 0 && first_row <= num_out - num_rows &&
      num_floats == static_cast<size_t>(num_rows * num_in)) {
    return;
  }
  throw std::invalid_argument("dequantize: rows " + std::to_string(first_row) + " to " +
                              std::to_string(first_row + num_rows) + " of " + std::to_string(num_out) + " into " +
                              std::to_string(num_floats) + " floats");
}

}  // namespace

std::string pattern_name(const SparsePattern& pattern) {
  if (pattern.is_dense()) return "none";
  return std::to_string(pattern.num_kept) + ":" + std::to_string(pattern.group);
}

std::optional<SparsePattern> pattern_of_name(std::string_view name) {
  SparsePattern pattern;
  const char* const end = name.data() + name.size();
  const auto kept = std::from_chars(name.data(), end, pattern.num_kept);
  if (kept.ec != std::errc() || kept.ptr == end || *kept.ptr != ':') return std::nullopt;
  const auto group = std::from_chars(kept.ptr + 1, end, pattern.group);
  if (group.ec != std::errc() || group.ptr != end) return std::nullopt;
  if (pattern.num_kept < 1 || pattern.num_kept > pattern.group || pattern.group > kMaxPatternGroup) return std::nullopt;
  return pattern_name(pattern) == name ? std::optional(pattern) : std::nullopt;
}

std::vector<uint8_t> shift_codes(std::span<const uint8_t> codes, int offset) {
  std::vector<uint8_t> shifted(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) shifted[i] = static_cast<uint8_t>(codes[i] + offset);
  return shifted;
}

void validate(const QuantizedWeight& weight, const std::string& name) {
  check_code(weight, name);
  const int64_t num_codes = checked_size(name, weight.num_out, weight.num_in);
  if (weight.group_size != kPerChannel && (weight.group_size <= 0 || weight.num_in % weight.group_size != 0)) {
    fail(name, "group size " + std::to_string(weight.group_size) + " does not divide the input width " +
                   std::to_string(weight.num_in));
  }
  check_scale_dtype(name, *weight.code, weight.scale_dtype);
  if (weight.code->is_blocks()) return validate_blocks(weight, name);
  const int64_t num_groups = weight.num_groups();
  const int64_t num_scales = weight.num_out * num_groups;
  check_size(name, "codes", weight.codes_OI.size(), num_codes);
  check_size(name, "scales", weight.scales_OG.size(), num_scales);
  check_size(name, "zeros", weight.zeros_OG.size(), weight.symmetric ? 0 : num_scales);
  if (!weight.group_of_I.empty()) check_size(name, "group indices", weight.group_of_I.size(), weight.num_in);
  check_codes(weight, name);
  check_scales(weight, name);
  for (size_t i = 0; i < weight.zeros_OG.size(); ++i) {
    if (weight.zeros_OG[i] >> weight.bits == 0) continue;
    const int64_t index = static_cast<int64_t>(i);
    fail(name, "zero " + std::to_string(weight.zeros_OG[i]) + " at " + place(index / num_groups, index % num_groups) +
                   " exceeds the largest of " + std::to_string(weight.bits) + " bits");
  }
  for (size_t i = 0; i < weight.group_of_I.size(); ++i) {
    if (weight.group_of_I[i] >= 0 && weight.group_of_I[i] < num_groups) continue;
    fail(name, "column " + std::to_string(i) + " names group " + std::to_string(weight.group_of_I[i]) +
                   "; expected 0 to " + std::to_string(num_groups - 1));
  }
  check_pattern(weight, name);
}

void validate(const DenseWeight& weight, const std::string& name) {
  const auto fail_dense = [&](const std::string& what) { throw std::runtime_error("weight '" + name + "': " + what); };
  if (!is_float_dtype(weight.dtype)) {
    fail_dense("expected F32, F16 or BF16, found " + std::string(dtype_name(weight.dtype)));
  }
  const int64_t width = weight.num_in;
  const size_t size = dtype_size_bytes(weight.dtype);
  int64_t num_bytes = 0;
  if (weight.num_out <= 0 || width <= 0 || __builtin_mul_overflow(weight.num_out, width, &num_bytes) ||
      __builtin_mul_overflow(num_bytes, static_cast<int64_t>(size), &num_bytes) ||
      weight.data.size() != static_cast<size_t>(num_bytes)) {
    fail_dense("expected " + place(weight.num_out, width) + " values of " + std::string(dtype_name(weight.dtype)) +
               ", found " + std::to_string(weight.data.size()) + " bytes");
  }
  if (const std::string problem = pattern_problem(weight.pattern, width); !problem.empty()) fail_dense(problem);
  if (weight.pattern.is_dense()) return;
  // Zeros of all three types have no bit but the sign's, the highest of the last byte.
  const int64_t index = first_violation(weight.pattern, weight.num_out, width, [&](int64_t row, auto& kept_I) {
    const std::byte* value = weight.data.data() + static_cast<size_t>(row * width) * size;
    for (int64_t i = 0; i < width; ++i, value += size) {
      std::byte bits = value[size - 1] & std::byte{0x7F};
      for (size_t b = 0; b + 1 < size; ++b) bits |= value[b];
      kept_I[i] = bits != std::byte{0};
    }
  });
  if (index >= 0) fail_dense(violation_text(weight.pattern, index / width, index % width));
}

void dequantize_rows(const QuantizedWeight& weight, int64_t first_row, int64_t num_rows, std::span<float> out) {
  check_rows(first_row, num_rows, weight.num_out, weight.num_in, out.size());
  if (weight.code->is_blocks()) return decode_rows(weight, first_row, num_rows, out);
  const int64_t width = weight.num_in;
  const int64_t num_groups = weight.num_groups();
  const int64_t group_width = weight.group_size == kPerChannel ? width : weight.group_size;
  // The values of codes before the zero is subtracted.
  float values[256] = {};
  for (int code = 0; code < 1 << weight.bits; ++code) values[code] = weight.code->value(static_cast<uint8_t>(code));
  const bool has_zeros = weight.code->is_integer();
  const auto zero_of = [&](int64_t row, int64_t group) {
    return has_zeros ? static_cast<float>(weight.zero(row, group)) : 0.0f;
  };
#pragma omp parallel for if (num_rows * width > (int64_t{1} << 17))
  for (int64_t row = 0; row < num_rows; ++row) {
    const uint8_t* codes_I = weight.codes_OI.data() + (first_row + row) * width;
    const float* scales_G = weight.scales_OG.data() + (first_row + row) * num_groups;
    float* out_I = out.data() + row * width;
    if (!weight.group_of_I.empty()) {
      for (int64_t i = 0; i < width; ++i) {
        const int32_t group = weight.group_of_I[i];
        const float scale = scales_G[group] / weight.tensor_scale;
        out_I[i] = scale * (values[codes_I[i]] - zero_of(first_row + row, group));
      }
      continue;
    }
    for (int64_t group = 0; group < num_groups; ++group) {
      const float zero = zero_of(first_row + row, group);
      const float scale = scales_G[group] / weight.tensor_scale;
      for (int64_t i = group * group_width; i < (group + 1) * group_width; ++i) {
        out_I[i] = scale * (values[codes_I[i]] - zero);
      }
    }
  }
}

std::vector<float> dequantize(const QuantizedWeight& weight) {
  std::vector<float> weight_OI(static_cast<size_t>(weight.num_out * weight.num_in));
  dequantize_rows(weight, 0, weight.num_out, weight_OI);
  return weight_OI;
}

void weight_rows(const LinearWeights& linear, int64_t first_row, int64_t num_rows, std::span<float> out) {
  if (const auto* quantized = std::get_if<QuantizedWeight>(&linear.weight)) {
    return dequantize_rows(*quantized, first_row, num_rows, out);
  }
  const auto& dense = std::get<DenseWeight>(linear.weight);
  check_rows(first_row, num_rows, dense.num_out, dense.num_in, out.size());
  const size_t row_bytes = static_cast<size_t>(dense.num_in) * dtype_size_bytes(dense.dtype);
  if (dense.data.size() != static_cast<size_t>(dense.num_out) * row_bytes) {
    throw std::invalid_argument(
        "linear '" + linear.name + "': expected " + std::to_string(static_cast<size_t>(dense.num_out) * row_bytes) +
        " bytes of " + std::string(dtype_name(dense.dtype)) + " weights, found " + std::to_string(dense.data.size()));
  }
  const auto rows =
      dense.data.subspan(static_cast<size_t>(first_row) * row_bytes, static_cast<size_t>(num_rows) * row_bytes);
  convert_to_float(dense.dtype, rows, out);
}

LinearWeights rows_in_order(const LinearWeights& linear, std::span<const int32_t> rows_O) {
  const auto num_out = static_cast<size_t>(linear.num_out());
  if (rows_O.size() != num_out) {
    throw std::invalid_argument("rows_in_order: '" + linear.name + "' has " + std::to_string(num_out) +
                                " rows, found an order of " + std::to_string(rows_O.size()));
  }
  const auto ordered = [&](auto& values) {
    const size_t width = values.size() / num_out;
    auto from = values;
    for (size_t o = 0; o < num_out; ++o) {
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rows_O[o]) * width), width,
                  values.begin() + static_cast<ptrdiff_t>(o * width));
    }
  };
  LinearWeights result = linear;
  ordered(result.bias_O);
  ordered(result.outlier_weight_OJ);
  if (auto* const quantized = std::get_if<QuantizedWeight>(&result.weight)) {
    ordered(quantized->codes_OI);
    ordered(quantized->scales_OG);
    ordered(quantized->zeros_OG);
    return result;
  }
  auto& dense = std::get<DenseWeight>(result.weight);
  std::vector<std::byte> data(dense.data.begin(), dense.data.end());
  ordered(data);
  dense.owned = std::make_shared<const std::vector<std::byte>>(std::move(data));
  dense.data = *dense.owned;
  return result;
}

ZeroCount count_zeros(const LinearWeights& linear, const SparsePattern& pattern) {
  if (const std::string problem = pattern_problem(pattern, linear.num_in()); !problem.empty()) {
    throw std::invalid_argument("linear '" + linear.name + "': " + problem);
  }
  constexpr int64_t kRows = 64;  // this many rows in float32 at a time
  const int64_t num_in = linear.num_in(), num_out = linear.num_out();
  const std::vector<int32_t>& outliers = linear.input.outlier_columns;
  std::vector<float> rows;
  ZeroCount count;
  for (int64_t first_row = 0; first_row < num_out; first_row += kRows) {
    const int64_t num_rows = std::min(kRows, num_out - first_row);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    weight_rows(linear, first_row, num_rows, rows);
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      float* const values_I = rows.data() + (row - first_row) * num_in;
      for (size_t j = 0; !linear.outlier_weight_OJ.empty() && j < outliers.size(); ++j) {
        values_I[outliers[j]] = linear.outlier_weight_OJ[static_cast<size_t>(row) * outliers.size() + j];
      }
      count.num_zeros += std::count(values_I, values_I + num_in, 0.0f);
      for (int64_t first = 0; !pattern.is_dense() && first < num_in; first += pattern.group) {
        const int64_t num_zeros = std::count(values_I + first, values_I + first + pattern.group, 0.0f);
        if (pattern.group - num_zeros <= pattern.num_kept) continue;
        if (count.num_violations++ == 0) count.row = row, count.column = first;
      }
    }
  }
  return count;
}

}  // namespace pare::runtime
