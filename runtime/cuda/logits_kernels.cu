// Computes losses of rows of logits and compares rows with each other. A block reads a row; sums are float64.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/quads.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kRowThreads = 256;

// Calls visit(value, index) for the logits of a row that fall to this thread, in ascending order.
template <typename Visit>
__device__ void each_logit(const float* logits_V, int64_t num_vocabulary, const Visit& visit) {
  for (int64_t v = first_quad(); v < num_vocabulary; v += quad_step()) {
    const Quad quad = load_quad(logits_V, v, num_vocabulary);
    for (int n = 0; n < kQuad && v + n < num_vocabulary; ++n) visit(quad.at[n], v + n);
  }
}

__device__ float capped(float logit, float softcap) {
  return softcap > 0.0f ? softcap * tanhf(logit / softcap) : logit;
}

struct RowLargest {
  float value;
  int64_t index;  // the lowest among equals
};

// Returns the largest logit in all threads of the block. NaN is never the largest; if all are NaN, the index is -1.
__device__ RowLargest row_largest(const float* logits_V, int64_t num_vocabulary, float softcap, float* values_W,
                                  int64_t* indices_W) {
  RowLargest best = {-__uint_as_float(0x7F800000u), -1};
  const auto take = [&](float value, int64_t index) {
    const bool is_lower = index >= 0 && (best.index < 0 || index < best.index);
    if (value > best.value || (value == best.value && is_lower)) best = {value, index};
  };
  each_logit(logits_V, num_vocabulary, [&](float logit, int64_t v) { take(capped(logit, softcap), v); });
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, best.value, distance);
    const int64_t index = __shfl_xor_sync(kAllLanes, best.index, distance);
    take(value, index);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp, num_warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    values_W[warp] = best.value;
    indices_W[warp] = best.index;
  }
  __syncthreads();
  for (int w = 0; w < num_warps; ++w) take(values_W[w], indices_W[w]);
  __syncthreads();
  return best;
}

__global__ void cross_entropy_kernel(const float* logits_RV, int64_t num_vocabulary, float softcap,
                                     const int32_t* targets_R, float* nll_R, uint8_t* top1_R) {
  SHARED_ARRAY(float, values_W, kMaxWarps);
  SHARED_ARRAY(int64_t, indices_W, kMaxWarps);
  SHARED_ARRAY(double, sums_W, kMaxWarps);
  const int64_t row = blockIdx.x;
  const float* const logits_V = logits_RV + row * num_vocabulary;
  const RowLargest largest = row_largest(logits_V, num_vocabulary, softcap, values_W, indices_W);
  double sum = 0.0;
  each_logit(logits_V, num_vocabulary, [&](float logit, int64_t) {
    sum += exp(static_cast<double>(capped(logit, softcap)) - static_cast<double>(largest.value));
  });
  sum = block_sum(sum, sums_W);
  if (threadIdx.x != 0) return;
  const double target = static_cast<double>(capped(logits_V[targets_R[row]], softcap));
  nll_R[row] = static_cast<float>(log(sum) + static_cast<double>(largest.value) - target);
  top1_R[row] = largest.index == targets_R[row] ? 1 : 0;
}

__global__ void compare_kernel(const float* logits_p_RV, float softcap_p, const float* logits_q_RV, float softcap_q,
                               int64_t num_vocabulary, const int32_t* targets_R, float* kl_R, uint8_t* same_top1_R,
                               float* nll_p_R, float* nll_q_R) {
  SHARED_ARRAY(float, values_W, kMaxWarps);
  SHARED_ARRAY(int64_t, indices_W, kMaxWarps);
  SHARED_ARRAY(double, sums_W, kMaxWarps);
  const int64_t row = blockIdx.x;
  const float* const p_V = logits_p_RV + row * num_vocabulary;
  const float* const q_V = logits_q_RV + row * num_vocabulary;
  const RowLargest largest_p = row_largest(p_V, num_vocabulary, softcap_p, values_W, indices_W);
  const RowLargest largest_q = row_largest(q_V, num_vocabulary, softcap_q, values_W, indices_W);
  const auto shifted_p = [&](float logit) {
    return static_cast<double>(capped(logit, softcap_p)) - static_cast<double>(largest_p.value);
  };
  const auto shifted_q = [&](float logit) {
    return static_cast<double>(capped(logit, softcap_q)) - static_cast<double>(largest_q.value);
  };
  double sum_p = 0.0, sum_q = 0.0;
  each_logit(p_V, num_vocabulary, [&](float logit, int64_t) { sum_p += exp(shifted_p(logit)); });
  each_logit(q_V, num_vocabulary, [&](float logit, int64_t) { sum_q += exp(shifted_q(logit)); });
  const double log_p = log(block_sum(sum_p, sums_W)), log_q = log(block_sum(sum_q, sums_W));
  double kl = 0.0;
  for (int64_t v = first_quad(); v < num_vocabulary; v += quad_step()) {
    const Quad quad_p = load_quad(p_V, v, num_vocabulary), quad_q = load_quad(q_V, v, num_vocabulary);
    for (int n = 0; n < kQuad && v + n < num_vocabulary; ++n) {
      const double log_probability_p = shifted_p(quad_p.at[n]) - log_p;
      const double log_probability_q = shifted_q(quad_q.at[n]) - log_q;
      kl += exp(log_probability_p) * (log_probability_p - log_probability_q);
    }
  }
  kl = block_sum(kl, sums_W);
  if (threadIdx.x != 0) return;
  const int64_t target = targets_R[row];
  kl_R[row] = static_cast<float>(kl);
  same_top1_R[row] = largest_p.index == largest_q.index ? 1 : 0;
  nll_p_R[row] = static_cast<float>(log_p - shifted_p(p_V[target]));
  nll_q_R[row] = static_cast<float>(log_q - shifted_q(q_V[target]));
}

}  // namespace

void launch_cross_entropy(cudaStream_t stream, const float* logits_RV, int64_t num_rows, int64_t num_vocabulary,
                          float softcap, const int32_t* targets_R, float* nll_R, uint8_t* top1_R) {
  if (num_rows == 0) return;
  launch(cross_entropy_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(kRowThreads), 0, stream, logits_RV,
         num_vocabulary, softcap, targets_R, nll_R, top1_R);
}

void launch_compare(cudaStream_t stream, const float* logits_p_RV, float softcap_p, const float* logits_q_RV,
                    float softcap_q, int64_t num_rows, int64_t num_vocabulary, const int32_t* targets_R, float* kl_R,
                    uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) {
  if (num_rows == 0) return;
  launch(compare_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(kRowThreads), 0, stream, logits_p_RV, softcap_p,
         logits_q_RV, softcap_q, num_vocabulary, targets_R, kl_R, same_top1_R, nll_p_R, nll_q_R);
}

}  // namespace pare::runtime
