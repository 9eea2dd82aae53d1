#include "runtime/engine/memory_need.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/engine/forward_pass.h"
#include "runtime/system/progress.h"

namespace pare {

MemoryNeed memory_need(const Checkpoint& checkpoint, const DeviceWorkload& workload) {
  const ModelDescription& model = checkpoint.description();
  MemoryNeed need;
  need.name = checkpoint.directory().string();
  for (const std::string& name : checkpoint.tensor_names()) {
    need.weight_bytes += static_cast<int64_t>(checkpoint.tensor(name).data.size());
  }
  need.weight_bytes += need.weight_bytes / 16;
  const int64_t num_caches = workload.keeps_every_layer ? static_cast<int64_t>(model.blocks.size()) : 1;
  need.cache_bytes = num_caches * workload.num_tokens *
                     KvStorage::bytes_per_token(workload.kv_bits, model.num_kv_heads, model.head_size);

  int64_t num_experts = 0, experts_per_token = 1;
  for (const BlockDescription& block : model.blocks) {
    if (!block.is_mixture()) continue;
    num_experts = std::max(num_experts, block.router->num_out);
    experts_per_token = std::max(experts_per_token, block.routing.experts_per_token);
  }
  const int64_t chunk_rows = std::min(workload.num_rows, kChunkRows);
  const int64_t attended = model.num_heads * model.head_size;
  const int64_t row_floats = 3 * model.hidden_size + 3 * attended + 2 * model.num_kv_heads * model.head_size +
                             experts_per_token * (3 * model.feed_forward_size + 2 * model.hidden_size) + num_experts;
  const int64_t num_floats =
      3 * workload.num_rows * model.hidden_size + chunk_rows * row_floats + 2 * Backend::kLogitFloats;
  need.work_bytes =
      num_floats * static_cast<int64_t>(sizeof(float)) + std::min(workload.most_roof_bytes, need.weight_bytes);
  return need;
}

void require_memory(const Backend& backend, std::span<const MemoryNeed> needs) {
  const std::optional<int64_t> free_bytes = backend.free_bytes();
  int64_t total = 0;
  for (const MemoryNeed& need : needs) total += need.total();
  if (!free_bytes || total <= *free_bytes) return;
  std::string message = backend.name() + ": about " + format_bytes(total) + " of memory are needed, and " +
                        format_bytes(*free_bytes) + " are free";
  for (const MemoryNeed& need : needs) {
    message += "; " + need.name + " takes " + format_bytes(need.weight_bytes) + " of weights, " +
               format_bytes(need.cache_bytes) + " of keys and values and " + format_bytes(need.work_bytes) +
               " to work in";
  }
  throw std::runtime_error(message + ": use a smaller model, fewer tokens or --kv-bits 8, or run with --device cpu");
}

}  // namespace pare
