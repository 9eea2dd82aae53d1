// The launches of the CUDA backend's kernels. Pointers are device memory, shapes as Backend's operations state them;
// each is queued on the stream and throws std::runtime_error where the device refuses it (device.cuh). Results do not
// depend on how a launch is cut: every sum has an order that the shape alone decides.
#pragma once

#include <cstdint>

#include "runtime/cuda/device.cuh"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/weight_view.h"
#include "runtime/engine/backend.h"

namespace pare {

// Which rows of x each of several linears multiplies: those of its slots. Slot s reads row rows_S[s] of x (null: row s)
// and writes row s of y.
struct SlotRanges {
  const int32_t* first_slot_E1 = nullptr;  // [num_linears + 1]
  const int32_t* rows_S = nullptr;
};

// y[r, first_out + o] = bias[o] + sum_i W[o, i] x[r, i]; y has out_width columns.
void launch_linear(cudaStream_t stream, const WeightView* weight, int64_t num_out, const float* x_RI, int64_t num_rows,
                   float* y_RO, int64_t out_width, int64_t first_out);
// The same for num_linears of one shape, at most max_rows rows in each one's slots.
void launch_expert_linears(cudaStream_t stream, const WeightView* weights_E, int64_t num_linears, int64_t num_out,
                           const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_SO, int64_t out_width,
                           int64_t first_out);

void launch_embed(cudaStream_t stream, const WeightView* table_VD, const int32_t* ids_R, int64_t num_rows,
                  int64_t width, float scale, float* hidden_RD);
struct NormView {
  const float* gain_D = nullptr;  // null: no norm
  const float* bias_D = nullptr;  // of a LayerNorm
  float epsilon = 0.0f;
};
void launch_add_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView delta_norm, NormView norm,
                     int64_t num_rows, int64_t width, float* x_RD);
void launch_add_layer_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView norm,
                           int64_t num_rows, int64_t width, float* x_RD);
// gated: y rows are F gates, then F ups.
void launch_activate(cudaStream_t stream, const float* y, Activation activation, bool gated, int64_t num_rows,
                     int64_t width_F, float* z_RF);
void launch_gather(cudaStream_t stream, const float* x_RD, const int32_t* rows_S, int64_t num_rows, int64_t width,
                   float* y_SD);
void launch_mix(cudaStream_t stream, const float* x_SD, const int32_t* slots_RK, const float* weights_RK,
                int64_t num_rows, int64_t num_chosen, int64_t width, float* y_RD);
void launch_mean_rows(cudaStream_t stream, const float* hidden_RD, const Sequence* sequences_N, int64_t num_sequences,
                      int64_t width, float* means_ND);

// Rounds x in place, as fake_quantize does: each row alone (or on a fixed grid), or a sequence's rows together.
void launch_round_rows(cudaStream_t stream, const RoundingView& format, float* x_RI, int64_t num_rows, int64_t width);
void launch_round_sequences(cudaStream_t stream, const RoundingView& format, const Sequences& sequences, float* x_RI,
                            int64_t width);
// All but the columns that columns_I marks; all but those in which a sequence has an outlier.
void launch_round_beside_columns(cudaStream_t stream, const RoundingView& format, const uint8_t* columns_I, float* x_RI,
                                 int64_t num_rows, int64_t width);
struct OutlierScratch {
  double* squares_R = nullptr;
  float* limits_N = nullptr;
  uint8_t* columns_NI = nullptr;
};
void launch_round_beside_outliers(cudaStream_t stream, const RoundingView& format, const Sequences& sequences,
                                  float* x_RI, int64_t num_rows, int64_t width, const OutlierScratch& scratch);

// The largest head that rope_store and attention hold in registers.
inline constexpr int64_t kMaxCudaHeadSize = 256;
struct RopeView {
  const float* cosine = nullptr;
  const float* sine = nullptr;
};
void launch_rope_store(cudaStream_t stream, const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm,
                       const AttentionShape& shape, const int32_t* positions_R, const int32_t* slots_R,
                       int64_t num_rows, const KvLayer& cache, float* q_RHK);
void launch_attention(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                      const AttentionShape& shape, float* x_RHK);

void launch_route(cudaStream_t stream, const float* logits_RE, int64_t num_rows, int64_t num_experts,
                  const RoutingDescription& routing, int32_t* experts_RK, float* weights_RK);
// Orders the places of experts_RK by expert, then by place: place p goes to slot slots_RK[p]; slot s has the row
// rows_S[s]; expert e has the slots from first_slot_E1[e] to first_slot_E1[e + 1].
void launch_assign_slots(cudaStream_t stream, const int32_t* experts_RK, int64_t num_rows, int64_t num_chosen,
                         int64_t num_experts, int32_t* first_slot_E1, int32_t* slots_RK, int32_t* rows_S);

// Of logits [num_rows, num_vocabulary], soft-capped first (0: not).
void launch_cross_entropy(cudaStream_t stream, const float* logits_RV, int64_t num_rows, int64_t num_vocabulary,
                          float softcap, const int32_t* targets_R, float* nll_R, uint8_t* top1_R);
void launch_compare(cudaStream_t stream, const float* logits_p_RV, float softcap_p, const float* logits_q_RV,
                    float softcap_q, int64_t num_rows, int64_t num_vocabulary, const int32_t* targets_R, float* kl_R,
                    uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R);

}  // namespace pare
