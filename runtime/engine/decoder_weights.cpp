#include "runtime/engine/decoder_weights.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// Reads weights from a checkpoint into packed form, and gives the source's pages back as it goes.
class Packer {
 public:
  Packer(const Checkpoint& checkpoint, Backend& backend, const std::function<void(LinearWeights&)>& change)
      : checkpoint_(checkpoint), backend_(backend), change_(change) {}

  // Packs the embedding, the head or a router, which take and give plain rows.
  std::unique_ptr<PackedLinear> pack_plain(const LinearDescription& table) const {
    const LinearWeights weights = checkpoint_.linear(table);
    if (!weights.input.is_plain()) {
      throw std::invalid_argument("'" + weights.name + "': its input is quantized (" +
                                  input_format_name(weights.input) +
                                  "); this runtime multiplies the head and routers with unquantized activations only");
    }
    std::unique_ptr<PackedLinear> packed = backend_.pack({&weights, 1});
    checkpoint_.drop_pages(table);
    return packed;
  }

  std::unique_ptr<PackedLinear> pack(std::initializer_list<LinearDescription> linears) const {
    std::vector<LinearWeights> parts;
    for (const LinearDescription& linear : linears) {
      parts.push_back(checkpoint_.linear(linear));
      if (change_) change_(parts.back());
    }
    std::unique_ptr<PackedLinear> packed = backend_.pack(parts);
    for (const LinearDescription& linear : linears) checkpoint_.drop_pages(linear);
    return packed;
  }

  PackedNorm norm(const NormDescription& description) const {
    return backend_.pack_norm({.gain = checkpoint_.norm_gain(description), .epsilon = description.epsilon});
  }
  std::optional<PackedNorm> norm(const std::optional<NormDescription>& description) const {
    return description ? std::optional(norm(*description)) : std::nullopt;
  }

  BlockWeights block(const BlockDescription& source, const ModelDescription& model) const {
    BlockWeights block;
    block.attention_norm = norm(source.attention_norm);
    block.feed_forward_norm = norm(source.feed_forward_norm);
    block.q_norm = norm(source.q_norm);
    block.k_norm = norm(source.k_norm);
    block.post_attention_norm = norm(source.post_attention_norm);
    block.post_feed_forward_norm = norm(source.post_feed_forward_norm);
    block.qkv = pack({source.q, source.k, source.v});
    block.o = pack({source.o});
    for (const FeedForwardDescription& expert : source.experts) {
      block.experts.push_back({pack({expert.gate, expert.up}), pack({expert.down})});
    }
    if (source.router) block.router = pack_plain(*source.router);
    block.routing = source.routing;
    block.attention = {.num_heads = model.num_heads,
                       .num_kv_heads = model.num_kv_heads,
                       .head_size = model.head_size,
                       .scale = model.attention_scale,
                       .softcap = model.attention_softcap,
                       .sliding_window = source.sliding_window};
    return block;
  }

 private:
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
  weights.embedding = packer.pack_plain(checkpoint.embedding());
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  if (progress) progress(0, num_blocks);
  for (const BlockDescription& source : model.blocks) {
    throw_if_interrupted();
    BlockWeights block = packer.block(source, model);
    const auto known = std::find(weights.ropes.begin(), weights.ropes.end(), source.rope);
    block.rope = static_cast<size_t>(known - weights.ropes.begin());
    if (known == weights.ropes.end()) weights.ropes.push_back(source.rope);
    weights.blocks.push_back(std::move(block));
    if (progress) progress(static_cast<int64_t>(weights.blocks.size()), num_blocks);
  }
  weights.final_norm = packer.norm(model.final_norm);
  if (!model.tied_head) weights.untied_head = packer.pack_plain(checkpoint.head());
  return weights;
}

}  // namespace pare::runtime
