#include "runtime/format/dtype.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/format/float16.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

struct DTypeEntry {
  DType dtype;
  std::string_view name;
  size_t size_bytes;
};

constexpr DTypeEntry kDTypes[] = {
    {DType::F32, "F32", 4},        {DType::F16, "F16", 2}, {DType::BF16, "BF16", 2}, {DType::F64, "F64", 8},
    {DType::I8, "I8", 1},          {DType::U8, "U8", 1},   {DType::I16, "I16", 2},   {DType::I32, "I32", 4},
    {DType::U32, "U32", 4},        {DType::I64, "I64", 8}, {DType::BOOL, "BOOL", 1}, {DType::F8_E4M3, "F8_E4M3", 1},
    {DType::F8_E8M0, "F8_E8M0", 1}};

const DTypeEntry& entry_of(DType dtype) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.dtype == dtype) return entry;
  }
  throw std::invalid_argument("unknown element type number " + std::to_string(static_cast<int>(dtype)));
}

// All threads convert large tensors in chunks of this many elements. Below it a thread team costs more than the
// conversion. Elements are independent, so the split changes no bit.
constexpr int64_t kChunk = int64_t{1} << 16;

// Sources lie at any address of a mapped file, hence memcpy throughout.
void f64_to_floats(const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, source + 8 * i, 8);
    out[i] = static_cast<float>(value);
  }
}

void floats_to_bf16(const float* source, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = float_to_bf16(source[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

// Scales of blocks: there are few of them.
void bytes_to_floats(float (*convert)(uint8_t), const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = convert(std::to_integer<uint8_t>(source[i]));
}

void floats_to_bytes(uint8_t (*convert)(float), const float* source, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(convert(source[i]));
}

void convert_chunk_to_float(DType dtype, const std::byte* source, int64_t count, float* out) {
  if (dtype == DType::F32) std::memcpy(out, source, static_cast<size_t>(count) * 4);
  if (dtype == DType::BF16) bf16_to_floats(source, count, out);
  if (dtype == DType::F16) f16_to_floats(source, count, out);
  if (dtype == DType::F64) f64_to_floats(source, count, out);
  if (dtype == DType::F8_E4M3) bytes_to_floats(fp8_to_float, source, count, out);
  if (dtype == DType::F8_E8M0) bytes_to_floats(e8m0_to_float, source, count, out);
}

void convert_chunk_from_float(DType dtype, const float* source, int64_t count, std::byte* out) {
  if (dtype == DType::F32) std::memcpy(out, source, static_cast<size_t>(count) * 4);
  if (dtype == DType::BF16) floats_to_bf16(source, count, out);
  if (dtype == DType::F16) floats_to_f16(source, count, out);
  if (dtype == DType::F8_E4M3) floats_to_bytes(float_to_fp8, source, count, out);
  if (dtype == DType::F8_E8M0) floats_to_bytes(float_to_e8m0, source, count, out);
}

bool is_small_float(DType dtype) {
  return dtype == DType::F8_E4M3 || dtype == DType::F8_E8M0;
}

void check_sizes(DType dtype, size_t num_bytes, size_t num_elements) {
  const size_t expected_bytes = num_elements * dtype_size_bytes(dtype);
  if (num_bytes == expected_bytes) return;
  throw std::invalid_argument("conversion of " + std::to_string(num_elements) + " elements of " +
                              std::string(dtype_name(dtype)) + ": expected " + std::to_string(expected_bytes) +
                              " bytes, found " + std::to_string(num_bytes));
}

}  // namespace

size_t dtype_size_bytes(DType dtype) {
  return entry_of(dtype).size_bytes;
}

std::string_view dtype_name(DType dtype) {
  return entry_of(dtype).name;
}

std::span<const EnumName<DType>> enum_names(DType) {
  static const std::vector<EnumName<DType>> kNames = [] {
    std::vector<EnumName<DType>> names;
    for (const DTypeEntry& entry : kDTypes) names.push_back({entry.dtype, entry.name});
    return names;
  }();
  return kNames;
}

DType parse_dtype(std::string_view safetensors_name) {
  std::string known;
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.name == safetensors_name) return entry.dtype;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw std::invalid_argument("element type '" + visible_line(safetensors_name.substr(0, 40)) +
                              "' is not supported; expected one of " + known);
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A NaN whose payload lies in the lower half would round to infinity, so it becomes a quiet NaN instead.
  const uint16_t quiet_nan = static_cast<uint16_t>(bits >> 16 | 0x40u);
  const uint32_t round_to_even = 0x7fffu + (bits >> 16 & 1u);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return is_nan ? quiet_nan : static_cast<uint16_t>((bits + round_to_even) >> 16);
}

uint8_t float_to_fp8(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude >= std::bit_cast<uint32_t>(kLargestFp8)) return sign | 0x7e;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: the pattern counts multiples of 2^-9. Adding 1.5 * 2^14, whose ulp is 2^-9, rounds to one of them.
    const float rounded = std::bit_cast<float>(magnitude) + 0x1.8p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) & 0xfu));
  }
  // This drops 20 bits of mantissa and changes the exponent's bias from 127 to 7. A carry out of the mantissa gives the
  // next exponent.
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23);
  return static_cast<uint8_t>(sign | std::min(rounded >> 20, 0x7eu));
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 0xff) return std::bit_cast<float>(0x7fc00000u);
  // The smallest is a subnormal float32.
  return std::bit_cast<float>(bits == 0 ? 0x400000u : static_cast<uint32_t>(bits) << 23);
}

uint8_t float_to_e8m0(float value) {
  if (!(value >= 0.0f)) return 0xff;
  // Below 2^-126 the exponent's bits are 0, as those of 2^-127.
  return static_cast<uint8_t>(std::min((std::bit_cast<uint32_t>(value) & 0x7fffffffu) >> 23, 0xfeu));
}

float round_to(float value, DType dtype) {
  if (dtype == DType::F32) return value;
  if (dtype == DType::BF16) return bf16_to_float(float_to_bf16(value));
  if (dtype == DType::F16) return f16_to_float(float_to_f16(value));
  if (dtype == DType::F8_E4M3) return fp8_to_float(float_to_fp8(value));
  if (dtype == DType::F8_E8M0) return e8m0_to_float(float_to_e8m0(value));
  throw std::invalid_argument("round_to: expected F32, F16, BF16, F8_E4M3 or F8_E8M0, found " +
                              std::string(dtype_name(dtype)));
}

void convert_to_float(DType dtype, std::span<const std::byte> source, std::span<float> out) {
  if (!is_float_dtype(dtype) && dtype != DType::F64 && !is_small_float(dtype)) {
    throw std::invalid_argument("conversion to float32: expected F32, F16, BF16, F64, F8_E4M3 or F8_E8M0, found " +
                                std::string(dtype_name(dtype)));
  }
  check_sizes(dtype, source.size(), out.size());
  const int64_t size_bytes = static_cast<int64_t>(dtype_size_bytes(dtype));
  const int64_t count = static_cast<int64_t>(out.size());
#pragma omp parallel for if (count > 4 * kChunk)
  for (int64_t first = 0; first < count; first += kChunk) {
    convert_chunk_to_float(dtype, source.data() + first * size_bytes, std::min(kChunk, count - first),
                           out.data() + first);
  }
}

void convert_from_float(DType dtype, std::span<const float> source, std::span<std::byte> out) {
  if (!is_float_dtype(dtype) && !is_small_float(dtype)) {
    throw std::invalid_argument("conversion from float32: expected F32, F16, BF16, F8_E4M3 or F8_E8M0, found " +
                                std::string(dtype_name(dtype)));
  }
  check_sizes(dtype, out.size(), source.size());
  const int64_t size_bytes = static_cast<int64_t>(dtype_size_bytes(dtype));
  const int64_t count = static_cast<int64_t>(source.size());
#pragma omp parallel for if (count > 4 * kChunk)
  for (int64_t first = 0; first < count; first += kChunk) {
    convert_chunk_from_float(dtype, source.data() + first, std::min(kChunk, count - first),
                             out.data() + first * size_bytes);
  }
}

}  // namespace pare::runtime
