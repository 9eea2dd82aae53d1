// The preconditions that every backend checks before it touches memory. Each function throws std::invalid_argument with
// the operation, what was expected and what was found.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/backend.h"

namespace pare {

// 64-byte aligned zeroed floats; also throws when num_floats is negative or its bytes overflow.
Backend::Buffer allocate_aligned_floats(int64_t num_floats);

void check_ids(std::span<const int32_t> ids_R, int64_t vocabulary_size, const char* operation);
void check_norm(const Norm* norm, int64_t width, const char* operation);
void check_shape(const AttentionShape& shape, const char* operation);
void check_rope_store(const RopeTable& rope, const Norm* q_norm, const Norm* k_norm, const AttentionShape& shape,
                      std::span<const int32_t> positions_R, std::span<const int32_t> slots_R, const KvLayer& cache);
void check_attention(const KvLayer& cache, std::span<const Sequence> sequences, const AttentionShape& shape);
void check_vocabularies(const PackedLinear& head_p, const PackedLinear& head_q);

}  // namespace pare
