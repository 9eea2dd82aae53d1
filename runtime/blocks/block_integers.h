// Blocks of GGUF whose numbers are codes of integers, as other formats have them.
//
// A block of Q4_0, Q5_0 or Q8_0 has a scale d and codes q, and W = d (q - 8), d (q - 16) or d q: symmetric codes of 4
// bits for Q4_0, and of 8 for others. One of Q4_1 or Q5_1 has W = d q + m: codes of 4 or 8 bits with a zero z, if m is
// -z d for a whole z of as many bits. Scales may be negative. Blocks that share a scale and a zero in every row of the
// linear are one group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "runtime/blocks/gguf_parts.h"
#include "runtime/format/linear_weights.h"

namespace pare::runtime {

inline constexpr int64_t kIntegerBlock = 32;  // elements of each such block

// Returns the bits of the codes: 4 or 8. `grid` has_integers.
int integer_bits(const GgufGrid& grid);
// Returns what is to be subtracted from the grid's codes, so that they count from -2^(bits-1), as signed bytes do.
int integer_offset(const GgufGrid& grid);

// W = scale (code - zero), with codes of integer_bits.
struct IntegerScale {
  float scale = 0.0f;
  int zero = 0;
};
// Returns that of one block; nullopt where codes, a zero and a scale do not say what the block says.
std::optional<IntegerScale> integer_scale(const GgufGrid& grid, std::span<const std::byte> block);

struct IntegerForm {
  int bits = 0;
  int64_t group_size = kIntegerBlock;  // the largest: kPerChannel if all blocks of a row share a scale
  bool symmetric = true;
};
// Reads every block of the rows and returns the form of their codes; nullopt if some block has none, or the grid has no
// integers. row_of(r) gives the bytes of a row of num_in elements. Throws Interrupted.
std::optional<IntegerForm> find_integer_form(const GgufGrid* grid, int64_t num_rows, int64_t num_in,
                                             const std::function<std::span<const std::byte>(int64_t)>& row_of);

// Returns the same weight as codes of integers, whose scales are float16 numbers; nullopt if it has no such form.
// `blocks` is a weight in blocks (weight_code.h). Throws Interrupted.
std::optional<QuantizedWeight> integers_of_blocks(const QuantizedWeight& blocks);

}  // namespace pare::runtime
