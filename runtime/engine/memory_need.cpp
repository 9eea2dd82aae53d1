#include "runtime/engine/memory_need.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/engine/attention_stretches.h"
#include "runtime/engine/forward_pass.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/host_backend.h"
#include "runtime/engine/lane_memory.h"
#include "runtime/format/stored_widths.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

int64_t total_bytes(std::span<const MemoryNeed> needs) {
  int64_t total = 0;
  for (const MemoryNeed& need : needs) total += need.total();
  return total;
}

std::string message_of(const Backend& backend, std::span<const MemoryNeed> needs, const std::string& found) {
  std::string message =
      backend.name() + ": about " + format_bytes(total_bytes(needs)) + " of memory are needed, and " + found;
  for (const MemoryNeed& need : needs) {
    message += "; " + need.name + " takes " + format_bytes(need.weight_bytes) + " of weights, " +
               format_bytes(need.cache_bytes) + " of keys and values and " + format_bytes(need.work_bytes) +
               " for working buffers";
  }
  return message + ": use a smaller model, fewer tokens or --kv-bits 8";
}

}  // namespace

// Counts a weight that is stored as codes or 2:4 as backends with memory of their own hold it (cuda_linear.cpp): rows
// of words in whole vectors, and scales as floats. A weight with columns of outliers is held in float32.
int64_t packed_weight_bytes(const LinearDescription& linear, const PackScheme& scheme, DType dense_dtype,
                            bool on_host) {
  constexpr int64_t kFloatBytes = sizeof(float), kWordBits = 32, kVectorBytes = 16;
  if (scheme.input.outliers == OutlierRule::columns && !on_host) return linear.num_out * linear.num_in * kFloatBytes;
  // Blocks of GGUF are decoded to float32.
  if (!scheme.is_dense() && scheme.code->is_blocks()) return linear.num_out * linear.num_in * kFloatBytes;
  const int64_t bits = scheme.is_dense()     ? 8 * static_cast<int64_t>(dtype_size_bytes(dense_dtype))
                       : scheme.is_integer() ? multiplied_width(scheme.bits)
                                             : std::max(scheme.bits, kMaxTableBits);
  const bool is_kept = (scheme.is_dense() || scheme.is_integer()) && !scheme.pattern.is_dense() &&
                       (bits == 4 || bits == 8 || bits == 16) && scheme.act_order == StoredActOrder::none;
  const int64_t num_values = is_kept ? linear.num_in / 2 : linear.num_in;
  const int64_t vector_values = kVectorBytes * 8 / kWordBits * (kWordBits / bits);
  const int64_t num_vectors = (num_values + vector_values - 1) / vector_values;
  const int64_t place_bytes = is_kept ? num_vectors * vector_values / 4 : 0;
  const bool has_small_scales = on_host && !scheme.is_dense() && scheme.code->scale_dtype;
  const int64_t scale_bytes =
      has_small_scales ? static_cast<int64_t>(dtype_size_bytes(*scheme.code->scale_dtype)) : kFloatBytes;
  const int64_t grid_bytes =
      scheme.is_dense() ? 0 : scheme.num_groups(linear.num_in) * (scale_bytes + (scheme.symmetric ? 0 : 1));
  const int64_t order_bytes = scheme.act_order == StoredActOrder::none ? 0 : linear.num_in * kFloatBytes;
  return linear.num_out * (num_vectors * kVectorBytes + place_bytes + grid_bytes) + order_bytes;
}

// Counts the buffers of a forward pass (ForwardArena), tables of rotations, attention's stretches and logits.
int64_t forward_work_bytes(const ModelDescription& model, const DeviceWorkload& workload, bool multiplies_codes,
                           bool needs_whole_sequences) {
  constexpr int64_t kWordBytes = 4;  // a float, an id or a place
  int64_t num_experts = 0, experts_per_token = 0;
  bool has_dense = false, is_parallel = false;
  for (const BlockDescription& block : model.blocks) {
    has_dense = has_dense || !block.is_mixture();
    is_parallel = is_parallel || block.is_parallel;
    if (!block.is_mixture()) continue;
    num_experts = std::max(num_experts, static_cast<int64_t>(block.experts.size()));
    experts_per_token = std::max(experts_per_token, block.routing.experts_per_token);
  }
  const int64_t rows_at_a_time = needs_whole_sequences ? std::max(kChunkRows, workload.num_tokens) : kChunkRows;
  const int64_t chunk_rows = std::min(workload.num_rows, rows_at_a_time);
  const int64_t attended = model.num_heads * model.head_size, networks = experts_per_token + (has_dense ? 1 : 0);
  int64_t row_bytes =
      kWordBytes *
      ((is_parallel ? 4 : 3) * model.hidden_size + 3 * attended + 2 * model.num_kv_heads * model.head_size +
       networks * (3 * model.feed_forward_size + 2 * model.hidden_size) + num_experts + 4 * experts_per_token);
  const LatentWidths widths(model);
  if (widths.latents > 0) {
    row_bytes += kWordBytes * (widths.latents + widths.queries + widths.keys_and_values + attended + widths.widest);
  }
  if (multiplies_codes) {  // a row of codes with a scale and a zero
    const auto input_bytes = [](int64_t width) { return LinearInput::code_stride(width) + 2 * kWordBytes; };
    if (widths.latents > 0) row_bytes += input_bytes(widths.widest);
    row_bytes += input_bytes(model.hidden_size) + input_bytes(attended) +
                 networks * input_bytes(std::max(model.hidden_size, model.feed_forward_size));
  }
  std::vector<const RopeDescription*> ropes;  // each once
  for (const BlockDescription& block : model.blocks) {
    const auto is_same = [&](const RopeDescription* rope) { return *rope == block.rope; };
    if (std::none_of(ropes.begin(), ropes.end(), is_same)) ropes.push_back(&block.rope);
  }
  int64_t rope_floats = 0;
  for (const RopeDescription* rope : ropes) {
    const int64_t num_short = rope->is_long(workload.num_tokens) ? rope->short_tokens : 0;
    rope_floats += (workload.num_tokens + num_short) * model.head_size;
  }
  // Only the end of one sequence and the beginning of another can be few rows of many tokens.
  const int64_t stretch_rows = std::min(chunk_rows, 2 * kFewRows);
  const int64_t attention_floats =
      stretch_rows * model.num_heads * num_stretches(workload.num_tokens) * stretch_floats(model.head_size);
  const int64_t logit_floats =
      2 * (workload.on_host ? HostBackend::kLogitRows * HostBackend::kLogitColumns : Backend::kLogitFloats);
  // Texts in lanes have logits on both sides, and candidates that a token is drawn from.
  const int64_t lane_floats = workload.in_lanes
                                  ? std::min(kMostLanes, workload.num_texts) * model.vocabulary_size *
                                        (2 + static_cast<int64_t>(sizeof(Sampler::Candidate)) / kWordBytes)
                                  : 0;
  const int64_t num_words =
      lane_floats + workload.num_rows * (3 * model.hidden_size + 3) + rope_floats + attention_floats + logit_floats;
  return num_words * kWordBytes + chunk_rows * row_bytes;
}

int64_t cache_bytes(const ModelDescription& model, const DeviceWorkload& workload) {
  if (workload.in_lanes) {
    return lane_cache_bytes(model, workload.kv_bits, workload.num_texts, workload.num_tokens, workload.on_host);
  }
  const int64_t num_tokens = workload.keeps_every_layer
                                 ? static_cast<int64_t>(model.blocks.size()) * workload.num_tokens * workload.num_texts
                                 : workload.num_rows;
  return num_tokens * KvStorage::bytes_per_token(workload.kv_bits, model.num_kv_heads, model.head_size);
}

MemoryNeed memory_need(const Checkpoint& checkpoint, const DeviceWorkload& workload) {
  const ModelDescription& model = checkpoint.description();
  MemoryNeed need;
  need.name = checkpoint.directory().string();
  const std::vector<std::string> tensor_names = checkpoint.tensor_names();
  for (const std::string& name : tensor_names) {
    need.weight_bytes += checkpoint.layout(name).num_bytes();
  }
  bool needs_whole_sequences = false;  // as in ForwardPass
  bool has_codes = false;              // true if some linear may multiply its input as codes
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme) continue;
    needs_whole_sequences = needs_whole_sequences || !scheme->input.is_rowwise();
    has_codes = has_codes || scheme->input.type == InputType::int8;
    if (scheme->has_own_tensor()) continue;
    int64_t stored_bytes = 0;
    const std::string prefix = linear.name + ".";
    for (auto name = std::lower_bound(tensor_names.begin(), tensor_names.end(), prefix);
         name != tensor_names.end() && name->starts_with(prefix); ++name) {
      stored_bytes += checkpoint.layout(*name).num_bytes();
    }
    need.weight_bytes +=
        std::max<int64_t>(packed_weight_bytes(linear, *scheme, model.dtype, workload.on_host) - stored_bytes, 0);
  }
  need.weight_bytes += need.weight_bytes / 16;
  need.cache_bytes = cache_bytes(model, workload);
  need.work_bytes = forward_work_bytes(model, workload, has_codes, needs_whole_sequences) +
                    std::min(workload.most_roof_bytes, need.weight_bytes);
  return need;
}

int64_t encoder_row_bytes(const EncoderDescription& model) {
  const int64_t inner = model.blocks.front().feed_forward.is_gated() ? 3 : 2;  // products and activations
  return (8 * model.hidden_size + inner * model.feed_forward_size) * static_cast<int64_t>(sizeof(float));
}

MemoryNeed encoder_memory_need(const Checkpoint& checkpoint, int64_t num_rows) {
  const EncoderDescription& model = checkpoint.encoder();
  MemoryNeed need;
  need.name = checkpoint.directory().string();
  for (const std::string& name : checkpoint.tensor_names()) {
    need.weight_bytes += checkpoint.layout(name).num_bytes();
  }
  need.weight_bytes += need.weight_bytes / 16;
  need.work_bytes = num_rows * encoder_row_bytes(model);
  return need;
}

void require_memory(const Backend& backend, std::span<const MemoryNeed> needs) {
  const std::optional<int64_t> free_bytes = backend.free_bytes();
  if (!free_bytes || total_bytes(needs) <= *free_bytes) return;
  throw std::runtime_error(message_of(backend, needs, format_bytes(*free_bytes) + " are free") +
                           ", or run with --device cpu");
}

void require_host_memory(const Backend& backend, std::span<const MemoryNeed> needs, const FreeMemory& free) {
  if (total_bytes(needs) <= free.bytes + free.swap_bytes) return;
  const std::string swap = free.swap_bytes > 0 ? " and " + format_bytes(free.swap_bytes) + " of swap" : "";
  throw std::runtime_error(
      message_of(backend, needs, format_bytes(free.bytes) + swap + " are available (" + free.limit + ")") +
      ", or give it more memory");
}

}  // namespace pare::runtime
