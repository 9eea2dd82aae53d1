// The launches of the CUDA backend's kernels. Pointers are device memory, and shapes are those of Backend's operations.
// Each launch is queued on the stream and throws std::runtime_error if the device refuses it (device.cuh). Results do
// not depend on how a launch is cut: the shape alone decides the order of every sum.
#pragma once

#include <cstdint>

#include "runtime/cuda/device.cuh"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/weight_view.h"
#include "runtime/engine/backend.h"

namespace pare::runtime {

// The rows that each of several linears multiplies: those of its slots. Slot s reads row rows_S[s] of x (null: row s)
// and writes row s of y.
struct SlotRanges {
  const int32_t* first_slot_E1 = nullptr;  // for all linears; null: each has every row
  const int32_t* linears_Z = nullptr;      // the linears that run; null: all
  const int32_t* rows_S = nullptr;
};
// Rows as codes. Row r is (code - zeros_R[r]) * scales_R[r]. Rows of codes are `stride` apart, a multiple of 16, and
// end in zeros.
struct CodeRows {
  const int8_t* codes_RS = nullptr;
  int64_t stride = 0;
  const float* scales_R = nullptr;
  const int32_t* zeros_R = nullptr;
};

// y[r, first_out + o] = bias[o] + sum_i W[o, i] x[r, i], for num_linears of one form. Each has at most max_rows rows in
// its slots and at most form.num_out outputs, and y has out_width columns.
void launch_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights_E, int64_t num_linears,
                    const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_RO, int64_t out_width);
// The same for codes, with weights of 8, 4 or 2 bits. Their columns lie in the order of their groups, and a quad of
// four columns (with 2:4, eight) lies in one group.
void launch_code_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights_E, int64_t num_linears,
                         const SlotRanges& slots, const CodeRows& x, int64_t max_rows, float* y_RO, int64_t out_width);

void launch_embed(cudaStream_t stream, const WeightView* table_VD, const int32_t* ids_R, int64_t num_rows,
                  int64_t width, float scale, float* hidden_RD);
struct NormView {
  const float* gain_D = nullptr;  // null: no norm
  const float* bias_D = nullptr;  // null: none
  float epsilon = 0.0f;
  bool centers = false;  // a LayerNorm
};
// Row operations write rows without small values, in the form of `target` if it is rowwise, otherwise as floats for
// launch_round.
void launch_add_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView delta_norm, NormView norm,
                     int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x);
// The same with x = hidden.
void launch_add_rows(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView delta_norm,
                     int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x);
// hidden[r] += table[positions[r] + first_position]
void launch_add_positions(cudaStream_t stream, const WeightView* table_PD, const int32_t* positions_R, int64_t num_rows,
                          int64_t width, int64_t first_position, float* hidden_RD);
void launch_scale(cudaStream_t stream, float* x, int64_t size, float factor);
// The norm of the columns [first, first + width) of rows of row_width values, in place.
void launch_norm_columns(cudaStream_t stream, float* x, int64_t row_width, int64_t first, NormView norm, int64_t width,
                         int64_t num_rows);
// x is not written if x.x_RI is null.
void launch_add_layer_norm(cudaStream_t stream, float* hidden_RD, const float* delta_RD, NormView norm,
                           int64_t num_rows, int64_t width, const RoundingTarget& target, const RoundedRows& x);
// If `gated`, a row of y has F gates, then F ups.
void launch_activate(cudaStream_t stream, const float* y, Activation activation, bool gated, int64_t num_rows,
                     int64_t width_F, const RoundingTarget& target, const RoundedRows& z);
void launch_take_columns(cudaStream_t stream, const float* x, int64_t row_width, const ColumnParts& columns,
                         int64_t num_rows, const RoundingTarget& target, const RoundedRows& y);
void launch_join_latents(cudaStream_t stream, const LatentRows& rows, const LatentShape& shape,
                         const int32_t* channels_K, int64_t num_rows, float* qkv_RC);
void launch_gather(cudaStream_t stream, const float* x_RD, const int32_t* rows_S, int64_t num_rows, int64_t width,
                   const RoundingTarget& target, const RoundedRows& y);
void launch_mix(cudaStream_t stream, const float* x_SD, const int32_t* slots_RK, const float* weights_RK,
                int64_t num_rows, int64_t num_chosen, int64_t width, float* y_RD);
void launch_mean_rows(cudaStream_t stream, const float* hidden_RD, const Sequence* sequences_N, int64_t num_sequences,
                      int64_t width, float* means_ND);

// Rows of floats to be rounded as fake_quantize does, and their destination: in place, or codes.
struct RowsToRound {
  RoundedRows rows;
  const Sequence* sequences_N = nullptr;  // null: rows without sequences, counted as one
  RoundingTarget target;
  const RoundingTarget* targets_E = nullptr;  // not null: sequence n has target n / sequences_per_target
  int64_t sequences_per_target = 1;
};
// The kinds of rounding among the targets.
struct RoundingKinds {
  bool has_rowwise = false, has_of_sequence = false;
  bool has_thresholds = false;  // of sparsity
  // Any outliers; outliers by a limit; limits relative to an rms.
  bool has_outliers = false, has_limits = false, has_relative = false;

  bool is_any() const { return has_rowwise || has_of_sequence || has_thresholds || has_outliers; }
  void add(const RoundingTarget& target);
};
struct OutlierScratch {
  double* squares_R = nullptr;
  float* limits_N = nullptr;
  uint8_t* columns_NI = nullptr;
};
// No sequence has more than max_rows rows.
void launch_round(cudaStream_t stream, const RowsToRound& rows, const RoundingKinds& kinds, int64_t num_sequences,
                  int64_t max_rows, int64_t width, const OutlierScratch& scratch);

// The size of the largest head that rope_store and attention hold in registers.
inline constexpr int64_t kMaxCudaHeadSize = 256;
struct RopeView {
  const float* cosine = nullptr;
  const float* sine = nullptr;
};
void launch_rope_store(cudaStream_t stream, const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm,
                       const AttentionShape& shape, const int32_t* positions_R, const int32_t* slots_R,
                       int64_t num_rows, const KvLayer& cache, float* q_RHK);
// The floats that launch_attention needs as scratch. They depend on the sequences' bounds and the shape alone.
int64_t attention_scratch_floats(const Sequences& sequences, const AttentionShape& shape);
void launch_attention(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                      const AttentionShape& shape, float* scratch, float* x_RHK);

void launch_route(cudaStream_t stream, const RouterLogits& logits, int64_t num_rows, int64_t num_experts,
                  const RoutingDescription& routing, int32_t* experts_RK, float* weights_RK);
// Orders the places of experts_RK by expert, then by place. Place p goes to slot slots_RK[p]. Slot s has the row
// rows_S[s]. Expert e has the slots from first_slot_E1[e] to first_slot_E1[e + 1].
void launch_assign_slots(cudaStream_t stream, const int32_t* experts_RK, int64_t num_rows, int64_t num_chosen,
                         int64_t num_experts, int32_t* first_slot_E1, int32_t* slots_RK, int32_t* rows_S);
// Computes the slots of one expert that hold rows of one sequence, as a sequence of rows: [num_experts, N].
void launch_expert_sequences(cudaStream_t stream, const Sequences& sequences, const int32_t* rows_S,
                             const int32_t* first_slot_E1, int64_t num_experts, Sequence* expert_sequences_EN);

// Both work on logits [num_rows, num_vocabulary], which are soft-capped first (softcap 0: not).
void launch_cross_entropy(cudaStream_t stream, const float* logits_RV, int64_t num_rows, int64_t num_vocabulary,
                          float softcap, const int32_t* targets_R, float* nll_R, uint8_t* top1_R);
void launch_compare(cudaStream_t stream, const float* logits_p_RV, float softcap_p, const float* logits_q_RV,
                    float softcap_q, int64_t num_rows, int64_t num_vocabulary, const int32_t* targets_R, float* kl_R,
                    uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R);

}  // namespace pare::runtime
