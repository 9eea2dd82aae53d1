// Decides on the device which tokens go to which experts.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kRouteThreads = 128;
constexpr int kAssignThreads = 256;

// Each thread routes one row, in float32 and in ascending order of experts, as engine/routing.cpp does. The k largest
// are taken one by one; then they are listed by ascending index.
__global__ void route_kernel(const float* logits_RE, int64_t num_rows, int64_t num_experts, int64_t num_chosen,
                             bool normalizes, int32_t* experts_RK, float* weights_RK) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= num_rows) return;
  const float* const logits_E = logits_RE + row * num_experts;
  int32_t* const experts_K = experts_RK + row * num_chosen;
  float* const weights_K = weights_RK + row * num_chosen;
  float largest = logits_E[0], sum = 0.0f;
  for (int64_t e = 1; e < num_experts; ++e) largest = largest < logits_E[e] ? logits_E[e] : largest;
  for (int64_t e = 0; e < num_experts; ++e) sum += expf(logits_E[e] - largest);

  float divisor = 0.0f;
  for (int64_t k = 0; k < num_chosen; ++k) {
    int32_t best = -1;
    float best_probability = 0.0f;
    for (int64_t e = 0; e < num_experts; ++e) {
      bool is_taken = false;
      for (int64_t before = 0; before < k; ++before) is_taken = is_taken || experts_K[before] == e;
      const float probability = expf(logits_E[e] - largest) / sum;
      if (is_taken || (best >= 0 && !(probability > best_probability))) continue;
      best = static_cast<int32_t>(e);
      best_probability = probability;
    }
    experts_K[k] = best;
    weights_K[k] = best_probability;
    divisor += best_probability;
  }
  for (int64_t k = 1; k < num_chosen; ++k) {  // insertion sort by index
    const int32_t expert = experts_K[k];
    const float weight = weights_K[k];
    int64_t place = k;
    for (; place > 0 && experts_K[place - 1] > expert; --place) {
      experts_K[place] = experts_K[place - 1];
      weights_K[place] = weights_K[place - 1];
    }
    experts_K[place] = expert;
    weights_K[place] = weight;
  }
  for (int64_t k = 0; k < num_chosen && normalizes; ++k) weights_K[k] /= divisor;
}

// One block computes counts, a running sum, then each expert's places in their order. A thread has whole experts.
__global__ void assign_slots_kernel(const int32_t* experts_RK, int64_t num_places, int64_t num_chosen,
                                    int64_t num_experts, int32_t* first_slot_E1, int32_t* slots_RK, int32_t* rows_S) {
  for (int64_t e = threadIdx.x; e < num_experts; e += blockDim.x) {
    int32_t count = 0;
    for (int64_t p = 0; p < num_places; ++p) count += experts_RK[p] == e ? 1 : 0;
    first_slot_E1[e + 1] = count;
  }
  if (threadIdx.x == 0) first_slot_E1[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int64_t e = 0; e < num_experts; ++e) first_slot_E1[e + 1] += first_slot_E1[e];
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < num_experts; e += blockDim.x) {
    int32_t slot = first_slot_E1[e];
    for (int64_t p = 0; p < num_places; ++p) {
      if (experts_RK[p] != e) continue;
      rows_S[slot] = static_cast<int32_t>(p / num_chosen);
      slots_RK[p] = slot++;
    }
  }
}

// Returns the first of the slots [begin, end) whose row is at least `row`; rows ascend.
__device__ int32_t first_slot_of(const int32_t* rows_S, int32_t begin, int32_t end, int64_t row) {
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (rows_S[middle] < row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Each thread computes one sequence. Block (x: sequences, y: expert).
__global__ void expert_sequences_kernel(const Sequence* sequences_N, int64_t num_sequences, const int32_t* rows_S,
                                        const int32_t* first_slot_E1, Sequence* expert_sequences_EN) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, expert = blockIdx.y;
  if (n >= num_sequences) return;
  const Sequence sequence = sequences_N[n];
  const int32_t begin = first_slot_E1[expert], end = first_slot_E1[expert + 1];
  const int32_t first = first_slot_of(rows_S, begin, end, sequence.first_row);
  const int32_t behind = first_slot_of(rows_S, first, end, sequence.first_row + sequence.num_rows);
  expert_sequences_EN[expert * num_sequences + n] = {first, behind - first, 0, 0};
}

}  // namespace

void launch_route(cudaStream_t stream, const float* logits_RE, int64_t num_rows, int64_t num_experts,
                  const RoutingDescription& routing, int32_t* experts_RK, float* weights_RK) {
  if (num_rows == 0) return;
  launch(route_kernel, dim3(static_cast<unsigned>((num_rows + kRouteThreads - 1) / kRouteThreads)), dim3(kRouteThreads),
         0, stream, logits_RE, num_rows, num_experts, routing.experts_per_token, routing.normalizes_top_weights,
         experts_RK, weights_RK);
}

void launch_assign_slots(cudaStream_t stream, const int32_t* experts_RK, int64_t num_rows, int64_t num_chosen,
                         int64_t num_experts, int32_t* first_slot_E1, int32_t* slots_RK, int32_t* rows_S) {
  launch(assign_slots_kernel, dim3(1), dim3(kAssignThreads), 0, stream, experts_RK, num_rows * num_chosen, num_chosen,
         num_experts, first_slot_E1, slots_RK, rows_S);
}

void launch_expert_sequences(cudaStream_t stream, const Sequences& sequences, const int32_t* rows_S,
                             const int32_t* first_slot_E1, int64_t num_experts, Sequence* expert_sequences_EN) {
  const auto num_sequences = static_cast<int64_t>(sequences.table.size());
  if (num_sequences == 0) return;
  launch(expert_sequences_kernel,
         dim3(static_cast<unsigned>((num_sequences + kRouteThreads - 1) / kRouteThreads),
              static_cast<unsigned>(num_experts)),
         dim3(kRouteThreads), 0, stream, sequences.table.data(), num_sequences, rows_S, first_slot_E1,
         expert_sequences_EN);
}

}  // namespace pare::runtime
