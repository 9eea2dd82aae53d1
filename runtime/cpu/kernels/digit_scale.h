// The scale of a block of digits (digit_kernels.h), which is the same whatever instructions make the digits. All of it
// is in an anonymous namespace, as in simd_avx2.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace pare::runtime {
namespace {

// The largest magnitude of three signed bytes is 127 * (65536 + 256 + 1). Below it, mantissas up to this one of a float
// take 23 bits, and larger ones 22.
constexpr int32_t kLastMantissaOf23Bits = 0x7EF000;
constexpr int32_t kMantissaMask = 0x7FFFFF;
constexpr int kMantissaBits = 23;
constexpr int32_t kInfinityBits = 0x7F800000;
// Blocks with smaller values keep the scale of values of this exponent, 2^-104: its inverse is the largest that there
// is.
constexpr int32_t kLeastExponent = 23;

struct BlockScale {
  float scale, inverse;
};

// Returns the scale of a block whose largest magnitude has these bits: a finite float, 0 or above.
inline BlockScale block_scale(int32_t largest_bits) {
  int32_t exponent = largest_bits >> kMantissaBits;
  if ((largest_bits & kMantissaMask) > kLastMantissaOf23Bits) ++exponent;
  if (exponent < kLeastExponent) exponent = kLeastExponent;
  const int32_t scale_bits = (exponent - 22) << kMantissaBits;                // 2^(exponent - 127 - 22)
  const int32_t inverse_bits = (127 + 127 + 22 - exponent) << kMantissaBits;  // its inverse
  BlockScale block;
  std::memcpy(&block.scale, &scale_bits, 4);
  std::memcpy(&block.inverse, &inverse_bits, 4);
  return block;
}

}  // namespace
}  // namespace pare::runtime
