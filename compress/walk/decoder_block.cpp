#include "compress/walk/decoder_block.h"

#include <algorithm>
#include <stdexcept>

namespace pare::compress {

DecoderBlock::DecoderBlock(const runtime::Checkpoint& checkpoint, int64_t index, int64_t num_tokens)
    : block_(&checkpoint.description().blocks.at(static_cast<size_t>(index))),
      index_(index),
      functions_(checkpoint.description(), num_tokens, at::kFloat, at::kCPU, AttentionKernel::by_query_blocks) {
  tensors_ = read_block(checkpoint, index, at::kFloat);
}

void DecoderBlock::divide_outputs(runtime::Stage stage, size_t index, std::span<const float> scales_O) {
  const at::Tensor weight_OI = weight(stage, index);
  if (static_cast<int64_t>(scales_O.size()) != weight_OI.size(0)) {
    throw std::invalid_argument("divide_outputs: expected " + std::to_string(weight_OI.size(0)) + " scales, found " +
                                std::to_string(scales_O.size()));
  }
  const at::Tensor divisor_O = float_tensor(scales_O);
  weight_OI.div_(divisor_O.unsqueeze(1));
  const auto bias_O = tensors_.find(layers(stage)[index].name + ".bias");
  if (bias_O != tensors_.end()) bias_O->second.div_(divisor_O);
}

void DecoderBlock::set_norm_gain(runtime::Stage stage, std::span<const float> gain_D) {
  tensors_.insert_or_assign(runtime::stage_norm(*block_, stage).name + ".weight", float_tensor(gain_D));
}

void DecoderBlock::set_norm_bias(runtime::Stage stage, std::span<const float> bias_D) {
  tensors_.insert_or_assign(runtime::stage_norm(*block_, stage).name + ".bias", float_tensor(bias_D));
}

void DecoderBlock::set_bias(runtime::Stage stage, size_t index, std::span<const float> bias_O) {
  tensors_.insert_or_assign(layers(stage).at(index).name + ".bias", float_tensor(bias_O));
}

void DecoderBlock::round_site(const RoundedSite& site) {
  if (!site.format.is_rowwise() || site.format.has_outliers()) {
    throw std::invalid_argument(std::string(runtime::site_name(site.site)) +
                                ": expected a format that rounds each row by itself, found " +
                                runtime::input_format_name(site.format));
  }
  rounded_site_ = site;
}

BlockFunctions DecoderBlock::functions() const {
  return {functions_, index_, tensors_, input_formats_, rounded_site_ ? &*rounded_site_ : nullptr};
}

bool is_output_stage(runtime::Stage stage) {
  return stage.kind == runtime::Stage::attention_output || stage.kind == runtime::Stage::feed_forward_output;
}

int64_t widest_input(const runtime::ModelDescription& model) {
  return std::max(model.num_heads * model.value_size, model.feed_forward_size);
}

int64_t widest_made_input(const runtime::ModelDescription& model) {
  int64_t widest = model.hidden_size;
  for (const runtime::BlockDescription& block : model.blocks) {
    if (!block.latent) continue;
    widest = std::max(widest, block.latent->latent_size());
    if (block.latent->q_a) widest = std::max(widest, block.q.num_in);
  }
  return widest;
}

}  // namespace pare::compress
