// Bytes that stand after every array of the emulated device and that no kernel may change.
#pragma once

#include <cstddef>
#include <cstring>

namespace pare::emulation {

inline constexpr size_t kCanaryBytes = 256;

// 0x7FD3 at every even address. It is NaN as float16, bfloat16, float32 and float64, and unlike the values that kernels
// usually write. The pattern depends on the address alone, so a canary may begin anywhere.
inline char canary_byte(const void* address) {
  return reinterpret_cast<size_t>(address) % 2 == 0 ? char(0xD3) : char(0x7F);
}

inline void write_canary(char* begin, size_t bytes = kCanaryBytes) {
  for (size_t i = 0; i < bytes; ++i) begin[i] = canary_byte(begin + i);
}

// Returns the number of bytes before the first changed one, or `bytes` when none is changed.
inline size_t intact_canary(const char* begin, size_t bytes = kCanaryBytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (begin[i] != canary_byte(begin + i)) return i;
  }
  return bytes;
}

}  // namespace pare::emulation
