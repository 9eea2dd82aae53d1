// The bytes of codes that are blocks. The folder runtime/blocks, which stands on this one, knows what is in them and
// defines these functions and block_codes().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/format/weight_code.h"

namespace pare::runtime {

// Returns the elements of one block.
int64_t block_elements(const WeightCode& code);
// Returns the bytes of a row of `width` elements, which fill whole blocks.
int64_t block_row_bytes(const WeightCode& code, int64_t width);
// Decodes whole blocks to float32. Throws std::invalid_argument for sizes that do not go together.
void decode_blocks(const WeightCode& code, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace pare::runtime
