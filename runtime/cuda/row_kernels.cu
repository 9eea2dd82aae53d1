// Operations on rows: norms, activations, copies and weighted sums. A block computes a row and rounds it for the linear
// that reads it.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/quads.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kRowThreads = 256;

__device__ float inverse_rms(const float* row_D, int64_t width, float epsilon, float* scratch_W) {
  float squares = 0.0f;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    const Quad quad = load_quad(row_D, i, width);
    for (const float value : quad.at) squares = fmaf(value, value, squares);
  }
  const float sum = block_sum(squares, scratch_W);
  return 1.0f / sqrtf(sum / static_cast<float>(width) + epsilon);
}

__device__ float row_mean(const float* values_D, int64_t width, float* scratch_W) {
  float sum = 0.0f;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    const Quad quad = load_quad(values_D, i, width);
    for (const float value : quad.at) sum += value;
  }
  return block_sum(sum, scratch_W) / static_cast<float>(width);
}

// The variance is taken from differences with the mean, so that nothing cancels.
__device__ float inverse_deviation(const float* values_D, float mean, int64_t width, float epsilon, float* scratch_W) {
  float squares = 0.0f;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    const Quad quad = load_quad(values_D, i, width);
    for (int n = 0; n < kQuad; ++n) {
      const float difference = i + n < width ? quad.at[n] - mean : 0.0f;
      squares = fmaf(difference, difference, squares);
    }
  }
  const float variance = block_sum(squares, scratch_W) / static_cast<float>(width);
  return 1.0f / sqrtf(epsilon + variance);
}

__device__ Quad scaled(Quad x, float factor, const Quad& gain) {
  for (int n = 0; n < kQuad; ++n) x.at[n] = x.at[n] * factor * gain.at[n];
  return x;
}

__global__ void add_norm_kernel(float* hidden_RD, const float* delta_RD, NormView delta_norm, NormView norm,
                                int64_t width, RoundingTarget target, RoundedRows x) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x;
  float* const hidden_D = hidden_RD + row * width;
  if (delta_RD != nullptr) {
    const float* const delta_D = delta_RD + row * width;
    const bool normalizes = delta_norm.gain_D != nullptr;
    const float factor = normalizes ? inverse_rms(delta_D, width, delta_norm.epsilon, scratch_W) : 1.0f;
    for (int64_t i = first_quad(); i < width; i += quad_step()) {
      Quad hidden = load_quad(hidden_D, i, width);
      Quad delta = load_quad(delta_D, i, width);
      if (normalizes) delta = scaled(delta, factor, load_quad(delta_norm.gain_D, i, width));
      for (int n = 0; n < kQuad; ++n) hidden.at[n] += delta.at[n];
      store_quad(hidden_D, i, width, hidden);
    }
  }
  if (norm.gain_D == nullptr) return;
  // Each thread reads back only what it wrote itself.
  if (norm.centers) {
    const float mean = row_mean(hidden_D, width, scratch_W);
    const float factor = inverse_deviation(hidden_D, mean, width, norm.epsilon, scratch_W);
    write_row(target, x, row, width, scratch_W, [&](int64_t i) {
      Quad quad = load_quad(hidden_D, i, width);
      const Quad gain = load_quad(norm.gain_D, i, width);
      const Quad bias = norm.bias_D != nullptr ? load_quad(norm.bias_D, i, width) : Quad{};
      for (int n = 0; n < kQuad; ++n) quad.at[n] = fmaf((quad.at[n] - mean) * factor, gain.at[n], bias.at[n]);
      return quad;
    });
    return;
  }
  const float factor = inverse_rms(hidden_D, width, norm.epsilon, scratch_W);
  write_row(target, x, row, width, scratch_W,
            [&](int64_t i) { return scaled(load_quad(hidden_D, i, width), factor, load_quad(norm.gain_D, i, width)); });
}

__global__ void copy_rows_kernel(const float* hidden_RD, int64_t width, RoundingTarget target, RoundedRows x) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x;
  write_row(target, x, row, width, scratch_W, [&](int64_t i) { return load_quad(hidden_RD + row * width, i, width); });
}

__global__ void scale_kernel(float* x, int64_t size, float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * quad_step() + first_quad();
  if (i >= size) return;
  Quad quad = load_quad(x, i, size);
  for (float& value : quad.at) value *= factor;
  store_quad(x, i, size, quad);
}

__global__ void norm_columns_kernel(float* x, int64_t row_width, int64_t first, NormView norm, int64_t width) {
  SHARED_ARRAY(float, scratch_W, kMaxWarps);
  float* const columns = x + static_cast<int64_t>(blockIdx.x) * row_width + first;
  const float factor = inverse_rms(columns, width, norm.epsilon, scratch_W);
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    store_quad(columns, i, width, scaled(load_quad(columns, i, width), factor, load_quad(norm.gain_D, i, width)));
  }
}

// The variance is taken from differences with the mean, in a second pass, so that nothing cancels.
__global__ void add_layer_norm_kernel(float* hidden_RD, const float* delta_RD, NormView norm, int64_t width,
                                      RoundingTarget target, RoundedRows x) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x;
  float* const hidden_D = hidden_RD + row * width;
  float sum = 0.0f;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    Quad hidden = load_quad(hidden_D, i, width);
    const Quad delta = delta_RD != nullptr ? load_quad(delta_RD + row * width, i, width) : Quad{};
    for (int n = 0; n < kQuad; ++n) {
      hidden.at[n] += delta.at[n];
      sum += hidden.at[n];
    }
    store_quad(hidden_D, i, width, hidden);
  }
  const float mean = block_sum(sum, scratch_W) / static_cast<float>(width);
  float squares = 0.0f;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    const Quad hidden = load_quad(hidden_D, i, width);
    for (int n = 0; n < kQuad; ++n) {
      const float difference = i + n < width ? hidden.at[n] - mean : 0.0f;
      squares = fmaf(difference, difference, squares);
    }
  }
  const float variance = block_sum(squares, scratch_W) / static_cast<float>(width);
  const float factor = 1.0f / sqrtf(variance + norm.epsilon);
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    Quad hidden = load_quad(hidden_D, i, width);
    const Quad gain = load_quad(norm.gain_D, i, width), bias = load_quad(norm.bias_D, i, width);
    for (int n = 0; n < kQuad; ++n) hidden.at[n] = (hidden.at[n] - mean) * factor * gain.at[n] + bias.at[n];
    store_quad(hidden_D, i, width, hidden);
  }
  if (x.x_RI == nullptr) return;
  write_row(target, x, row, width, scratch_W, [&](int64_t i) { return load_quad(hidden_D, i, width); });
}

__device__ float activated(float g, Activation activation) {
  constexpr float kSqrtHalf = 0.70710678118654752f, kSqrtTwoOverPi = 0.79788456080286536f;
  switch (activation) {
    case Activation::silu:
      return g / (1.0f + expf(-g));
    case Activation::gelu:
      return 0.5f * g * (1.0f + erff(g * kSqrtHalf));
    case Activation::gelu_tanh:
      return 0.5f * g * (1.0f + tanhf(kSqrtTwoOverPi * (g + 0.044715f * g * g * g)));
    case Activation::relu:
      return g < 0.0f ? 0.0f : g;
    case Activation::clamped_swiglu:
      break;  // no function of the gate alone
  }
  return 0.0f;
}

__device__ float clamped_swiglu(float gate, float up) {
  // Comparisons that are false for a NaN, so that it stays one.
  const float g = gate > kSwigluLimit ? kSwigluLimit : gate;
  const float u = up > kSwigluLimit ? kSwigluLimit : up < -kSwigluLimit ? -kSwigluLimit : up;
  return (u + 1.0f) * g / (1.0f + expf(-kSwigluSlope * g));
}

__global__ void activate_kernel(const float* y, Activation activation, bool gated, int64_t width_F,
                                RoundingTarget target, RoundedRows z) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x;
  const float* const gate_F = y + row * width_F * (gated ? 2 : 1);
  write_row(target, z, row, width_F, scratch_W, [&](int64_t f) {
    Quad quad = load_quad(gate_F, f, width_F);
    const Quad up = gated ? load_quad(gate_F + width_F, f, width_F) : Quad{};
    if (activation == Activation::clamped_swiglu) {
      for (int n = 0; n < kQuad; ++n) quad.at[n] = clamped_swiglu(quad.at[n], up.at[n]);
      return quad;
    }
    for (float& value : quad.at) value = activated(value, activation);
    for (int n = 0; gated && n < kQuad; ++n) quad.at[n] *= up.at[n];
    return quad;
  });
}

__global__ void take_columns_kernel(const float* x, int64_t row_width, ColumnParts columns, RoundingTarget target,
                                    RoundedRows y) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x, width = columns.width * columns.count;
  const float* const x_C = x + row * row_width;
  write_row(target, y, row, width, scratch_W, [&](int64_t i) {
    Quad quad = {};
    for (int n = 0; n < kQuad; ++n) {
      const int64_t at = i + n;
      if (at < width) quad.at[n] = x_C[columns.first + at / columns.width * columns.stride + at % columns.width];
    }
    return quad;
  });
}

__global__ void join_latents_kernel(LatentRows rows, LatentShape shape, const int32_t* channels_K, float* qkv_RC) {
  const int64_t row = blockIdx.x, size = shape.head_size, num_kept = size - shape.num_rotated;
  const int64_t width = shape.num_heads * size, kv_size = num_kept + shape.value_size;
  const float* const rotated = rows.rotated_RJ + row * rows.rotated_stride;
  float* const out_C = qkv_RC + row * 3 * width;
  for (int64_t place = threadIdx.x; place < width; place += blockDim.x) {
    const int64_t head = place / size, i = place % size, channel = channels_K[i];
    const float* const kv = rows.kv_RHC + (row * shape.num_heads + head) * kv_size;
    out_C[place] = rows.q_RHK[row * rows.q_stride + head * size + channel];
    out_C[width + place] = channel < num_kept ? kv[channel] : rotated[channel - num_kept];
    out_C[2 * width + place] = i < shape.value_size ? kv[num_kept + i] : 0.0f;
  }
}

__global__ void gather_kernel(const float* x_RD, const int32_t* rows_S, int64_t width, RoundingTarget target,
                              RoundedRows y) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t slot = blockIdx.x, row = rows_S[slot];
  write_row(target, y, slot, width, scratch_W, [&](int64_t i) { return load_quad(x_RD + row * width, i, width); });
}

__global__ void mix_kernel(const float* x_SD, const int32_t* slots_RK, const float* weights_RK, int64_t num_chosen,
                           int64_t width, float* y_RD) {
  const int64_t row = blockIdx.x;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    Quad sum = {};
    for (int64_t k = row * num_chosen; k < (row + 1) * num_chosen; ++k) {
      const Quad x = load_quad(x_SD + slots_RK[k] * width, i, width);
      for (int n = 0; n < kQuad; ++n) sum.at[n] = fmaf(weights_RK[k], x.at[n], sum.at[n]);
    }
    store_quad(y_RD + row * width, i, width, sum);
  }
}

__global__ void mean_rows_kernel(const float* hidden_RD, const Sequence* sequences_N, int64_t width, float* means_ND) {
  const Sequence sequence = sequences_N[blockIdx.x];
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    Quad sum = {};
    for (int64_t r = 0; r < sequence.num_rows; ++r) {
      const Quad hidden = load_quad(hidden_RD + (sequence.first_row + r) * width, i, width);
      for (int n = 0; n < kQuad; ++n) sum.at[n] += hidden.at[n];
    }
    for (float& value : sum.at) value /= static_cast<float>(sequence.num_rows);
    store_quad(means_ND + static_cast<int64_t>(blockIdx.x) * width, i, width, sum);
  }
}

dim3 rows(int64_t num) {
  return dim3(static_cast<unsigned>(num));
}

}  // namespace

void launch_add_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView delta_norm, NormView norm,
                     int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x) {
  if (num_rows == 0) return;
  launch(add_norm_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, hidden_RD, delta_RD, delta_norm, norm, width,
         target, x);
}

void launch_add_rows(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView delta_norm,
                     int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x) {
  if (num_rows == 0) return;
  launch_add_norm(stream, hidden_RD, delta_RD, delta_norm, {}, num_rows, width, {}, {});
  launch(copy_rows_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, static_cast<const float*>(hidden_RD), width,
         target, x);
}

void launch_scale(cudaStream_t stream, float* x, int64_t size, float factor) {
  if (size == 0) return;
  launch(scale_kernel, rows((size + kRowThreads * kQuad - 1) / (kRowThreads * kQuad)), dim3(kRowThreads), 0, stream, x,
         size, factor);
}

void launch_norm_columns(cudaStream_t stream, float* x, int64_t row_width, int64_t first, NormView norm, int64_t width,
                         int64_t num_rows) {
  if (num_rows == 0) return;
  launch(norm_columns_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, x, row_width, first, norm, width);
}

void launch_add_layer_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView norm,
                           int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x) {
  if (num_rows == 0) return;
  launch(add_layer_norm_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, hidden_RD, delta_RD, norm, width, target,
         x);
}

void launch_activate(cudaStream_t stream, const float* y, Activation activation, bool gated, int64_t num_rows,
                     int64_t width_F, const RoundingTarget& target, const RoundedRows& z) {
  if (num_rows == 0) return;
  launch(activate_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, y, activation, gated, width_F, target, z);
}

void launch_take_columns(cudaStream_t stream, const float* x, int64_t row_width, const ColumnParts& columns,
                         int64_t num_rows, const RoundingTarget& target, const RoundedRows& y) {
  if (num_rows == 0) return;
  launch(take_columns_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, x, row_width, columns, target, y);
}

void launch_join_latents(cudaStream_t stream, const LatentRows& latents, const LatentShape& shape,
                         const int32_t* channels_K, int64_t num_rows, float* qkv_RC) {
  if (num_rows == 0) return;
  launch(join_latents_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, latents, shape, channels_K, qkv_RC);
}

void launch_gather(cudaStream_t stream, const float* x_RD, const int32_t* rows_S, int64_t num_rows, int64_t width,
                   const RoundingTarget& target, const RoundedRows& y) {
  if (num_rows == 0) return;
  launch(gather_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, x_RD, rows_S, width, target, y);
}

void launch_mix(cudaStream_t stream, const float* x_SD, const int32_t* slots_RK, const float* weights_RK,
                int64_t num_rows, int64_t num_chosen, int64_t width, float* y_RD) {
  if (num_rows == 0) return;
  launch(mix_kernel, rows(num_rows), dim3(kRowThreads), 0, stream, x_SD, slots_RK, weights_RK, num_chosen, width, y_RD);
}

void launch_mean_rows(cudaStream_t stream, const float* hidden_RD, const Sequence* sequences_N, int64_t num_sequences,
                      int64_t width, float* means_ND) {
  if (num_sequences == 0) return;
  launch(mean_rows_kernel, rows(num_sequences), dim3(kRowThreads), 0, stream, hidden_RD, sequences_N, width, means_ND);
}

}  // namespace pare::runtime
