// A dense bit stream of small unsigned codes, lowest bits first. Code i occupies bits [i*bits, (i+1)*bits) of the
// stream, which is stored in little-endian 32-bit words. With 4 bits, codes 0..7 make the word 0x76543210. This one
// layout serves 2, 3, 4 and 8 bits of GPTQ and compressed-tensors alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pare::runtime {

// Returns the words that num_codes codes of `bits` bits take: ceil(num_codes * bits / 32).
int64_t bit_stream_words(int64_t num_codes, int bits);

// Packs codes (each < 2^bits, bits in 1..8) into words; the tail of the last word is zero.
// Throws std::invalid_argument if a size does not fit or a code is too large.
void pack_bit_stream(std::span<const uint8_t> codes, int bits, std::span<int32_t> words);

// Does the inverse. Throws std::invalid_argument if `words` is too short.
void unpack_bit_stream(std::span<const int32_t> words, int bits, std::span<uint8_t> codes);

// These pack and unpack rows of codes, each a stream of its own: [R, C] becomes words [R, bit_stream_words(C, bits)].
// Packed words need not be aligned. They throw what the functions above throw.
std::vector<int32_t> pack_bit_rows(std::span<const uint8_t> codes_RC, int64_t num_rows, int bits);
std::vector<uint8_t> unpack_bit_rows(std::span<const std::byte> words, int64_t num_rows, int64_t num_codes, int bits);

}  // namespace pare::runtime
