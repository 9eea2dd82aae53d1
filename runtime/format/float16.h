// The conversions between float32 and formats of 16 bits that each architecture has instructions for. f16_to_float,
// float_to_f16 and fp8_to_float of dtype.h stand beside them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pare::runtime {

// Sources of bytes may lie at any address. Conversions are exact, or round to the nearest with ties to even.
void bf16_to_floats(const std::byte* source, int64_t count, float* out);
void f16_to_floats(const std::byte* source, int64_t count, float* out);
void floats_to_f16(const float* source, int64_t count, std::byte* out);

// fp8_to_float by a conversion of float16. The code has a sign, four bits of exponent with bias 7, and three of
// mantissa. The same bits four places higher are a float16 whose exponent has bias 15, hence 2^8 too small. That holds
// for subnormals too, because both formats scale them by their smallest exponent.
template <class Convert>
float fp8_by_float16(uint8_t bits, const Convert& f16_to_float) {
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>((bits & 0x80u) << 24 | 0x7fc00000u);
  const auto half = static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
  return f16_to_float(half) * 256.0f;
}

}  // namespace pare::runtime
