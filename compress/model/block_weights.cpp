#include "compress/model/block_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "compress/model/row_functions.h"

namespace pare::compress {

const at::Tensor& find_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::invalid_argument("the block lacks the tensor '" + name + "'");
  return found->second;
}

LinearOperands operands_of(const NamedTensors& tensors, const runtime::LinearDescription& linear) {
  return {find_tensor(tensors, linear.name + ".weight"),
          linear.has_bias ? find_tensor(tensors, linear.name + ".bias") : at::Tensor()};
}

const runtime::InputFormat* input_format_of(const InputFormats& formats, const runtime::LinearDescription& linear) {
  const auto found = formats.find(linear.name);
  return found == formats.end() || found->second.keeps_values() ? nullptr : &found->second;
}

std::vector<runtime::LinearDescription> linears_of(const runtime::BlockDescription& block) {
  return runtime::block_linears(block);
}

std::vector<runtime::NormDescription> norms_of(const runtime::BlockDescription& block) {
  std::vector<runtime::NormDescription> norms;
  if (block.attention_norm.exists()) norms.push_back(block.attention_norm);
  for (const auto& norm : {block.q_norm, block.k_norm, block.post_attention_norm}) {
    if (norm) norms.push_back(*norm);
  }
  if (block.latent && block.latent->q_norm.exists()) norms.push_back(block.latent->q_norm);
  if (block.latent) norms.push_back(block.latent->kv_norm);
  const bool is_shared = block.feed_forward_norm == block.attention_norm;
  if (block.feed_forward_norm.exists() && !is_shared) norms.push_back(block.feed_forward_norm);
  if (block.post_feed_forward_norm) norms.push_back(*block.post_feed_forward_norm);
  return norms;
}

int64_t largest_block(const runtime::ModelDescription& model) {
  int64_t largest = 0;
  for (const runtime::BlockDescription& block : model.blocks) {
    int64_t num_weights = 0;
    for (const runtime::LinearDescription& linear : linears_of(block)) num_weights += linear.num_out * linear.num_in;
    for (const runtime::LinearDescription& router : block.routers()) num_weights -= router.num_out * router.num_in;
    largest = std::max(largest, num_weights);
  }
  return largest;
}

at::Tensor float_tensor(std::span<const float> values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

at::Tensor dense_values(const runtime::LinearWeights& linear) {
  at::Tensor weight_OI = at::empty({linear.num_out(), linear.num_in()}, at::kFloat);
  runtime::weight_rows(linear, 0, linear.num_out(),
                       {weight_OI.data_ptr<float>(), static_cast<size_t>(weight_OI.numel())});
  return weight_OI;
}

at::Tensor read_table(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& table,
                      at::ScalarType compute) {
  at::Tensor weight_OI = dense_values(checkpoint.linear(table)).to(compute);
  checkpoint.drop_pages(table);
  return weight_OI;
}

at::Tensor read_gain(const runtime::Checkpoint& checkpoint, const runtime::NormDescription& norm) {
  return float_tensor(checkpoint.norm_gain(norm));
}

void read_vectors(const runtime::Checkpoint& checkpoint, const runtime::BlockDescription& block,
                  NamedTensors& tensors) {
  for (const runtime::VectorDescription& vector : block.vectors()) {
    tensors[vector.name] = float_tensor(checkpoint.values_of(vector));
  }
}

at::Tensor read_bias(const runtime::Checkpoint& checkpoint, const runtime::NormDescription& norm) {
  return norm.has_bias ? float_tensor(checkpoint.norm_bias(norm)) : at::Tensor();
}

at::Tensor norm_of(const runtime::NormDescription& norm, const at::Tensor& gain_D, const at::Tensor& bias_D,
                   const at::Tensor& hidden_RD, at::ScalarType out) {
  return norm.centers ? layer_norm_rows(hidden_RD, gain_D, bias_D, norm.epsilon, out)
                      : rms_norm_rows(hidden_RD, gain_D, norm.epsilon, out);
}

FinalNorm read_final_norm(const runtime::Checkpoint& checkpoint) {
  const runtime::ModelDescription& model = checkpoint.description();
  FinalNorm norm{model.final_norm, read_gain(checkpoint, model.final_norm), read_bias(checkpoint, model.final_norm)};
  if (model.logit_scale == 1.0f) return norm;
  norm.gain_D.mul_(model.logit_scale);
  if (norm.bias_D.defined()) norm.bias_D.mul_(model.logit_scale);
  return norm;
}

EmbeddingRest read_embedding_rest(const runtime::Checkpoint& checkpoint) {
  const runtime::ModelDescription& model = checkpoint.description();
  EmbeddingRest rest;
  rest.first_position = model.first_position;
  rest.norm = model.embedding_norm;
  if (model.has_learned_positions()) rest.positions_PD = checkpoint.linear(model.position_table);
  if (!rest.norm.exists()) return rest;
  rest.gain_D = read_gain(checkpoint, rest.norm);
  rest.bias_D = read_bias(checkpoint, rest.norm);
  return rest;
}

void finish_embedding(const EmbeddingRest& rest, int64_t num_tokens, float* hidden_TD) {
  if (rest.positions_PD) {
    std::vector<float> rows_TD(static_cast<size_t>(num_tokens * rest.positions_PD->num_in()));
    runtime::weight_rows(*rest.positions_PD, rest.first_position, num_tokens, rows_TD);
    for (size_t i = 0; i < rows_TD.size(); ++i) hidden_TD[i] += rows_TD[i];
  }
  if (!rest.norm.exists()) return;
  const at::Tensor hidden = at::from_blob(hidden_TD, {num_tokens, rest.norm.width}, at::kFloat);
  hidden.copy_(norm_of(rest.norm, rest.gain_D, rest.bias_D, hidden, at::kFloat));
}

runtime::LinearWeights read_linear(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear,
                                   at::ScalarType compute, NamedTensors& tensors) {
  runtime::LinearWeights weights = checkpoint.linear(linear);
  tensors[linear.name + ".weight"] = dense_values(weights).to(compute);
  if (linear.has_bias) tensors[linear.name + ".bias"] = float_tensor(weights.bias_O).to(compute);
  checkpoint.drop_pages(linear);
  return weights;
}

at::ScalarType held_type(const runtime::LinearWeights& linear, at::ScalarType compute, at::Device device) {
  const auto* const dense = std::get_if<runtime::DenseWeight>(&linear.weight);
  return dense == nullptr ? compute : held_type(dense->dtype, compute, device);
}

NamedTensors read_block(const runtime::Checkpoint& checkpoint, int64_t index, at::ScalarType compute, HeldWeights held,
                        at::Device device) {
  const runtime::BlockDescription& block = checkpoint.description().blocks.at(static_cast<size_t>(index));
  NamedTensors tensors;
  for (const runtime::LinearDescription& linear : linears_of(block)) {
    const runtime::LinearWeights weights = read_linear(checkpoint, linear, compute, tensors);
    at::Tensor& weight_OI = tensors.find(linear.name + ".weight")->second;
    if (held == HeldWeights::narrow) weight_OI = weight_OI.to(held_type(weights, compute, device));
  }
  for (const runtime::NormDescription& norm : norms_of(block)) {
    tensors[norm.name + ".weight"] = read_gain(checkpoint, norm);
    if (norm.has_bias) tensors[norm.name + ".bias"] = read_bias(checkpoint, norm);
  }
  read_vectors(checkpoint, block, tensors);
  return tensors;
}

InputFormats read_input_formats(const runtime::Checkpoint& checkpoint) {
  InputFormats formats;
  for (const runtime::LinearDescription& linear : runtime::block_linears(checkpoint.description())) {
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    const bool is_rounded = scheme && !scheme->input.is_plain();
    if (!is_rounded && checkpoint.sparsity_threshold(linear) == 0.0f) continue;
    formats.emplace(linear.name, checkpoint.linear(linear).input);
  }
  return formats;
}

void embed(const runtime::LinearWeights& table_VD, float embedding_scale, std::span<const int32_t> ids_T,
           float* hidden_TD) {
  const int64_t width = table_VD.num_in();
  for (size_t t = 0; t < ids_T.size(); ++t) {
    const std::span<float> row(hidden_TD + static_cast<int64_t>(t) * width, static_cast<size_t>(width));
    runtime::weight_rows(table_VD, ids_T[t], 1, row);
    for (float& value : row) value *= embedding_scale;
  }
}

}  // namespace pare::compress
