// A decoder's weights as a backend holds them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

struct BlockWeights {
  std::optional<PackedNorm> attention_norm, feed_forward_norm;  // nothing: the hidden state itself is read
  std::optional<PackedNorm> q_norm, k_norm;                     // over each head, or over all heads
  std::optional<PackedNorm> post_attention_norm, post_feed_forward_norm;
  std::unique_ptr<PackedLinear> qkv, o;     // with latents `qkv` is q_a, or q, and kv_a
  std::unique_ptr<PackedLinear> q_b, kv_b;  // null without latents; q_b also without q_a
  std::optional<PackedNorm> query_latent_norm, key_value_latent_norm;
  LatentShape latent;                       // no heads: without latents
  Buffer<int32_t> channels_K;               // with latents
  std::vector<FeedForwardWeights> experts;  // a dense block has one
  std::unique_ptr<PackedLinear> router;     // null in a dense block; with the gate of the shared expert behind it
  Buffer<float> correction_E;               // of routed experts' scores; empty: none
  RoutingDescription routing;
  Buffer<float> sinks_H;  // which `attention` points to; empty: none
  AttentionShape attention;
  bool is_gated = true;  // the network's first product is of gate and up, not of up alone
  bool is_parallel = false;
  size_t rope = 0;  // index into DecoderWeights::ropes
};

struct DecoderWeights {
  std::unique_ptr<PackedLinear> embedding;
  std::unique_ptr<PackedLinear> positions;  // null unless positions are learned
  std::optional<PackedLayerNorm> embedding_norm;
  Buffer<float> alibi_slopes_H;               // empty: none
  std::unique_ptr<PackedLinear> untied_head;  // null when the embedding serves as the head
  std::vector<BlockWeights> blocks;
  PackedNorm final_norm;
  std::vector<RopeDescription> ropes;  // each once (gemma3 has two)

  const PackedLinear& head() const { return untied_head ? *untied_head : *embedding; }

  // Visits every linear of the blocks, routers included. `visit` takes a const PackedLinear&.
  template <typename Visit>
  void for_each_linear(const Visit& visit) const {
    for (const BlockWeights& block : blocks) {
      for (const auto* linear : {&block.qkv, &block.q_b, &block.kv_b, &block.o}) {
        if (*linear) visit(**linear);
      }
      if (block.router) visit(*block.router);
      for (const FeedForwardWeights& expert : block.experts) {
        for (const auto* linear : {&expert.gate_up, &expert.down}) visit(**linear);
      }
    }
  }
};

// Packs every weight and drops source pages as it goes. Rows of q and k, and gains of their norms, go where rotation
// wants them (RopeDescription::channels_K). The final norm's gain takes the logits' factor. `progress` and `change` are
// those of Transformer::load. Throws what Checkpoint's readers and Backend::pack throw, std::invalid_argument for an
// embedding, head or router with a quantized input, and Interrupted between blocks.
DecoderWeights load_decoder_weights(const Checkpoint& checkpoint, Backend& backend,
                                    const std::function<void(int64_t, int64_t)>& progress,
                                    const std::function<void(LinearWeights&)>& change);

}  // namespace pare::runtime
