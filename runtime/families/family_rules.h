// What rows of the table of families may not ask for together, since nothing computes it.
#pragma once

#include <string_view>

#include "runtime/families/families.h"

namespace pare::runtime {

// Both return what a row asks for and nothing computes; "" for a sound row.
constexpr std::string_view not_computed(const DecoderFamily& row) {
  if ((row.norms.attention.empty() && row.norms.attention_output.empty()) ||
      (row.norms.feed_forward.empty() && row.norms.feed_forward_output.empty() && !row.is_parallel)) {
    return "halves of blocks without a norm";
  }
  const bool has_output_norms = !row.norms.attention_output.empty() || !row.norms.feed_forward_output.empty();
  if (has_output_norms && (row.centers_norms || row.is_parallel || !row.parallel_key.empty())) {
    return "a LayerNorm of outputs, or norms of the outputs of parallel halves";
  }
  if (row.mixture && row.stores_transposed) return "transposed experts";
  if (row.alibi.exists && (row.rotation.exists || !row.score_softcap_key.empty() || !row.modules.positions.empty())) {
    return "scores that fall with the distance beside rotation, positions or caps";
  }
  if (row.latent.exists &&
      (row.alibi.exists || !row.rotation.exists || row.rotation.may_be_partial || row.is_parallel ||
       !row.parallel_key.empty() || row.has_head_norms || !row.head_norms_key.empty() || !row.stacks.qkv.empty() ||
       row.windows.layers != WindowLayers::none || row.stores_transposed || row.norms.attention.empty() ||
       row.centers_norms || row.has_qkv_bias || !row.sinks.empty())) {
    return "latent attention with other norms, biases, rotations, windows, stacks or sinks";
  }
  if (!row.modules.embedding_norm.empty() && !(row.centers_norms && row.has_norm_bias)) {
    return "a norm of the embedding that is no LayerNorm with a bias";
  }
  if (row.has_head_norms && row.centers_norms) return "LayerNorms of heads";
  if (!row.parallel_key.empty() && row.norms.feed_forward.empty()) return "one norm where halves may not be parallel";
  if (row.mixture && (!row.is_gated || row.is_parallel || !row.parallel_key.empty())) {
    return "experts without a gate or beside attention";
  }
  if (!row.is_gated && !row.stacks.gate_up.empty()) return "a stack with a gate where there is none";
  if (row.mixture && (row.norms.feed_forward.empty() || !row.stacks.gate_up.empty())) {
    return "experts without a norm before them or in stacks";
  }
  const bool scales_residual = !row.factors.residual.empty() || !row.factors.residual_of_depth.empty();
  if (scales_residual && !(row.norms.attention_output.empty() && row.norms.feed_forward_output.empty())) {
    return "a factor behind norms of outputs";
  }
  if (scales_residual && (row.is_parallel || !row.parallel_key.empty())) return "a factor behind parallel halves";
  if (row.mixture && !row.feed_forward_bias_key.empty()) return "biases of experts by a key";
  if (row.mixture && row.mixture->are_stacked &&
      (!row.mixture->has_biases || row.mixture->blocks != MixtureBlocks::all || !row.mixture->shared.module.empty())) {
    return "stacks of experts without biases, beside dense blocks or with a shared expert";
  }
  if (row.mixture && !row.mixture->clamp_key.empty() &&
      (row.mixture->blocks != MixtureBlocks::all || !row.mixture->shared.module.empty())) {
    return "clamped gates beside other networks";
  }
  return "";
}

constexpr std::string_view not_computed(const EncoderFamily& row) {
  if (row.stacks.alternates_by_head) return "an encoder's heads that alternate";
  if (!row.theta_key.empty() && row.positions_follow_padding) return "rotations behind the padding token";
  if (row.lacks_first_norm && !row.normalizes_first) return "a sum without a norm";
  if (!row.final_norm.empty() && !row.normalizes_first) return "a norm behind blocks that end in one";
  return "";
}

}  // namespace pare::runtime
