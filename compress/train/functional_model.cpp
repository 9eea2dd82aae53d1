#include "compress/train/functional_model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <stdexcept>
#include <utility>

#include "compress/train/grouped_attention.h"
#include "compress/train/norm_linears.h"
#include "compress/walk/decoder_block.h"

namespace pare {
namespace {

at::Tensor copied(std::span<const float> values, at::IntArrayRef shape) {
  return float_tensor(values).view(shape);
}

const at::Tensor& find(const NamedTensors& weights, const std::string& name) {
  const auto found = weights.find(name);
  if (found == weights.end()) {
    throw std::invalid_argument("the functional model lacks the tensor '" + name + "'");
  }
  return found->second;
}

// Of the last queries of that many keys. Keys that a query must not see are -inf: later ones, and those before its
// window.
at::Tensor attention_mask(int64_t num_queries, int64_t num_keys, int64_t window) {
  at::Tensor mask_QK = at::zeros({num_queries, num_keys}, at::kFloat);
  float* const mask = mask_QK.data_ptr<float>();
  for (int64_t q = 0; q < num_queries; ++q) {
    const int64_t t = num_keys - num_queries + q;
    for (int64_t k = 0; k < num_keys; ++k) {
      if (k > t || k <= t - window) mask[q * num_keys + k] = -std::numeric_limits<float>::infinity();
    }
  }
  return mask_QK;
}

bool is_same_rope(const RopeDescription& a, const RopeDescription& b) {
  return a.attention_factor == b.attention_factor && a.inverse_frequencies == b.inverse_frequencies;
}

}  // namespace

FunctionalModel::FunctionalModel(const ModelDescription& model, int64_t max_tokens, at::ScalarType compute,
                                 at::Device device)
    : model_(&model), compute_(compute), device_(device) {
  if (compute != at::kFloat && compute != at::kBFloat16) {
    throw std::invalid_argument("FunctionalModel: expected float32 or bfloat16, found " +
                                std::string(at::toString(compute)));
  }
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const RopeDescription& rope = model.blocks[b].rope;
    for (size_t earlier = 0; earlier < b && angles_.size() == b; ++earlier) {
      if (is_same_rope(rope, model.blocks[earlier].rope)) angles_.push_back(angles_[earlier]);
    }
    if (angles_.size() > b) continue;
    const RopeTable table = make_rope_table(rope, model.head_size, max_tokens);
    const std::vector<int64_t> shape = {max_tokens, model.head_size / 2};
    angles_.push_back(std::make_shared<RotaryAngles>(
        RotaryAngles{copied(table.cosine, shape).to(device), copied(table.sine, shape).to(device)}));
  }
}

void FunctionalModel::set_input_formats(InputFormats formats) {
  input_formats_ = std::move(formats);
}

at::Tensor FunctionalModel::embed(const at::Tensor& ids_BT, const at::Tensor& table_VD) const {
  at::Tensor hidden_BTD = at::embedding(table_VD, ids_BT).to(at::kFloat);
  return model_->embedding_scale == 1.0f ? hidden_BTD : hidden_BTD.mul(model_->embedding_scale);
}

at::Tensor FunctionalModel::embedding_gradient(const at::Tensor& ids_BT, const at::Tensor& gradient_BTD,
                                               int64_t num_rows) const {
  const at::Tensor by_row = model_->embedding_scale == 1.0f ? gradient_BTD : gradient_BTD.mul(model_->embedding_scale);
  return at::embedding_dense_backward(by_row, ids_BT, num_rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

const InputFormat* FunctionalModel::input_format(const LinearDescription& reader) const {
  const auto found = input_formats_.find(reader.name);
  return found == input_formats_.end() || found->second.is_plain() ? nullptr : &found->second;
}

at::Tensor FunctionalModel::linear(const NamedTensors& weights, const LinearDescription& linear,
                                   const at::Tensor& x) const {
  return held_linear(x, find(weights, linear.name + ".weight"),
                     linear.has_bias ? find(weights, linear.name + ".bias") : at::Tensor());
}

at::Tensor FunctionalModel::norm(const NamedTensors& weights, const NormDescription& norm, const at::Tensor& x,
                                 at::ScalarType out) const {
  return rms_norm_rows(x, find(weights, norm.name + ".weight"), norm.epsilon, out);
}

std::vector<at::Tensor> FunctionalModel::linears_behind(const NormDescription& norm,
                                                        const std::vector<const LinearDescription*>& linears,
                                                        const NamedTensors& weights, const at::Tensor& x) const {
  std::vector<LinearOperands> operands;
  for (const LinearDescription* linear : linears) {
    operands.push_back({find(weights, linear->name + ".weight"),
                        linear->has_bias ? find(weights, linear->name + ".bias") : at::Tensor()});
  }
  return norm_linears(x, {find(weights, norm.name + ".weight"), norm.epsilon, compute_}, input_format(*linears.front()),
                      operands);
}

// softmax(scale q k^T + mask) v.
at::Tensor FunctionalModel::attend(const BlockDescription& block, const at::Tensor& q_BHTK, const at::Tensor& k_BGTK,
                                   const at::Tensor& v_BGTK) const {
  const int64_t num_queries = q_BHTK.size(2);
  const int64_t num_keys = k_BGTK.size(2);
  const bool sees_all = block.sliding_window <= 0 || block.sliding_window >= num_keys;
  const auto mask = [&] {
    return attention_mask(num_queries, num_keys, sees_all ? num_keys : block.sliding_window).to(device_);
  };
  if (model_->attention_softcap > 0.0f) {
    const at::Tensor keys_BHKT = spread_heads(k_BGTK, model_->num_heads).transpose(2, 3);
    at::Tensor scores = at::matmul(q_BHTK, keys_BHKT).to(at::kFloat).mul(model_->attention_scale);
    scores = scores.div(model_->attention_softcap).tanh().mul(model_->attention_softcap);
    scores = scores.add(mask());
    return at::matmul(at::softmax(scores, -1).to(v_BGTK.scalar_type()), spread_heads(v_BGTK, model_->num_heads));
  }
  if (sees_all && num_queries == num_keys) {
    return grouped_attention(q_BHTK, k_BGTK, v_BGTK, {.is_causal = true, .mask_QK = {}}, model_->attention_scale);
  }
  return grouped_attention(q_BHTK, k_BGTK, v_BGTK, {.mask_QK = mask().to(q_BHTK.scalar_type())},
                           model_->attention_scale);
}

at::Tensor FunctionalModel::attend_documents(int64_t index, const at::Tensor& q_BTHK, const at::Tensor& k_BTGK,
                                             const at::Tensor& v_BTGK, const DocumentStarts& starts) const {
  const BlockDescription& block = model_->blocks[static_cast<size_t>(index)];
  const RotaryAngles& all = *angles_[static_cast<size_t>(index)];
  const int64_t batch = q_BTHK.size(0), num_tokens = q_BTHK.size(1);
  const int64_t width = model_->num_heads * model_->head_size;
  std::vector<at::Tensor> mixed_TI;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int64_t>& behind = starts.at(static_cast<size_t>(b));
    for (size_t d = 0; d <= behind.size(); ++d) {
      const int64_t first = d == 0 ? 0 : behind[d - 1];
      const int64_t count = (d < behind.size() ? behind[d] : num_tokens) - first;
      const RotaryAngles angles{all.cosine_TJ.narrow(0, 0, count), all.sine_TJ.narrow(0, 0, count)};
      const auto part = [&](const at::Tensor& of_all) { return of_all.narrow(0, b, 1).narrow(1, first, count); };
      const at::Tensor mixed_1HTK =
          attend(block, rotate_heads(part(q_BTHK), angles).transpose(1, 2),
                 rotate_heads(part(k_BTGK), angles).transpose(1, 2), part(v_BTGK).transpose(1, 2));
      mixed_TI.push_back(mixed_1HTK.transpose(1, 2).reshape({count, width}));
    }
  }
  return at::cat(mixed_TI, 0).view({batch, num_tokens, width});
}

at::Tensor FunctionalModel::attention(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD,
                                      KeyValues* earlier, const DocumentStarts& starts) const {
  const BlockDescription& block = model_->blocks[static_cast<size_t>(index)];
  const int64_t batch = hidden_BTD.size(0);
  const int64_t num_tokens = hidden_BTD.size(1);
  const std::vector<at::Tensor> products =
      linears_behind(block.attention_norm, {&block.q, &block.k, &block.v}, weights, hidden_BTD);
  const auto heads = [&](const at::Tensor& product, int64_t num_heads) {
    return product.view({batch, num_tokens, num_heads, model_->head_size});
  };
  at::Tensor q_BTHK = heads(products[0], model_->num_heads);
  at::Tensor k_BTGK = heads(products[1], model_->num_kv_heads);
  at::Tensor v_BTGK = heads(products[2], model_->num_kv_heads);
  if (block.q_norm) q_BTHK = norm(weights, *block.q_norm, q_BTHK, compute_);
  if (block.k_norm) k_BTGK = norm(weights, *block.k_norm, k_BTGK, compute_);
  if (!starts.empty()) {
    const at::Tensor mixed_BTI = attend_documents(index, q_BTHK, k_BTGK, v_BTGK, starts);
    return linear(weights, block.o, round_input(mixed_BTI, input_format(block.o)));
  }
  const int64_t num_earlier = earlier != nullptr && earlier->keys_BGTK.defined() ? earlier->keys_BGTK.size(2) : 0;
  const RotaryAngles& all = *angles_[static_cast<size_t>(index)];
  const RotaryAngles angles{all.cosine_TJ.narrow(0, num_earlier, num_tokens),
                            all.sine_TJ.narrow(0, num_earlier, num_tokens)};
  q_BTHK = rotate_heads(q_BTHK, angles);
  at::Tensor k_BGTK = rotate_heads(k_BTGK, angles).transpose(1, 2);
  at::Tensor v_BGTK = v_BTGK.transpose(1, 2);
  if (earlier != nullptr) {
    if (num_earlier > 0) {
      k_BGTK = at::cat({earlier->keys_BGTK, k_BGTK}, 2);
      v_BGTK = at::cat({earlier->values_BGTK, v_BGTK}, 2);
    }
    *earlier = {k_BGTK, v_BGTK};
  }
  const at::Tensor mixed_BHTK = attend(block, q_BTHK.transpose(1, 2), k_BGTK, v_BGTK);
  const at::Tensor mixed_BTI =
      mixed_BHTK.transpose(1, 2).reshape({batch, num_tokens, model_->num_heads * model_->head_size});
  return linear(weights, block.o, round_input(mixed_BTI, input_format(block.o)));
}

at::Tensor FunctionalModel::gated(const NamedTensors& weights, const FeedForwardDescription& network,
                                  const at::Tensor& gate_RF, const at::Tensor& up_RF) const {
  return gated_linear(gate_RF, up_RF, model_->activation, input_format(network.down),
                      find(weights, network.down.name + ".weight"),
                      network.down.has_bias ? find(weights, network.down.name + ".bias") : at::Tensor());
}

// Every token's k experts, the lower index first among equals, weighed as routing.cpp does.
at::Tensor FunctionalModel::mixture(const BlockDescription& block, const NamedTensors& weights,
                                    const at::Tensor& x_BTD) const {
  const at::Tensor x_RD = x_BTD.reshape({-1, x_BTD.size(-1)});
  const at::Tensor shares_RE = at::softmax(linear(weights, *block.router, x_RD).to(at::kFloat), -1);
  const auto [sorted_RE, order_RE] = at::sort(shares_RE, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const int64_t num_chosen = block.routing.experts_per_token;
  at::Tensor top_RK = sorted_RE.narrow(1, 0, num_chosen);
  if (block.routing.normalizes_top_weights) top_RK = top_RK.div(top_RK.sum(-1, /*keepdim=*/true));
  const at::Tensor chosen_RK = order_RE.narrow(1, 0, num_chosen);
  at::Tensor sum_RD = at::zeros_like(x_RD, at::kFloat);
  for (size_t e = 0; e < block.experts.size(); ++e) {
    const at::Tensor places_S2 = chosen_RK.eq(static_cast<int64_t>(e)).nonzero();
    if (places_S2.size(0) == 0) continue;
    const at::Tensor rows_S = places_S2.select(1, 0).contiguous();
    const at::Tensor weight_S =
        top_RK.reshape({-1}).index_select(0, rows_S.mul(num_chosen).add(places_S2.select(1, 1)));
    const FeedForwardDescription& expert = block.experts[e];
    const at::Tensor x_SD = round_input(x_RD.index_select(0, rows_S), input_format(expert.gate));
    const at::Tensor out_SD =
        gated(weights, expert, linear(weights, expert.gate, x_SD), linear(weights, expert.up, x_SD)).to(at::kFloat);
    sum_RD = sum_RD.index_add(0, rows_S, out_SD.mul(weight_S.unsqueeze(1)));
  }
  return sum_RD.view(x_BTD.sizes());
}

at::Tensor FunctionalModel::block(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD,
                                  KeyValues* earlier, const DocumentStarts& starts) const {
  const BlockDescription& block = model_->blocks.at(static_cast<size_t>(index));
  const auto added = [&](const at::Tensor& hidden, const at::Tensor& delta, const auto& post_norm) {
    return post_norm ? hidden.add(norm(weights, *post_norm, delta, at::kFloat)) : hidden.add(delta);
  };
  const at::Tensor attended =
      added(hidden_BTD, attention(index, weights, hidden_BTD, earlier, starts), block.post_attention_norm);
  const auto network = [&] {
    if (block.is_mixture()) return mixture(block, weights, norm(weights, block.feed_forward_norm, attended, compute_));
    const FeedForwardDescription& dense = block.experts.front();
    const std::vector<at::Tensor> products =
        linears_behind(block.feed_forward_norm, {&dense.gate, &dense.up}, weights, attended);
    return gated(weights, dense, products[0], products[1]);
  };
  return added(attended, network(), block.post_feed_forward_norm);
}

at::Tensor FunctionalModel::final_norm(const at::Tensor& gain_D, const at::Tensor& hidden_RD) const {
  return rms_norm_rows(hidden_RD, gain_D, model_->final_norm.epsilon, compute_);
}

at::Tensor FunctionalModel::head_products(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const {
  return at::linear(normalized_RD, head_VD);
}

at::Tensor FunctionalModel::logits(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const {
  return logits_of(head_products(head_VD, normalized_RD));
}

at::Tensor FunctionalModel::logits_of(const at::Tensor& products_RV) const {
  at::Tensor logits_RV = products_RV.to(at::kFloat);
  if (model_->logit_softcap > 0.0f) {
    logits_RV = logits_RV.div(model_->logit_softcap).tanh().mul(model_->logit_softcap);
  }
  return logits_RV;
}

at::Tensor FrozenModel::normalized(const at::Tensor& ids_BT, std::vector<KeyValues>* earlier,
                                   std::vector<at::Tensor>* behind_blocks, const DocumentStarts& starts) const {
  if (earlier != nullptr) earlier->resize(blocks.size());
  if (behind_blocks != nullptr) behind_blocks->clear();
  at::Tensor hidden_BTD = functions->embed(ids_BT, embedding_VD);
  for (size_t b = 0; b < blocks.size(); ++b) {
    hidden_BTD = functions->block(static_cast<int64_t>(b), blocks[b], hidden_BTD,
                                  earlier == nullptr ? nullptr : &(*earlier)[b], starts);
    if (behind_blocks != nullptr) behind_blocks->push_back(hidden_BTD);
  }
  return functions->final_norm(gain_D, hidden_BTD);
}

FrozenModel read_frozen(const Checkpoint& checkpoint, const FunctionalModel& functions, HeldWeights held) {
  const ModelDescription& model = checkpoint.description();
  const at::ScalarType compute = functions.compute_type();
  const at::Device device = functions.device();
  FrozenModel frozen{&functions, read_table(checkpoint, checkpoint.embedding(), compute).to(device), {}, {}, {}};
  frozen.head_VD =
      model.tied_head ? frozen.embedding_VD : read_table(checkpoint, checkpoint.head(), compute).to(device);
  frozen.gain_D = read_gain(checkpoint, model.final_norm).to(device);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    NamedTensors& tensors = frozen.blocks.emplace_back(read_block(checkpoint, static_cast<int64_t>(b), compute));
    for (auto& [name, tensor] : tensors) tensor = tensor.to(device);
    if (held == HeldWeights::widened) continue;
    for (const LinearDescription& linear : linears_of(model.blocks[b])) {
      at::Tensor& weight_OI = tensors.find(linear.name + ".weight")->second;
      weight_OI = weight_OI.to(held_type(checkpoint.linear(linear), compute, device));
    }
  }
  return frozen;
}

std::vector<LinearDescription> linears_of(const BlockDescription& block) {
  std::vector<LinearDescription> linears = {block.q, block.k, block.v, block.o};
  if (block.router) linears.push_back(*block.router);
  for (const FeedForwardDescription& expert : block.experts) {
    linears.insert(linears.end(), {expert.gate, expert.up, expert.down});
  }
  return linears;
}

std::vector<NormDescription> norms_of(const BlockDescription& block) {
  std::vector<NormDescription> norms = {block.attention_norm};
  for (const auto& norm : {block.q_norm, block.k_norm, block.post_attention_norm}) {
    if (norm) norms.push_back(*norm);
  }
  norms.push_back(block.feed_forward_norm);
  if (block.post_feed_forward_norm) norms.push_back(*block.post_feed_forward_norm);
  return norms;
}

at::Tensor read_table(const Checkpoint& checkpoint, const LinearDescription& table, at::ScalarType compute) {
  at::Tensor weight_OI = at::empty({table.num_out, table.num_in}, at::kFloat);
  weight_rows(checkpoint.linear(table), 0, table.num_out,
              {weight_OI.data_ptr<float>(), static_cast<size_t>(weight_OI.numel())});
  checkpoint.drop_pages(table);
  return weight_OI.to(compute);
}

at::Tensor read_gain(const Checkpoint& checkpoint, const NormDescription& norm) {
  return float_tensor(checkpoint.norm_gain(norm));
}

at::ScalarType held_type(const LinearWeights& linear, at::ScalarType compute, at::Device device) {
  const auto* const dense = std::get_if<DenseWeight>(&linear.weight);
  return dense == nullptr ? compute : held_type(dense->dtype, compute, device);
}

NamedTensors read_block(const Checkpoint& checkpoint, int64_t index, at::ScalarType compute) {
  const BlockDescription& block = checkpoint.description().blocks.at(static_cast<size_t>(index));
  NamedTensors tensors;
  for (const LinearDescription& linear : linears_of(block)) {
    tensors[linear.name + ".weight"] = read_table(checkpoint, linear, compute);
    if (linear.has_bias) tensors[linear.name + ".bias"] = float_tensor(checkpoint.linear(linear).bias_O).to(compute);
  }
  for (const NormDescription& norm : norms_of(block)) tensors[norm.name + ".weight"] = read_gain(checkpoint, norm);
  return tensors;
}

InputFormats read_input_formats(const Checkpoint& checkpoint) {
  InputFormats formats;
  for (const LinearDescription& linear : block_linears(checkpoint.description())) {
    InputFormat format = checkpoint.linear(linear).input;
    if (!format.is_plain()) formats.emplace(linear.name, std::move(format));
  }
  return formats;
}

}  // namespace pare
