// From stored words to float32 weights, exactly as runtime/format dequantizes them.
#pragma once

#include "runtime/cuda/device.cuh"
#include "runtime/cuda/weight_view.h"

namespace pare {

// Exact, subnormals, infinities and NaN included.
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

template <StoredAs kStored>
__device__ uint32_t code_in_word(uint32_t word, int index) {
  constexpr int kBits = kStored == StoredAs::code2                              ? 2
                        : kStored == StoredAs::code3                            ? 3
                        : kStored == StoredAs::code4                            ? 4
                        : kStored == StoredAs::f16 || kStored == StoredAs::bf16 ? 16
                                                                                : 8;
  return word >> (index * kBits) & ((1u << kBits) - 1);
}

// The scale and zero of a weight's group.
struct GroupGrid {
  float scale;
  int32_t zero;
};
__device__ inline GroupGrid group_grid(const WeightView& weight, int64_t out, int64_t column) {
  const int64_t group = weight.group_of_I != nullptr ? weight.group_of_I[column] : column / weight.group_size;
  const int64_t place = out * weight.num_groups + group;
  return {weight.scales_OG[place],
          weight.zeros_OG != nullptr ? static_cast<int32_t>(weight.zeros_OG[place]) : weight.symmetric_zero};
}

template <StoredAs kStored>
__device__ float value_of(uint32_t code, GroupGrid grid) {
  if constexpr (kStored == StoredAs::fp8) return grid.scale * float_of_fp8(code);
  return grid.scale * static_cast<float>(static_cast<int32_t>(code) - grid.zero);
}

// The weights of one word, W[out, first ...]; what lies behind num_in is left alone.
template <StoredAs kStored>
__device__ void expand_word(const WeightView& weight, int64_t out, int64_t first, uint32_t word,
                            float (&values)[weights_per_word(kStored)]) {
  constexpr int kPerWord = weights_per_word(kStored);
  if constexpr (kStored == StoredAs::f32) {
    values[0] = __uint_as_float(word);
  } else if constexpr (kStored == StoredAs::f16 || kStored == StoredAs::bf16) {
    for (int i = 0; i < kPerWord; ++i) {
      const uint32_t bits = code_in_word<kStored>(word, i);
      values[i] = kStored == StoredAs::f16 ? float_of_half(bits) : float_of_bfloat(bits);
    }
  } else {
    if (first >= weight.num_in) return;
    const bool one_group = weight.group_of_I == nullptr && weight.group_size % kPerWord == 0;
    GroupGrid grid = group_grid(weight, out, first);
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      if (first + i >= weight.num_in) break;
      if (!one_group && i > 0) grid = group_grid(weight, out, first + i);
      values[i] = value_of<kStored>(code_in_word<kStored>(word, i), grid);
    }
  }
}

template <StoredAs kStored>
__device__ float stored_weight_at(const WeightView& weight, int64_t out, int64_t column) {
  constexpr int kPerWord = weights_per_word(kStored);
  const uint32_t word = weight.words[out * weight.row_words + column / kPerWord];
  const int index = static_cast<int>(column % kPerWord);
  if constexpr (kStored == StoredAs::f32) {
    return __uint_as_float(word);
  } else if constexpr (kStored == StoredAs::f16) {
    return float_of_half(code_in_word<kStored>(word, index));
  } else if constexpr (kStored == StoredAs::bf16) {
    return float_of_bfloat(code_in_word<kStored>(word, index));
  } else {
    return value_of<kStored>(code_in_word<kStored>(word, index), group_grid(weight, out, column));
  }
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
  }
  return 0.0f;
}

}  // namespace pare
