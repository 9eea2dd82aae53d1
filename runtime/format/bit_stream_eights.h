// The inner loops of bit_stream.h: 8 codes at a time, by the instructions of each architecture.
//
// Because the words are little-endian, the stream of words is also a stream of bytes, and 8 codes of b bits are exactly
// b of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pare::runtime {

// Packs num_eights times 8 codes of 1 to 8 bits into num_eights * bits bytes. Returns bits other than 0 if a code has
// more than `bits`.
uint64_t pack_eights(const uint8_t* codes, size_t num_eights, int bits, std::byte* bytes);
// Reads num_eights * bits bytes, and writes 8 codes for every `bits` of them.
void unpack_eights(const std::byte* bytes, size_t num_eights, int bits, uint8_t* codes);

// The bits of 8 bytes that hold one code each.
constexpr uint64_t one_code_per_byte_mask(int bits) {
  return 0x0101010101010101u * ((uint64_t{1} << bits) - 1);
}

}  // namespace pare::runtime
