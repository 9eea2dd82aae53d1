// The weights of one linear, independent of any container. Readers yield them, quantizers return them, writers store
// them and backends pack them. A linear is y = x W^T + b with W [O, I] row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/format/dtype.h"
#include "runtime/format/fields.h"
#include "runtime/format/input_format.h"
#include "runtime/format/weight_code.h"

namespace pare::runtime {

inline constexpr int64_t kPerChannel = -1;  // group_size: one scale for each output row

// A promise that at most `num_kept` of every `group` neighbouring inputs have nonzero weights, counted from the first
// input on. {2, 4} is 2:4. {0, 0} promises nothing. The values tell which are kept.
struct SparsePattern {
  int64_t num_kept = 0;
  int64_t group = 0;
  bool is_dense() const { return group == 0; }
  bool operator==(const SparsePattern&) const = default;

  void fields(FieldVisitor& visit) {
    visit("num_kept", num_kept);
    visit("group", group);
  }
};
inline constexpr SparsePattern kTwoOfFour{2, 4};
inline constexpr int64_t kMaxPatternGroup = 1024;

// Returns "2:4" and the like; "none" without a promise.
std::string pattern_name(const SparsePattern& pattern);
// Returns the pattern with such a name, or nullopt. N and M are whole numbers with 1 <= N <= M <= kMaxPatternGroup.
std::optional<SparsePattern> pattern_of_name(std::string_view name);

// W[o, i] = (scales_OG[o, g(i)] / tensor_scale) * (value(codes_OI[o, i]) - zero[o, g(i)]), each operation in float32,
// with g(i) = group_of_I[i], or i / group_size.
// Codes are unsigned, in [0, 2^bits - 1]. Integers stand for themselves, and a symmetric weight has every zero at
// 2^(bits-1). Other codes stand for what the table says and have no zeros.
// A code that is blocks (weight_code.h) has rows of whole blocks in codes_OI, which hold their scales and minima.
struct QuantizedWeight {
  int64_t num_out = 0;
  int64_t num_in = 0;
  const WeightCode* code = &kIntegerCode;
  int bits = 0;                      // one of the code's widths
  int64_t group_size = kPerChannel;  // divides num_in, or kPerChannel
  bool symmetric = true;
  DType scale_dtype = DType::BF16;  // scales_OG holds values that this type represents exactly
  float tensor_scale = 1.0f;        // 1 unless the code has one; else it and its inverse are normal, positive numbers
  std::vector<uint8_t> codes_OI;    // one code per byte, or the bytes of blocks
  std::vector<float> scales_OG;     // G = num_in / group_size, or 1; empty for blocks
  std::vector<uint8_t> zeros_OG;    // empty if symmetric
  std::vector<int32_t> group_of_I;  // empty unless act-order moved columns between groups (g_idx)
  SparsePattern pattern = {};       // a weight that is not kept has the code of its zero

  int64_t num_groups() const { return group_size == kPerChannel ? 1 : num_in / group_size; }
  int64_t group(int64_t column) const {
    if (!group_of_I.empty()) return group_of_I[column];
    return group_size == kPerChannel ? 0 : column / group_size;
  }
  // Returns the code that stands for 0.
  int zero(int64_t row, int64_t group_index) const {
    return symmetric ? code->zero_code(bits) : zeros_OG[row * num_groups() + group_index];
  }
};

// Returns codes plus `offset` in 8 bits. Files with signed codes hold ours minus 2^(bits-1), in two's complement.
std::vector<uint8_t> shift_codes(std::span<const uint8_t> codes, int offset);

// Checks sizes, ranges of codes, zeros and groups, and that every scale is finite, of floats not negative. Also what
// the pattern promises: a weight is not kept if its code stands for 0 (for floats: +0 or -0), whatever its scale.
// Throws std::runtime_error naming `name` and the first offending element.
void validate(const QuantizedWeight& weight, const std::string& name);

// Returns W in float32, [O, I]. Each element is the product above, rounded once for each operation.
std::vector<float> dequantize(const QuantizedWeight& weight);
// Computes rows [first_row, first_row + num_rows) of the same.
void dequantize_rows(const QuantizedWeight& weight, int64_t first_row, int64_t num_rows, std::span<float> out);

// An unquantized weight, F32, F16 or BF16, [O, I] row-major, in a mapped file or in memory of its own.
struct DenseWeight {
  int64_t num_out = 0;
  int64_t num_in = 0;
  DType dtype = DType::BF16;
  std::span<const std::byte> data;
  SparsePattern pattern = {};
  std::shared_ptr<const std::vector<std::byte>> owned = {};  // holds `data`; null: data lies in the mapped file
};

// Checks type and size, and what the pattern promises of the values, where -0 is a zero too. Throws std::runtime_error
// naming `name` and the first offending element.
void validate(const DenseWeight& weight, const std::string& name);

struct LinearWeights {
  std::string name;  // the module's, e.g. "model.layers.0.self_attn.q_proj"; for messages
  std::variant<DenseWeight, QuantizedWeight> weight;
  std::vector<float> bias_O;  // empty: none
  InputFormat input = {};     // the rounding of x before the product
  // The columns input.outlier_columns in floating point, [O, J], which replace W's. Empty: W's are used.
  std::vector<float> outlier_weight_OJ = {};
  // True if many of x are expected to be zeros, after ReLU or by a sparsity threshold. Backends then lay W out so that
  // decoding reads no column whose input is zero.
  bool has_sparse_input = false;
  // True if x, which `input` leaves as it is, is rounded to the nearest bfloat16 before the product. Kernels of the CPU
  // alone do so, for all linears that are packed together or none (activation_mode.h).
  bool has_bf16_input = false;

  int64_t num_out() const {
    return std::visit([](const auto& w) { return w.num_out; }, weight);
  }
  int64_t num_in() const {
    return std::visit([](const auto& w) { return w.num_in; }, weight);
  }
};

// Computes rows [first_row, first_row + num_rows) of W in float32, however it is stored; outlier columns are W's.
// Throws std::invalid_argument for rows outside of W, another size of `out`, or data that do not have W's size.
void weight_rows(const LinearWeights& linear, int64_t first_row, int64_t num_rows, std::span<float> out);

// Returns the linear with row o taken from row rows_O[o] of `linear`: weight, scales, zeros, bias and outlier columns.
// rows_O has every row once. A dense weight is copied.
LinearWeights rows_in_order(const LinearWeights& linear, std::span<const int32_t> rows_O);

// The zeros among the values that are multiplied: W's, with the outlier columns in their place.
struct ZeroCount {
  int64_t num_zeros = 0;       // +0 and -0
  int64_t num_violations = 0;  // groups of the pattern that keep more than it says
  // The row and first column of the first violation.
  int64_t row = 0, column = 0;
};
// Counts zeros and violations of `pattern` (a dense one has none), whatever the weight itself promises. Throws
// std::invalid_argument for a pattern whose groups do not divide num_in, and what weight_rows throws.
ZeroCount count_zeros(const LinearWeights& linear, const SparsePattern& pattern);

}  // namespace pare::runtime
