#include "compress/walk/encoder_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>

namespace pare::compress {

EncoderBlock::EncoderBlock(const runtime::Checkpoint& checkpoint, int64_t index)
    : model_(&checkpoint.encoder()), block_(&model_->blocks.at(static_cast<size_t>(index))) {
  for (const runtime::LayerNormDescription& norm : {block_->attention_norm, block_->feed_forward_norm}) {
    if (!norm.exists()) continue;
    const runtime::LayerNorm values = checkpoint.layer_norm(norm);
    tensors_[norm.name + ".weight"] = float_tensor(values.gain);
    if (norm.has_bias) tensors_[norm.name + ".bias"] = float_tensor(values.bias);
  }
  if (const std::vector<float> scores_HN = checkpoint.distance_scores(); !scores_HN.empty()) {
    distances_HN_ = float_tensor(scores_HN).view({model_->num_heads, -1});
  }
  for (const runtime::Stage stage : runtime::kStages) {
    for (const runtime::LinearDescription& linear : layers(stage)) {
      const runtime::LinearWeights weights = read_linear(checkpoint, linear, at::kFloat, tensors_);
      if (!weights.input.is_plain()) input_formats_.emplace(linear.name, weights.input);
    }
  }
}

EncoderEmbedding::EncoderEmbedding(const runtime::Checkpoint& checkpoint)
    : model_(&checkpoint.encoder()),
      words_(checkpoint.linear(checkpoint.encoder().word_embedding)),
      norm_(checkpoint.layer_norm(checkpoint.encoder().embedding_norm)) {
  if (model_->position_embedding) positions_ = checkpoint.linear(*model_->position_embedding);
  if (model_->token_type_embedding) token_types_ = checkpoint.linear(*model_->token_type_embedding);
}

void EncoderEmbedding::embed(std::span<const int32_t> ids_T, at::Tensor& hidden_TD) const {
  const std::vector<int32_t> types(ids_T.size(), 0), positions = runtime::positions_of(*model_, ids_T);
  at::Tensor part_TD = at::empty(hidden_TD.sizes(), at::kFloat);
  compress::embed(words_, 1.0f, ids_T, hidden_TD.data_ptr<float>());
  if (token_types_) {
    compress::embed(*token_types_, 1.0f, types, part_TD.data_ptr<float>());
    hidden_TD.add_(part_TD);
  }
  if (positions_) {
    compress::embed(*positions_, 1.0f, positions, part_TD.data_ptr<float>());
    hidden_TD.add_(part_TD);
  }
  hidden_TD.copy_(at::layer_norm(hidden_TD, {hidden_TD.size(1)}, float_tensor(norm_.gain), float_tensor(norm_.bias),
                                 static_cast<double>(norm_.epsilon)));
}

}  // namespace pare::compress
