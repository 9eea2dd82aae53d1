// The preconditions that backends on the host check before they touch memory. Each function throws
// std::invalid_argument. The message names the operation, what was expected and what was found.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/engine/backend.h"

namespace pare::runtime {

void check_ids(std::span<const int32_t> ids_R, int64_t vocabulary_size, const char* operation);
void check_norm(const PackedNorm* norm, int64_t width, const char* operation);
// The norm's columns lie within a row.
void check_columns(int64_t row_width, int64_t first, const PackedNorm& norm);
void check_ungated(Activation activation);
void check_parts_of_row(int64_t row_width, const ColumnParts& columns);
void check_latents(const LatentRows& rows, const LatentShape& shape);
void check_positions(std::span<const int32_t> positions_R, int64_t first_position, int64_t num_rows);
void check_layer_norm(const PackedLayerNorm& norm, int64_t width);
void check_mean_rows(const Sequences& sequences);
void check_shape(const AttentionShape& shape, const char* operation);
void check_rope_store(const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                      const AttentionShape& shape, std::span<const int32_t> positions_R,
                      std::span<const int32_t> slots_R, const KvLayer& cache);
void check_attention(const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape);
// Requires at least one part. All parts of a stack have one input width and format, and biases and outlier weights of
// the right sizes.
void check_parts(std::span<const LinearWeights> parts);
// Requires x to hold rows in the format that `packed` states.
void check_input(const PackedLinear& packed, const LinearInput& x);
// If the format of x looks at whole sequences, requires x.sequences() to cover the num_rows rows, each once, in order.
void check_sequences(const LinearInput& x, int64_t num_rows);
// Requires the head of cross_entropy or compare to take plain rows.
void check_head(const PackedLinear& head, const char* operation);
void check_routing(int64_t num_experts, const RoutingDescription& routing);
// Requires whole rows of slots and weights.
void check_mix(std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows);
void check_vocabularies(const PackedLinear& head_p, const PackedLinear& head_q);

}  // namespace pare::runtime
