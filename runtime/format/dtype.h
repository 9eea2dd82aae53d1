// Element types of files and tensors, and the conversions between the 16-bit floats and float32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/format/fields.h"

namespace pare::runtime {

// The safetensors names of the types that pare reads or writes.
enum class DType { F32, F16, BF16, F64, I8, U8, I16, I32, U32, I64, BOOL, F8_E4M3, F8_E8M0 };

size_t dtype_size_bytes(DType dtype);
std::string_view dtype_name(DType dtype);              // "F32", "BF16", ... as safetensors spells them
DType parse_dtype(std::string_view safetensors_name);  // throws std::invalid_argument naming the type
std::span<const EnumName<DType>> enum_names(DType);
// True for F32, F16 and BF16, in which dense weights and most scales are stored.
inline bool is_float_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

// bfloat16 is the upper half of a float32. Rounding is to nearest even, and NaN stays NaN.
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
uint16_t float_to_bf16(float value);
// IEEE binary16, rounded to nearest even. Subnormals are kept, and overflow gives infinity.
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

// OCP 8-bit float E4M3 (OCP 8-bit Floating Point Specification 1.0, section 5). It has no infinities, and the magnitude
// pattern 0x7f is NaN. The largest value is 448, the smallest positive one 2^-9. Rounding is to nearest even and
// saturates: beyond 448, infinity included, the result is 448 with the sign. NaN stays NaN.
inline constexpr float kLargestFp8 = 448.0f;
float fp8_to_float(uint8_t bits);
uint8_t float_to_fp8(float value);

// OCP scales E8M0 (OCP Microscaling Formats Specification 1.0, section 5.4.1): powers of two from 2^-127 to 2^127, and
// 0xff is NaN. Rounding takes the nearest power below or equal, but at least the smallest; beyond the largest, and for
// infinity, the largest. NaN and negative values become NaN.
float e8m0_to_float(uint8_t bits);
uint8_t float_to_e8m0(float value);

// Returns the value that a file of type `dtype` (F32, F16, BF16, F8_E4M3 or F8_E8M0) would hold.
float round_to(float value, DType dtype);

// Converts source.size() / dtype_size_bytes(dtype) elements of F32, F16, BF16, F64, F8_E4M3 or F8_E8M0 to float32.
// Throws std::invalid_argument if the sizes disagree or the type is not one of these.
void convert_to_float(DType dtype, std::span<const std::byte> source, std::span<float> out);
// Converts the other way, for all of these but F64.
void convert_from_float(DType dtype, std::span<const float> source, std::span<std::byte> out);

}  // namespace pare::runtime
