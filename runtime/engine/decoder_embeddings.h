// Embeddings of texts by a decoder (Qwen3-Embedding): its states after the last norm, pooled as with encoders.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/pooling.h"
#include "runtime/engine/transformer.h"

namespace pare::runtime {

// Computes what Encoder::embed computes: host memory [N, D]. Throws what Transformer::prefill_sequences and
// normalize_embedding throw, and Interrupted between batches. `progress` (texts done, texts) may be empty.
void embed_with_decoder(Transformer& model, std::span<const std::vector<int32_t>> texts, const Pooling& pooling,
                        float* embeddings_ND, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace pare::runtime
