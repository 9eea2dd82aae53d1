// Splits attention into tiles for the kernels of ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/ops.h"
#include "runtime/engine/backend.h"

namespace pare::runtime {

// Does what Backend::attention says, on num_threads threads. Arguments must have passed check_attention. A sequence
// with many new tokens is split into tiles of queries. A sequence with one new token is split into stretches of
// kPartialKeys keys, which are joined in order. The split depends on the shapes alone.
void run_attention(const OpKernels& kernels, const float* q_RHK, const KvLayer& cache,
                   std::span<const Sequence> sequences, const AttentionShape& shape, int num_threads, float* x_RHK);

}  // namespace pare::runtime
