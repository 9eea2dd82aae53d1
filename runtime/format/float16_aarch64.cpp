// The conversions of float16.h by NEON's instructions.
#include <arm_neon.h>

#include <bit>
#include <cstring>

#include "runtime/format/dtype.h"
#include "runtime/format/float16.h"

namespace pare::runtime {

void bf16_to_floats(const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = bf16_to_float(bits);
  }
}

void f16_to_floats(const std::byte* source, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8x8_t bits = vld1_u8(reinterpret_cast<const uint8_t*>(source + 2 * i));
    vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u8(bits)));
  }
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = f16_to_float(bits);
  }
}

void floats_to_f16(const float* source, int64_t count, std::byte* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8x8_t bits = vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(source + i)));
    vst1_u8(reinterpret_cast<uint8_t*>(out + 2 * i), bits);
  }
  for (; i < count; ++i) {
    const uint16_t bits = float_to_f16(source[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

float f16_to_float(uint16_t bits) {
  return static_cast<float>(std::bit_cast<__fp16>(bits));
}

uint16_t float_to_f16(float value) {
  return std::bit_cast<uint16_t>(static_cast<__fp16>(value));
}

float fp8_to_float(uint8_t bits) {
  return fp8_by_float16(bits, f16_to_float);
}

}  // namespace pare::runtime
