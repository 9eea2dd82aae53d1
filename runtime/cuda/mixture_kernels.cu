// Decides on the device which tokens go to which experts.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kRouteThreads = 128;
constexpr int kAssignThreads = 256;

// The scores of one row.
struct RowScores {
  const float* logits_E;
  const float* correction_E;  // null: none
  RouterScores kind;
  float largest, sum;  // of a softmax

  __device__ float score(int64_t e) const {
    return kind == RouterScores::sigmoid ? 1.0f / (1.0f + expf(-logits_E[e])) : expf(logits_E[e] - largest) / sum;
  }
  __device__ float corrected(int64_t e) const {
    return correction_E == nullptr ? score(e) : score(e) + correction_E[e];
  }
};

__device__ RowScores scores_of(const float* logits_E, const float* correction_E, int64_t num_routed,
                               RouterScores kind) {
  RowScores scores = {logits_E, correction_E, kind, logits_E[0], 0.0f};
  if (kind == RouterScores::sigmoid) return scores;
  for (int64_t e = 1; e < num_routed; ++e) scores.largest = scores.largest < logits_E[e] ? logits_E[e] : scores.largest;
  for (int64_t e = 0; e < num_routed; ++e) scores.sum += expf(logits_E[e] - scores.largest);
  return scores;
}

// The sum of the one or two largest corrected scores of a group.
__device__ float group_sum(const RowScores& scores, int64_t first, int64_t size, int num_group_scores) {
  float best = scores.corrected(first), second = scores.corrected(first + 1);
  if (best < second) {
    const float swapped = best;
    best = second;
    second = swapped;
  }
  for (int64_t e = first + 2; e < first + size; ++e) {
    const float score = scores.corrected(e);
    if (score > best) {
      second = best;
      best = score;
    } else if (score > second) {
      second = score;
    }
  }
  return num_group_scores == 1 ? best : best + second;
}

// Returns the groups that the row's experts may be of, a bit for each. Sums are computed anew for each of them: an
// array of them would lie in local memory.
__device__ uint64_t best_groups(const RowScores& scores, int64_t num_routed, const RoutingDescription& routing) {
  if (routing.num_groups == 1) return 1;
  const int64_t size = num_routed / routing.num_groups;
  uint64_t taken = 0;
  for (int64_t k = 0; k < routing.groups_per_token; ++k) {
    int64_t best = -1;
    float best_sum = 0.0f;
    for (int64_t g = 0; g < routing.num_groups; ++g) {
      if ((taken >> g & 1) != 0) continue;
      const float sum = group_sum(scores, g * size, size, routing.num_group_scores);
      if (best >= 0 && !(sum > best_sum)) continue;
      best = g;
      best_sum = sum;
    }
    taken |= uint64_t{1} << best;
  }
  return taken;
}

__device__ void sort_by_index(int32_t* experts_K, float* weights_K, int64_t num_chosen) {
  for (int64_t k = 1; k < num_chosen; ++k) {  // insertion sort
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
}

// Each thread routes one row, in float32 and in ascending order of experts, as engine/routing.cpp does. The largest are
// taken one by one; then they are listed by ascending index.
__global__ void route_kernel(const float* logits_RL, const float* correction_E, int64_t num_rows, int64_t num_routed,
                             int64_t num_logits, RoutingDescription routing, int32_t* experts_RK, float* weights_RK) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= num_rows) return;
  const float* const logits_L = logits_RL + row * num_logits;
  int32_t* const experts_K = experts_RK + row * routing.experts_per_token;
  float* const weights_K = weights_RK + row * routing.experts_per_token;
  const RowScores scores = scores_of(logits_L, correction_E, num_routed, routing.scores);
  const uint64_t groups = best_groups(scores, num_routed, routing);
  const int64_t group_size = num_routed / routing.num_groups;
  const int64_t num_chosen = routing.experts_per_token - (routing.has_shared ? 1 : 0);

  float divisor = 0.0f;
  for (int64_t k = 0; k < num_chosen; ++k) {
    int32_t best = -1;
    float best_score = 0.0f;
    for (int64_t e = 0; e < num_routed; ++e) {
      bool is_taken = (groups >> (e / group_size) & 1) == 0;
      for (int64_t before = 0; before < k; ++before) is_taken = is_taken || experts_K[before] == e;
      const float score = scores.corrected(e);
      if (is_taken || (best >= 0 && !(score > best_score))) continue;
      best = static_cast<int32_t>(e);
      best_score = score;
    }
    experts_K[k] = best;
    weights_K[k] = scores.score(best);
    divisor += weights_K[k];
  }
  sort_by_index(experts_K, weights_K, num_chosen);
  if (!routing.normalizes_top_weights) divisor = 1.0f;
  if (routing.normalizes_top_weights && divisor < routing.smallest_sum) divisor = routing.smallest_sum;
  for (int64_t k = 0; k < num_chosen; ++k) weights_K[k] = weights_K[k] / divisor * routing.weight_factor;
  if (!routing.has_shared) return;
  experts_K[num_chosen] = static_cast<int32_t>(num_routed);
  weights_K[num_chosen] = routing.weighs_shared ? 1.0f / (1.0f + expf(-logits_L[num_routed])) : 1.0f;
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

void launch_route(cudaStream_t stream, const RouterLogits& logits, int64_t num_rows, int64_t num_experts,
                  const RoutingDescription& routing, int32_t* experts_RK, float* weights_RK) {
  if (num_rows == 0) return;
  launch(route_kernel, dim3(static_cast<unsigned>((num_rows + kRouteThreads - 1) / kRouteThreads)), dim3(kRouteThreads),
         0, stream, logits.logits_RL, logits.correction_E, num_rows, routing.num_routed(num_experts),
         routing.num_logits(num_experts), routing, experts_RK, weights_RK);
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
