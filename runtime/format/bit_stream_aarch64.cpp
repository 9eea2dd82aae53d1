// The loops of bit_stream_eights.h in plain shifts, as AArch64 has no pdep and pext.
#include <cstring>

#include "runtime/format/bit_stream_eights.h"

namespace pare::runtime {

uint64_t pack_eights(const uint8_t* codes, size_t num_eights, int bits, std::byte* bytes) {
  const uint64_t mask = one_code_per_byte_mask(bits);
  uint64_t excess = 0;
  for (size_t i = 0; i < num_eights; ++i, codes += 8, bytes += bits) {
    uint64_t eight;
    std::memcpy(&eight, codes, 8);
    excess |= eight & ~mask;
    uint64_t stream = 0;
    for (int code = 0; code < 8; ++code) {
      const uint64_t value = codes[code] & ((1u << bits) - 1);
      stream |= value << (code * bits);
    }
    std::memcpy(bytes, &stream, static_cast<size_t>(bits));
  }
  return excess;
}

void unpack_eights(const std::byte* bytes, size_t num_eights, int bits, uint8_t* codes) {
  for (size_t i = 0; i < num_eights; ++i, bytes += bits, codes += 8) {
    uint64_t stream = 0;
    std::memcpy(&stream, bytes, static_cast<size_t>(bits));
    for (int code = 0; code < 8; ++code) {
      codes[code] = static_cast<uint8_t>(stream >> (code * bits) & ((1u << bits) - 1));
    }
  }
}

}  // namespace pare::runtime
