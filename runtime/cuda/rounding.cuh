// Rounding of inputs on the device, value for value as runtime/format/input_format.cpp defines it.
#pragma once

#include "runtime/cuda/device.cuh"
#include "runtime/cuda/quads.cuh"
#include "runtime/cuda/rounding_target.h"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {

struct DeviceGrid {
  float scale = 0.0f;
  float zero = 0.0f;  // an integer
};

__device__ inline float not_a_number() {
  return __uint_as_float(0x7FC00000u);
}

__device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u;
}

// 0 and the extremes of the values seen, as input_extremes finds them. is_nan is true once a NaN was seen.
struct DeviceExtremes {
  float low = 0.0f, high = 0.0f;
  bool is_nan = false;

  __device__ void add(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    is_nan = is_nan || x != x;
  }
  // Gives every lane the extremes of all lanes.
  __device__ void join_warp() {
    low = -warp_max(-low);
    high = warp_max(high);
    is_nan = __any_sync(kAllLanes, is_nan) != 0;
  }
  // Gives every thread the extremes of all threads of a block. scratch_W has three places for each warp and is free
  // again afterwards.
  __device__ void join_block(float* scratch_W) {
    join_warp();
    const int warp = static_cast<int>(threadIdx.x) / kWarp, num_warps = static_cast<int>(blockDim.x) / kWarp;
    if (threadIdx.x % kWarp == 0) {
      scratch_W[3 * warp] = low;
      scratch_W[3 * warp + 1] = high;
      scratch_W[3 * warp + 2] = is_nan ? 1.0f : 0.0f;
    }
    __syncthreads();
    for (int w = 0; w < num_warps; ++w) {
      low = fminf(low, scratch_W[3 * w]);
      high = fmaxf(high, scratch_W[3 * w + 1]);
      is_nan = is_nan || scratch_W[3 * w + 2] != 0.0f;
    }
    __syncthreads();
  }
};

// As InputFormat says it.
__device__ inline bool has_stored_scale(const RoundingView& format) {
  return format.range == InputRange::static_ || format.type == InputType::nvfp4;
}

// Returns the least power of two that is not below x, a positive normal number.
__device__ inline float power_of_two_above(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x7FFFFFu) & 0x7F800000u);
}

__device__ inline DeviceGrid input_grid(const RoundingView& format, const DeviceExtremes& extremes) {
  constexpr float kLeastScale = 0x1p-23f, kLeastMagnitude = 1e-4f, kLargestFp8Value = 448.0f;
  if (has_stored_scale(format)) return {format.scale, static_cast<float>(format.zero)};
  if (extremes.is_nan || !is_finite(extremes.low) || !is_finite(extremes.high)) return {not_a_number(), 0.0f};
  DeviceGrid grid;
  if (format.symmetric) {
    const float largest = fmaxf(-extremes.low, extremes.high);
    grid.scale = largest / (format.type == InputType::fp8 ? kLargestFp8Value : 127.5f);
    if (format.power_of_two_scales) {
      grid.scale = power_of_two_above(fmaxf(largest, kLeastMagnitude) / kLargestFp8Value);
    }
  } else {
    grid.scale = (extremes.high - extremes.low) / 255.0f;
    if (grid.scale != 0.0f) {
      grid.zero = rintf(fminf(fmaxf(-128.0f - extremes.low / grid.scale, -128.0f), 127.0f));
    }
  }
  if (!is_finite(grid.scale)) return {not_a_number(), 0.0f};
  if (grid.scale == 0.0f) grid.scale = kLeastScale;
  return grid;
}

// The grid of a row with outlier columns.
__device__ inline DeviceGrid outlier_row_grid(const RoundingView& format, const DeviceExtremes& extremes) {
  if (!format.symmetric) return input_grid(format, extremes);
  const float largest = fmaxf(-extremes.low, extremes.high);
  return {!extremes.is_nan && is_finite(largest) ? largest * (1.0f / 127.0f) : not_a_number(), 0.0f};
}

// Returns a float, since a NaN scale must make any code a NaN.
__device__ inline float input_code(float x, const DeviceGrid& grid) {
  const float scaled = x / grid.scale + grid.zero;
  return rintf(fminf(fmaxf(scaled, -128.0f), 127.0f));
}

// Returns the nearest E4M3 value of a magnitude.
__device__ inline float to_e4m3(float magnitude) {
  if (magnitude != magnitude) return not_a_number();
  const float bounded = fminf(magnitude, 448.0f);
  const uint32_t bits = __float_as_uint(bounded);
  const float normal = __uint_as_float((bits + 0x7FFFFu + (bits >> 20 & 1u)) & 0xFFF00000u);
  const float small = (bounded + 0x1p14f) - 0x1p14f;
  return bounded < 0x1p-6f ? small : normal;
}

// Returns the nearest E2M1 value of a magnitude.
__device__ inline float to_e2m1(float magnitude) {
  if (magnitude != magnitude) return not_a_number();
  const float bounded = fminf(magnitude, 6.0f);
  const uint32_t bits = __float_as_uint(bounded);
  const float normal = __uint_as_float((bits + 0x1FFFFFu + (bits >> 22 & 1u)) & 0xFFC00000u);
  const float small = (bounded + 0x1p22f) - 0x1p22f;
  return bounded < 1.0f ? small : normal;
}

__device__ inline float rounded_to_fp8(float x, const DeviceGrid& grid) {
  const float scaled = x / grid.scale;
  return copysignf(to_e4m3(fabsf(scaled)), scaled) * grid.scale;
}

// Rounds a quad of a block of nvfp4. The block's other quads are those of the neighbouring lanes. All lanes call it.
__device__ inline void round_to_nvfp4(float factor, Quad& quad) {
  constexpr int kQuadsOfBlock = static_cast<int>(kNvfp4Block) / kQuad;
  float largest = 0.0f, has_nan = 0.0f;
  for (const float value : quad.at) {
    largest = fmaxf(largest, fabsf(value));
    if (value != value) has_nan = 1.0f;
  }
  for (int distance = 1; distance < kQuadsOfBlock; distance *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    has_nan = fmaxf(has_nan, __shfl_xor_sync(kAllLanes, has_nan, distance));
  }
  float scale = has_nan != 0.0f ? not_a_number() : to_e4m3(factor * (largest / 6.0f));
  scale = (scale == 0.0f ? 0.125f : scale) / factor;
  for (float& value : quad.at) {
    const float scaled = value / scale + 0.0f;
    value = copysignf(to_e2m1(fabsf(scaled)), scaled) * scale;
  }
}

// Rounds a quad of a block of fp8, whose quads are those of a warp's lanes. All lanes call it.
__device__ inline void round_to_fp8_block(const RoundingView& format, Quad& quad) {
  static_assert(kFp8Block == kWarp * kQuad, "a warp has one block");
  DeviceExtremes extremes;
  for (const float value : quad.at) extremes.add(value);
  extremes.join_warp();
  const DeviceGrid grid = input_grid(format, extremes);
  for (float& value : quad.at) value = rounded_to_fp8(value, grid);
}

__device__ inline float rounded_value(const RoundingView& format, float x, const DeviceGrid& grid) {
  if (format.type == InputType::fp8) return rounded_to_fp8(x, grid);
  return (input_code(x, grid) - grid.zero) * grid.scale;
}

// Drops the values of a quad that are small (InputFormat::sparsity_threshold). 0 drops nothing else than zeros.
__device__ inline Quad without_small(Quad quad, float threshold) {
  for (float& value : quad.at) value = fabsf(value) <= threshold ? 0.0f : value;
  return quad;
}

// Writes quad_at(i), values i to i + 3 of a row on a grid, in the form of the target, with all threads of a block.
template <typename QuadAt>
__device__ void write_on_grid(const RoundingTarget& target, const RoundedRows& rows, int64_t row, int64_t width,
                              const DeviceGrid& grid, const QuadAt& quad_at) {
  const bool has_fp8_blocks = target.format.range == InputRange::block;
  if (target.format.type == InputType::nvfp4 || has_fp8_blocks) {
    for (int64_t first = 0; first < width; first += quad_step()) {  // as often for every lane
      const int64_t i = first + first_quad();
      Quad quad = i < width ? quad_at(i) : Quad{};
      if (has_fp8_blocks) {
        round_to_fp8_block(target.format, quad);
      } else {
        round_to_nvfp4(grid.scale, quad);
      }
      if (i < width) store_quad(rows.x_RI + row * width, i, width, quad);
    }
    return;
  }
  if (!target.as_codes) {
    for (int64_t i = first_quad(); i < width; i += quad_step()) {
      Quad quad = quad_at(i);
      for (float& value : quad.at) value = rounded_value(target.format, value, grid);
      store_quad(rows.x_RI + row * width, i, width, quad);
    }
    return;
  }
  const bool is_nan = grid.scale != grid.scale;
  for (int64_t i = first_quad(); i < rows.code_stride; i += quad_step()) {
    char4 codes = {0, 0, 0, 0};
    if (i < width && !is_nan) {
      const Quad quad = quad_at(i);
      const auto code_of = [&](int n) {
        return i + n < width ? static_cast<int8_t>(input_code(quad.at[n], grid)) : int8_t{0};
      };
      codes = {code_of(0), code_of(1), code_of(2), code_of(3)};
    }
    *reinterpret_cast<char4*>(rows.codes_RS + row * rows.code_stride + i) = codes;
  }
  if (threadIdx.x == 0) {
    rows.scales_R[row] = grid.scale;
    rows.zeros_R[row] = static_cast<int32_t>(grid.zero);
  }
}

// The same for a row whose range is its own or fixed, and for a row that is not rounded, without small values. The same
// thread calls make_quad twice for each quad. make_quad may read what this function overwrites, and returns zeros after
// the row's end. scratch_W is that of join_block.
template <typename MakeQuad>
__device__ void write_row(const RoundingTarget& target, const RoundedRows& rows, int64_t row, int64_t width,
                          float* scratch_W, const MakeQuad& make_quad) {
  const RoundingView& format = target.format;
  const auto quad_at = [&](int64_t i) {
    const Quad quad = make_quad(i);
    return format.sparsity_threshold > 0.0f ? without_small(quad, format.sparsity_threshold) : quad;
  };
  if (!target.is_rowwise()) {
    for (int64_t i = first_quad(); i < width; i += quad_step()) {
      store_quad(rows.x_RI + row * width, i, width, quad_at(i));
    }
    return;
  }
  const bool is_fixed = has_stored_scale(format);
  DeviceExtremes extremes;
  if (format.range == InputRange::block) return write_on_grid(target, rows, row, width, {}, quad_at);
  // A fixed grid of integers cannot represent NaN. So one NaN makes the row NaN, as it does where ranges are found.
  if (!is_fixed || format.type == InputType::int8) {
    for (int64_t i = first_quad(); i < width; i += quad_step()) {
      const Quad quad = quad_at(i);
      for (const float value : quad.at) {
        extremes.add(is_fixed ? value / format.scale + static_cast<float>(format.zero) : value);
      }
    }
    extremes.join_block(scratch_W);
  }
  DeviceGrid grid = input_grid(format, extremes);
  if (is_fixed && extremes.is_nan) grid = {not_a_number(), 0.0f};
  write_on_grid(target, rows, row, width, grid, quad_at);
}

}  // namespace pare::runtime
