#include "compress/walk/encoder_block.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace pare {
namespace {

at::Tensor activated(const at::Tensor& y_TF, Activation activation) {
  switch (activation) {
    case Activation::silu:
      return at::silu(y_TF);
    case Activation::gelu:
      return at::gelu(y_TF, "none");
    case Activation::gelu_tanh:
      return at::gelu(y_TF, "tanh");
  }
  throw std::invalid_argument("no such activation");
}

}  // namespace

EncoderBlock::NormWeights EncoderBlock::read_norm(const Checkpoint& checkpoint, const LayerNormDescription& norm) {
  const LayerNorm values = checkpoint.layer_norm(norm);
  return {float_tensor(values.gain), float_tensor(values.bias), static_cast<double>(values.epsilon)};
}

EncoderBlock::EncoderBlock(const Checkpoint& checkpoint, int64_t index)
    : model_(&checkpoint.encoder()),
      block_(&model_->blocks.at(static_cast<size_t>(index))),
      attention_norm_(read_norm(checkpoint, block_->attention_norm)),
      feed_forward_norm_(read_norm(checkpoint, block_->feed_forward_norm)) {
  for (const Stage stage : kStages) {
    StageWeights& weights = stages_[static_cast<size_t>(stage)];
    for (const LinearDescription& layer : stage_layers(*block_, stage)) {
      const LinearWeights source = checkpoint.linear(layer);
      Linear& linear = weights.linears.emplace_back();
      linear.weight_OI = at::empty({layer.num_out, layer.num_in}, at::kFloat);
      weight_rows(source, 0, layer.num_out,
                  {linear.weight_OI.data_ptr<float>(), static_cast<size_t>(linear.weight_OI.numel())});
      linear.bias_O = float_tensor(source.bias_O);
      weights.input = source.input;
      checkpoint.drop_pages(layer);
    }
  }
}

at::Tensor EncoderBlock::weight(Stage stage, size_t index) const {
  return stages_[static_cast<size_t>(stage)].linears.at(index).weight_OI;
}

void EncoderBlock::set_weight(Stage stage, size_t index, std::span<const float> weight_OI) {
  const at::Tensor target_OI = weight(stage, index);
  if (static_cast<int64_t>(weight_OI.size()) != target_OI.numel()) {
    throw std::invalid_argument("set_weight: expected " + std::to_string(target_OI.numel()) + " values, found " +
                                std::to_string(weight_OI.size()));
  }
  std::copy(weight_OI.begin(), weight_OI.end(), target_OI.data_ptr<float>());
}

void EncoderBlock::set_input_format(Stage stage, InputFormat format) {
  validate(format, weight(stage, 0).size(1), block_->name + ", " + std::string(stage_name(stage)));
  stages_[static_cast<size_t>(stage)].input = std::move(format);
}

// A rounded copy where the stage has an input format: the hidden state goes on unrounded into the residual sum.
at::Tensor EncoderBlock::rounded_input(Stage stage, const at::Tensor& x_TI) const {
  const InputFormat& format = stages_[static_cast<size_t>(stage)].input;
  if (format.is_plain()) return x_TI;
  at::Tensor rounded_TI = x_TI.clone();
  fake_quantize(format, {rounded_TI.data_ptr<float>(), static_cast<size_t>(rounded_TI.numel())}, rounded_TI.size(1));
  return rounded_TI;
}

at::Tensor EncoderBlock::linear(Stage stage, size_t index, const at::Tensor& x_TI) const {
  const Linear& layer = stages_[static_cast<size_t>(stage)].linears.at(index);
  return at::addmm(layer.bias_O, x_TI, layer.weight_OI.t());
}

void EncoderBlock::add_and_norm(const at::Tensor& delta_TD, const NormWeights& norm, at::Tensor& hidden_TD) const {
  hidden_TD.add_(delta_TD);
  hidden_TD.copy_(at::layer_norm(hidden_TD, {model_->hidden_size}, norm.gain, norm.bias, norm.epsilon));
}

void EncoderBlock::attention(const at::Tensor& hidden_TD, at::Tensor& mixed_TD) const {
  const at::Tensor x_TD = rounded_input(Stage::attention_input, hidden_TD);
  const auto heads = [&](size_t index) {
    return linear(Stage::attention_input, index, x_TD)
        .view({hidden_TD.size(0), model_->num_heads, model_->head_size})
        .transpose(0, 1);
  };
  const at::Tensor q_HTK = heads(0), k_HTK = heads(1), v_HTK = heads(2);
  const at::Tensor scores_HTT = at::matmul(q_HTK, k_HTK.transpose(1, 2)).mul_(model_->attention_scale);
  const at::Tensor mixed_HTK = at::matmul(at::softmax(scores_HTT, 2), v_HTK);
  mixed_TD.copy_(mixed_HTK.transpose(0, 1).reshape(mixed_TD.sizes()));
}

void EncoderBlock::add_attention_output(const at::Tensor& mixed_TD, at::Tensor& hidden_TD) const {
  const at::Tensor x_TD = rounded_input(Stage::attention_output, mixed_TD);
  add_and_norm(linear(Stage::attention_output, 0, x_TD), attention_norm_, hidden_TD);
}

void EncoderBlock::feed_forward(const at::Tensor& hidden_TD, at::Tensor& activated_TF) const {
  const at::Tensor x_TD = rounded_input(Stage::feed_forward_input, hidden_TD);
  activated_TF.copy_(activated(linear(Stage::feed_forward_input, 0, x_TD), model_->activation));
}

void EncoderBlock::add_feed_forward_output(const at::Tensor& activated_TF, at::Tensor& hidden_TD) const {
  const at::Tensor z_TF = rounded_input(Stage::feed_forward_output, activated_TF);
  add_and_norm(linear(Stage::feed_forward_output, 0, z_TF), feed_forward_norm_, hidden_TD);
}

EncoderEmbedding::EncoderEmbedding(const Checkpoint& checkpoint)
    : words_(checkpoint.linear(checkpoint.encoder().word_embedding)),
      token_types_(checkpoint.linear(checkpoint.encoder().token_type_embedding)),
      positions_(checkpoint.linear(checkpoint.encoder().position_embedding)),
      norm_(checkpoint.layer_norm(checkpoint.encoder().embedding_norm)) {}

void EncoderEmbedding::embed(std::span<const int32_t> ids_T, at::Tensor& hidden_TD) const {
  std::vector<int32_t> types(ids_T.size(), 0), positions(ids_T.size());
  std::iota(positions.begin(), positions.end(), 0);
  at::Tensor part_TD = at::empty(hidden_TD.sizes(), at::kFloat);
  pare::embed(words_, 1.0f, ids_T, hidden_TD.data_ptr<float>());
  pare::embed(token_types_, 1.0f, types, part_TD.data_ptr<float>());
  hidden_TD.add_(part_TD);
  pare::embed(positions_, 1.0f, positions, part_TD.data_ptr<float>());
  hidden_TD.add_(part_TD);
  hidden_TD.copy_(at::layer_norm(hidden_TD, {hidden_TD.size(1)}, float_tensor(norm_.gain), float_tensor(norm_.bias),
                                 static_cast<double>(norm_.epsilon)));
}

}  // namespace pare
