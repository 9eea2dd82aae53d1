// Converts stored words to float32 weights, exactly as runtime/format dequantizes them.
#pragma once

#include "runtime/cuda/device.cuh"
#include "runtime/cuda/weight_view.h"

namespace pare::runtime {

// Exact, also for subnormals, infinities and NaN.
__device__ inline float float_of_half(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

__device__ inline float float_of_bfloat(uint32_t bits) {
  return __uint_as_float(bits << 16);
}

// E4M3 without infinities: 0x7F and 0xFF are NaN.
__device__ inline float float_of_fp8(uint32_t bits) {
  const uint32_t exponent = bits >> 3 & 0xFu, mantissa = bits & 7u;
  float magnitude = 0.0f;
  if ((bits & 0x7Fu) == 0x7Fu) {
    magnitude = __uint_as_float(0x7FC00000u);
  } else if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    magnitude = __uint_as_float((exponent + 120) << 23 | mantissa << 20);
  }
  return (bits & 0x80u) != 0 ? -magnitude : magnitude;
}

// Returns the bits of weight `index` of a word.
template <StoredAs kStored>
__device__ uint32_t code_in_word(uint32_t word, int index) {
  constexpr int kBits = bits_of(kStored);
  if constexpr (kBits == 32) return word;
  return word >> (place_in_word(kStored, index) * kBits) & ((1u << kBits % 32) - 1);
}

// The scale and zero of a weight's group.
struct GroupGrid {
  float scale;
  int32_t zero;
};
__device__ inline GroupGrid group_grid_at(const WeightView& weight, int64_t out, int64_t group) {
  const int64_t place = out * weight.num_groups + group;
  return {weight.scales_OG[place],
          weight.zeros_OG != nullptr ? static_cast<int32_t>(weight.zeros_OG[place]) : weight.symmetric_zero};
}
// A column after the last one has the grid of the last group.
__device__ inline GroupGrid group_grid(const WeightView& weight, int64_t out, int64_t column) {
  const int64_t last = weight.num_in - 1, known = column < last ? column : last;
  return group_grid_at(weight, out,
                       weight.group_of_I != nullptr
                           ? weight.group_of_I[known]
                           : static_cast<uint32_t>(known) / static_cast<uint32_t>(weight.group_size));
}

// Returns a stored weight in units of its scale: code - zero for codes, otherwise the value. It is exact: a code below
// 2^23 is the lowest bits of 2^23 + code.
template <StoredAs kStored>
__device__ float unit_of(const WeightView& weight, uint32_t code, int32_t zero) {
  if constexpr (kStored == StoredAs::f32) {
    return __uint_as_float(code);
  } else if constexpr (kStored == StoredAs::f16) {
    return float_of_half(code);
  } else if constexpr (kStored == StoredAs::bf16) {
    return float_of_bfloat(code);
  } else if constexpr (kStored == StoredAs::fp8) {
    return float_of_fp8(code);
  } else if constexpr (kStored == StoredAs::table4) {
    return weight.values[code];
  } else {
    return __uint_as_float(0x4B000000u | code) - (8388608.0f + static_cast<float>(zero));
  }
}

// True for weights whose groups have a scale.
constexpr bool has_scales(StoredAs stored) {
  return stored != StoredAs::f32 && stored != StoredAs::f16 && stored != StoredAs::bf16;
}

template <StoredAs kStored>
__device__ float stored_weight_at(const WeightView& weight, int64_t out, int64_t column) {
  constexpr int kPerWord = weights_per_word(kStored);
  int64_t place = column;  // the weight's place in the row
  if (weight.places != nullptr) {
    const uint32_t quad =
        weight.places[out * (weight.row_words * kPerWord / 4) + column / 8] >> column / 4 % 2 * 4 & 0xFu;
    const auto wanted = static_cast<uint32_t>(column % 4);
    if (wanted != (quad & 3u) && wanted != quad >> 2) return 0.0f;
    place = column / 4 * 2 + (wanted == (quad & 3u) ? 0 : 1);
  }
  const uint32_t word = weight.words[out * weight.row_words + place / kPerWord];
  const uint32_t code = code_in_word<kStored>(word, static_cast<int>(place % kPerWord));
  if constexpr (!has_scales(kStored)) return unit_of<kStored>(weight, code, 0);
  const GroupGrid grid = group_grid(weight, out, column);
  return grid.scale * unit_of<kStored>(weight, code, grid.zero);
}

// W[out, column].
__device__ inline float weight_at(const WeightView& weight, int64_t out, int64_t column) {
  switch (weight.stored) {
    case StoredAs::f32:
      return stored_weight_at<StoredAs::f32>(weight, out, column);
    case StoredAs::f16:
      return stored_weight_at<StoredAs::f16>(weight, out, column);
    case StoredAs::bf16:
      return stored_weight_at<StoredAs::bf16>(weight, out, column);
    case StoredAs::code8:
      return stored_weight_at<StoredAs::code8>(weight, out, column);
    case StoredAs::code4:
      return stored_weight_at<StoredAs::code4>(weight, out, column);
    case StoredAs::code3:
      return stored_weight_at<StoredAs::code3>(weight, out, column);
    case StoredAs::code2:
      return stored_weight_at<StoredAs::code2>(weight, out, column);
    case StoredAs::fp8:
      return stored_weight_at<StoredAs::fp8>(weight, out, column);
    case StoredAs::table4:
      return stored_weight_at<StoredAs::table4>(weight, out, column);
  }
  return 0.0f;
}

}  // namespace pare::runtime
