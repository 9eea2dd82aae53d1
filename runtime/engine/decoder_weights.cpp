#include "runtime/engine/decoder_weights.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/engine/activation_mode.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// The order of the rows of each linear that reads attention's input, with the channels of heads of q and k where the
// rotation wants them. Empty: they stay.
std::vector<std::vector<int32_t>> rotated_rows(const BlockDescription& block, const ModelDescription& model) {
  std::vector<int32_t> channels_K = block.rope.channels_K;
  if (block.latent) return {};  // join_latents orders them
  if (channels_K.empty() && block.qkv_rows.empty()) return {};
  for (int32_t k = 0; channels_K.size() < static_cast<size_t>(model.head_size); ++k) channels_K.push_back(k);
  const auto heads = [&](int64_t first_row, int64_t num_heads, std::vector<int32_t>& rows) {
    for (int64_t h = 0; h < num_heads; ++h) {
      for (const int32_t channel : channels_K) {
        rows.push_back(static_cast<int32_t>(first_row + h * model.head_size) + channel);
      }
    }
  };
  std::vector<std::vector<int32_t>> rows(block.qkv ? 1 : 2);
  heads(0, model.num_heads, rows.front());
  heads(block.qkv ? block.q.num_out : 0, model.num_kv_heads, rows.back());
  if (!block.qkv) return rows;
  for (int64_t row = block.q.num_out + block.k.num_out; row < block.qkv->num_out; ++row) {
    rows.front().push_back(static_cast<int32_t>(row));
  }
  for (size_t i = 0; !block.qkv_rows.empty() && i < rows.front().size(); ++i) {
    rows.front()[i] = block.qkv_rows[static_cast<size_t>(rows.front()[i])];
  }
  return rows;
}

// Reads weights from a checkpoint into packed form, and gives the source's pages back as it goes.
class Packer {
 public:
  Packer(const Checkpoint& checkpoint, Backend& backend, const std::function<void(LinearWeights&)>& change)
      : checkpoint_(checkpoint), backend_(backend), change_(change) {}

  // Packs the embedding, the head or routers, which take and give plain rows.
  std::unique_ptr<PackedLinear> pack_plain(const std::vector<LinearDescription>& tables) const {
    std::vector<LinearWeights> parts;
    for (const LinearDescription& table : tables) {
      const LinearWeights& weights = parts.emplace_back(checkpoint_.linear(table));
      if (weights.input.keeps_values()) continue;
      throw std::invalid_argument("'" + weights.name + "': its input is quantized (" +
                                  input_format_name(weights.input) +
                                  "); this runtime multiplies the head and routers with unquantized activations only");
    }
    std::unique_ptr<PackedLinear> packed = backend_.pack(parts);
    for (const LinearDescription& table : tables) checkpoint_.drop_pages(table);
    return packed;
  }

  // rows: what a linear's rows become (rows_in_order); nothing: they stay. after_relu: the input has ReLU's zeros.
  std::unique_ptr<PackedLinear> pack(const std::vector<LinearDescription>& linears,
                                     const std::vector<std::vector<int32_t>>& rows = {},
                                     bool after_relu = false) const {
    std::vector<LinearWeights> parts;
    for (size_t i = 0; i < linears.size(); ++i) {
      parts.push_back(checkpoint_.linear(linears[i]));
      parts.back().has_sparse_input = after_relu || parts.back().input.sparsity_threshold > 0.0f;
      if (change_) change_(parts.back());
      if (i < rows.size() && !rows[i].empty()) parts.back() = rows_in_order(parts.back(), rows[i]);
    }
    if (change_) settle_inputs(parts);
    std::unique_ptr<PackedLinear> packed = backend_.pack(parts);
    for (const LinearDescription& linear : linears) checkpoint_.drop_pages(linear);
    return packed;
  }

  // channels_K: the order of the channels of each head that the norm spans; empty: they stay.
  std::optional<PackedNorm> norm(const NormDescription& description,
                                 const std::vector<int32_t>& channels_K = {}) const {
    if (!description.exists()) return std::nullopt;
    const std::vector<float> stored = checkpoint_.norm_gain(description);
    std::vector<float> gain = stored;
    for (size_t i = 0; !channels_K.empty() && i < gain.size(); ++i) {
      const size_t place = i % channels_K.size();
      gain[i] = stored[i - place + static_cast<size_t>(channels_K[place])];
    }
    return backend_.pack_norm({.gain = std::move(gain),
                               .epsilon = description.epsilon,
                               .centers = description.centers,
                               .bias = checkpoint_.norm_bias(description)});
  }
  std::optional<PackedNorm> norm(const std::optional<NormDescription>& description,
                                 const std::vector<int32_t>& channels_K = {}) const {
    return description ? norm(*description, channels_K) : std::nullopt;
  }
  Buffer<float> vector(const VectorDescription& description) const {
    Buffer<float> packed = backend_.allocate(description.size);
    backend_.upload<float>(checkpoint_.values_of(description), packed.get());
    return packed;
  }
  PackedNorm final_norm(const ModelDescription& model) const {
    Norm norm = {.gain = checkpoint_.norm_gain(model.final_norm),
                 .epsilon = model.final_norm.epsilon,
                 .centers = model.final_norm.centers,
                 .bias = checkpoint_.norm_bias(model.final_norm)};
    for (float& gain : norm.gain) gain *= model.logit_scale;
    for (float& bias : norm.bias) bias *= model.logit_scale;
    return backend_.pack_norm(norm);
  }

  BlockWeights block(const BlockDescription& source, const ModelDescription& model) const {
    BlockWeights block;
    block.attention_norm = norm(source.attention_norm);
    block.feed_forward_norm = norm(source.feed_forward_norm);
    block.q_norm = norm(source.q_norm, source.rope.channels_K);
    block.k_norm = norm(source.k_norm, source.rope.channels_K);
    block.post_attention_norm = norm(source.post_attention_norm);
    block.post_feed_forward_norm = norm(source.post_feed_forward_norm);
    block.qkv = pack(source.attention_readers(), rotated_rows(source, model));
    block.o = pack({source.o});
    if (source.latent) pack_latents(*source.latent, source, model, block);
    for (const FeedForwardDescription& expert : source.experts) {
      block.experts.push_back({pack(expert.readers()), pack({expert.down}, {}, model.activation == Activation::relu)});
    }
    if (source.router) block.router = pack_plain(source.routers());
    if (source.correction) block.correction_E = vector(*source.correction);
    block.routing = source.routing;
    block.is_gated = source.experts.front().is_gated();
    block.is_parallel = source.is_parallel;
    block.attention = {.num_heads = model.num_heads,
                       .num_kv_heads = model.num_kv_heads,
                       .head_size = model.head_size,
                       .scale = model.attention_scale,
                       .softcap = model.attention_softcap,
                       .sliding_window = source.sliding_window};
    if (source.sinks) {
      block.sinks_H = vector(*source.sinks);
      block.attention.sinks_H = block.sinks_H.get();
    }
    return block;
  }

 private:
  void pack_latents(const LatentAttention& latent, const BlockDescription& source, const ModelDescription& model,
                    BlockWeights& block) const {
    block.kv_b = pack({latent.kv_b});
    block.key_value_latent_norm = norm(latent.kv_norm);
    if (latent.q_a) {
      block.q_b = pack({source.q});
      block.query_latent_norm = norm(latent.q_norm);
    }
    block.latent = {.num_heads = model.num_heads,
                    .head_size = model.head_size,
                    .value_size = model.value_size,
                    .num_rotated = latent.num_rotated};
    block.channels_K = backend_.allocate<int32_t>(model.head_size);
    backend_.upload<int32_t>(source.rope.channels_K, block.channels_K.get());
  }

  const Checkpoint& checkpoint_;
  Backend& backend_;
  const std::function<void(LinearWeights&)>& change_;
};

}  // namespace

DecoderWeights load_decoder_weights(const Checkpoint& checkpoint, Backend& backend,
                                    const std::function<void(int64_t, int64_t)>& progress,
                                    const std::function<void(LinearWeights&)>& change) {
  const ModelDescription& model = checkpoint.description();
  const Packer packer(checkpoint, backend, change);
  DecoderWeights weights;
  weights.embedding = packer.pack_plain({checkpoint.embedding()});
  if (model.has_learned_positions()) weights.positions = packer.pack_plain({model.position_table});
  if (model.embedding_norm.exists()) {
    weights.embedding_norm = backend.pack_layer_norm(checkpoint.layer_norm({.name = model.embedding_norm.name,
                                                                            .width = model.embedding_norm.width,
                                                                            .epsilon = model.embedding_norm.epsilon}));
  }
  if (!model.alibi_slopes_H.empty()) {
    weights.alibi_slopes_H = backend.allocate(model.num_heads);
    backend.upload<float>(model.alibi_slopes_H, weights.alibi_slopes_H.get());
  }
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  if (progress) progress(0, num_blocks);
  for (const BlockDescription& source : model.blocks) {
    throw_if_interrupted();
    BlockWeights block = packer.block(source, model);
    if (!model.alibi_slopes_H.empty()) block.attention.slopes_H = weights.alibi_slopes_H.get();
    const auto known = std::find(weights.ropes.begin(), weights.ropes.end(), source.rope);
    block.rope = static_cast<size_t>(known - weights.ropes.begin());
    if (known == weights.ropes.end()) weights.ropes.push_back(source.rope);
    weights.blocks.push_back(std::move(block));
    if (progress) progress(static_cast<int64_t>(weights.blocks.size()), num_blocks);
  }
  weights.final_norm = packer.final_norm(model);
  if (!model.tied_head) weights.untied_head = packer.pack_plain({checkpoint.head()});
  return weights;
}

}  // namespace pare::runtime
