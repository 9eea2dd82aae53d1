// Operations on rows: norms, activations, copies and weighted sums. A block makes a row, and rounds it for the linear
// that reads it.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/warp_block.cuh"

namespace pare {
namespace {

constexpr int kRowThreads = 256;

__device__ float inverse_rms(const float* row_D, int64_t width, float epsilon, float* scratch_W) {
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) squares = fmaf(row_D[i], row_D[i], squares);
  const float sum = block_sum(squares, scratch_W);
  return 1.0f / sqrtf(sum / static_cast<float>(width) + epsilon);
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
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      hidden_D[i] += normalizes ? delta_D[i] * factor * delta_norm.gain_D[i] : delta_D[i];
    }
  }
  if (norm.gain_D == nullptr) return;
  // Each thread reads back only what it wrote itself.
  const float factor = inverse_rms(hidden_D, width, norm.epsilon, scratch_W);
  write_row(target, x, row, width, scratch_W, [&](int64_t i) { return hidden_D[i] * factor * norm.gain_D[i]; });
}

// The variance from differences with the mean: a second pass, no cancellation.
__global__ void add_layer_norm_kernel(float* hidden_RD, const float* delta_RD, NormView norm, int64_t width,
                                      RoundingTarget target, RoundedRows x) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * width;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    hidden_RD[first + i] += delta_RD[first + i];
    sum += hidden_RD[first + i];
  }
  const float mean = block_sum(sum, scratch_W) / static_cast<float>(width);
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float difference = hidden_RD[first + i] - mean;
    squares = fmaf(difference, difference, squares);
  }
  const float variance = block_sum(squares, scratch_W) / static_cast<float>(width);
  const float factor = 1.0f / sqrtf(variance + norm.epsilon);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    hidden_RD[first + i] = (hidden_RD[first + i] - mean) * factor * norm.gain_D[i] + norm.bias_D[i];
  }
  if (x.x_RI == nullptr) return;
  write_row(target, x, blockIdx.x, width, scratch_W, [&](int64_t i) { return hidden_RD[first + i]; });
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
  }
  return 0.0f;
}

__global__ void activate_kernel(const float* y, Activation activation, bool gated, int64_t width_F,
                                RoundingTarget target, RoundedRows z) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blockIdx.x;
  const float* const gate_F = y + row * width_F * (gated ? 2 : 1);
  write_row(target, z, row, width_F, scratch_W, [&](int64_t f) {
    const float value = activated(gate_F[f], activation);
    return gated ? value * gate_F[width_F + f] : value;
  });
}

__global__ void gather_kernel(const float* x_RD, const int32_t* rows_S, int64_t width, RoundingTarget target,
                              RoundedRows y) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t slot = blockIdx.x, row = rows_S[slot];
  write_row(target, y, slot, width, scratch_W, [&](int64_t i) { return x_RD[row * width + i]; });
}

__global__ void mix_kernel(const float* x_SD, const int32_t* slots_RK, const float* weights_RK, int64_t num_chosen,
                           int64_t width, float* y_RD) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (int64_t k = row * num_chosen; k < (row + 1) * num_chosen; ++k) {
      sum = fmaf(weights_RK[k], x_SD[slots_RK[k] * width + i], sum);
    }
    y_RD[row * width + i] = sum;
  }
}

__global__ void mean_rows_kernel(const float* hidden_RD, const Sequence* sequences_N, int64_t width, float* means_ND) {
  const Sequence sequence = sequences_N[blockIdx.x];
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (int64_t r = 0; r < sequence.num_rows; ++r) sum += hidden_RD[(sequence.first_row + r) * width + i];
    means_ND[static_cast<int64_t>(blockIdx.x) * width + i] = sum / static_cast<float>(sequence.num_rows);
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

}  // namespace pare
