// The codes of weights: the numbers that stored bits stand for. One table lists them, and grids, containers, kernels,
// sizes, checks and messages follow from its rows. A new code is one row here, or one of a program's own
// (register_weight_code).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/format/dtype.h"

namespace pare::runtime {

// integers: a code stands for itself minus its group's zero. e4m3: for an 8-bit float (fp8_to_float). table: for
// values[code]. blocks: the weight is stored as blocks of a GGUF type, and its codes are their bytes.
enum class CodeNumbers : uint8_t { integers, e4m3, table, blocks };

// Kernels look values up among so many.
inline constexpr int kMaxTableBits = 4;
inline constexpr int kTableValues = 1 << kMaxTableBits;

struct WeightCode {
  std::string_view name;  // in recipes, schemes, messages and kernels' names; unique and stable
  CodeNumbers numbers = CodeNumbers::table;
  std::span<const int> widths;         // the numbers of bits that a code may have
  std::span<const float> values = {};  // of a table: 2^bits finite values, of which one is 0
  int64_t block = 0;                   // so many neighbouring columns share a scale; 0: as the recipe says
  // The type of the scales. Empty: F32, F16 or BF16, as the container says.
  std::optional<DType> scale_dtype = {};
  bool has_tensor_scale = false;  // scales are divided by one float32 of the whole weight
  uint32_t gguf_type = 0;         // of blocks: GGUF's number

  bool is_integer() const { return numbers == CodeNumbers::integers; }
  bool is_blocks() const { return numbers == CodeNumbers::blocks; }
  bool has_width(int bits) const;
  // The width where there is only one; 0 for integers.
  int width() const { return widths.size() == 1 ? widths.front() : 0; }
  // Returns what the code stands for, before a zero is subtracted; 0 for blocks.
  float value(uint8_t code) const;
  // Returns the code of 0 in a symmetric weight.
  uint8_t zero_code(int bits) const;
  // Returns the largest magnitude of a value; for codes other than integers.
  float largest() const;
};

extern const WeightCode kIntegerCode;  // "int": 2, 3, 4 or 8 bits
extern const WeightCode kFp8Code;      // "fp8": E4M3 (OCP 8-bit Floating Point Specification 1.0)
// "nvfp4": E2M1 in blocks of 16, whose scales are E4M3, divided by a float32 of the whole weight.
extern const WeightCode kNvfp4Code;
// "mxfp4": E2M1 in blocks of 32, whose scales are powers of two (OCP Microscaling Formats Specification 1.0).
extern const WeightCode kMxfp4Code;
// "nf4": quantiles of a normal distribution (QLoRA, arXiv 2305.14314, appendix E).
extern const WeightCode kNf4Code;

// Blocks of GGUF that weights can be rounded to (gguf_parts.h): "q4_0", "q4_k" and so on. Their width is that of a
// code in them, and `block` the columns that share a scale.
std::span<const WeightCode> block_codes();

// The table: the rows above, then the registered ones.
std::span<const WeightCode* const> weight_codes();
// Returns the code of that name, or null.
const WeightCode* find_weight_code(std::string_view name);
// Adds a row for this process; `code` must live as long as it is used. Adding the same object twice adds it once. Call
// it before other threads look at the table. Throws std::invalid_argument for a name that another code has, and for
// what kernels do not multiply: anything but a table of at most 4 bits with 2^bits finite values and a 0 among them,
// and scales of another type than F32, F16, BF16, F8_E4M3 and F8_E8M0.
void register_weight_code(const WeightCode& code);

// Returns a part of names: "w4" for integers of 4 bits, "wnvfp4"; "w16" for no code (a dense weight).
std::string code_name(const WeightCode* code, int bits);

// Returns a list of numbers for messages: "2, 3, 4 or 8".
std::string widths_text(const WeightCode& code);

}  // namespace pare::runtime
