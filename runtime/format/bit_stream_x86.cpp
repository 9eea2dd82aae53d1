// The loops of bit_stream_eights.h with BMI2's pdep and pext.
#include <immintrin.h>

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
    const uint64_t stream = _pext_u64(eight, mask);
    std::memcpy(bytes, &stream, static_cast<size_t>(bits));
  }
  return excess;
}

void unpack_eights(const std::byte* bytes, size_t num_eights, int bits, uint8_t* codes) {
  const uint64_t mask = one_code_per_byte_mask(bits);
  for (size_t i = 0; i < num_eights; ++i, bytes += bits, codes += 8) {
    uint64_t stream = 0;
    std::memcpy(&stream, bytes, static_cast<size_t>(bits));
    const uint64_t eight = _pdep_u64(stream, mask);
    std::memcpy(codes, &eight, 8);
  }
}

}  // namespace pare::runtime
