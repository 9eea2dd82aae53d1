#include "runtime/engine/lane_memory.h"

#include <algorithm>

#include "runtime/engine/backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/machine/reserved_memory.h"

namespace pare::runtime {
namespace {

// The heads' keys and values, each a run of neighbouring tokens.
int64_t num_runs(const ModelDescription& model) {
  return 2 * static_cast<int64_t>(model.blocks.size()) * model.num_kv_heads;
}

}  // namespace

int64_t whole_lanes(const ModelDescription& model, int64_t num_texts, int64_t max_tokens, const LaneLimits& limits) {
  const int64_t text_bytes = max_tokens * kv_bytes_per_token(model, kKvFloatBits);
  const int64_t most = std::min({limits.num_lanes, num_texts, limits.pool_bytes / std::max<int64_t>(text_bytes, 1)});
  return std::max<int64_t>(most, 1);
}

int64_t pooled_bytes(const ModelDescription& model, int64_t num_tokens) {
  constexpr int64_t kPage = 4096;
  const int64_t run_bytes = num_tokens * model.head_size * static_cast<int64_t>(sizeof(float));
  return num_runs(model) * ((run_bytes + kPage - 1) / kPage * kPage);
}

int64_t lane_cache_bytes(const ModelDescription& model, int bits, int64_t num_texts, int64_t max_tokens, bool in_pages,
                         const LaneLimits& limits) {
  const int64_t token_bytes = kv_bytes_per_token(model, bits);
  if (!in_pages) return whole_lanes(model, num_texts, max_tokens, limits) * max_tokens * token_bytes;
  const int64_t num_lanes = std::min(limits.num_lanes, num_texts);
  // A text that is alone goes beyond the pool. Each run of a lane ends within a page, and so do grids.
  const int64_t pool_tokens =
      std::max(max_tokens, limits.pool_bytes / std::max<int64_t>(kv_bytes_per_token(model, kKvFloatBits), 1));
  const int64_t ends = num_lanes * num_runs(model) * (bits == kKvCodeBits ? 2 : 1) * page_bytes();
  return std::min(num_lanes * max_tokens, pool_tokens) * token_bytes + ends;
}

}  // namespace pare::runtime
