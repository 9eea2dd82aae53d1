#include "compress/model/decoder_functions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/engine/backend.h"

namespace pare::compress {
namespace {

at::Tensor copied(std::span<const float> values, at::IntArrayRef shape) {
  return float_tensor(values).view(shape);
}

}  // namespace

DecoderFunctions::DecoderFunctions(const runtime::ModelDescription& model, int64_t max_tokens, at::ScalarType compute,
                                   at::Device device, AttentionKernel attention)
    : model_(&model), compute_(compute), device_(device), attention_(attention) {
  if (compute != at::kFloat && compute != at::kBFloat16) {
    throw std::invalid_argument("DecoderFunctions: expected float32 or bfloat16, found " +
                                std::string(at::toString(compute)));
  }
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const runtime::RopeDescription& rope = model.blocks[b].rope;
    for (size_t earlier = 0; earlier < b && angles_.size() == b; ++earlier) {
      if (rope != model.blocks[earlier].rope) continue;
      angles_.push_back(angles_[earlier]);
      channels_.push_back(channels_[earlier]);
    }
    if (angles_.size() > b) continue;
    channels_.emplace_back();
    if (!rope.channels_K.empty()) {
      const at::Tensor channels_K = at::empty({model.head_size}, at::kLong);
      std::copy(rope.channels_K.begin(), rope.channels_K.end(), channels_K.data_ptr<int64_t>());
      channels_.back() = channels_K.to(device);
    }
    const runtime::RopeTable table =
        runtime::make_rope_table(rope, model.head_size, max_tokens, rope.is_long(max_tokens));
    const std::vector<int64_t> shape = {max_tokens, model.head_size / 2};
    angles_.push_back(std::make_shared<RotaryAngles>(
        RotaryAngles{copied(table.cosine, shape).to(device), copied(table.sine, shape).to(device)}));
  }
}

void DecoderFunctions::set_input_formats(InputFormats formats) {
  input_formats_ = std::move(formats);
}

void DecoderFunctions::set_frozen(const runtime::Checkpoint& checkpoint) {
  if (model_->has_learned_positions()) {
    positions_PD_ = read_table(checkpoint, model_->position_table, at::kFloat).to(device_);
  }
  if (model_->embedding_norm.exists()) {
    embedding_gain_D_ = read_gain(checkpoint, model_->embedding_norm).to(device_);
    embedding_bias_D_ = read_bias(checkpoint, model_->embedding_norm).to(device_);
  }
  if (model_->final_norm.has_bias) final_bias_D_ = read_bias(checkpoint, model_->final_norm).to(device_);
}

at::Tensor DecoderFunctions::embed(const at::Tensor& ids_BT, const at::Tensor& table_VD) const {
  at::Tensor hidden_BTD = at::embedding(table_VD, ids_BT).to(at::kFloat);
  if (model_->embedding_scale != 1.0f) hidden_BTD = hidden_BTD.mul(model_->embedding_scale);
  const runtime::NormDescription& norm = model_->embedding_norm;
  if ((model_->has_learned_positions() && !positions_PD_.defined()) || (norm.exists() && !embedding_gain_D_.defined()))
    throw std::logic_error("DecoderFunctions: set_frozen was not called");
  if (model_->has_learned_positions()) {
    hidden_BTD = hidden_BTD.add(positions_PD_.narrow(0, model_->first_position, ids_BT.size(-1)));
  }
  return norm.exists() ? norm_of(norm, embedding_gain_D_, embedding_bias_D_, hidden_BTD, at::kFloat) : hidden_BTD;
}

at::Tensor DecoderFunctions::embedding_gradient(const at::Tensor& ids_BT, const at::Tensor& gradient_BTD,
                                                const at::Tensor& table_VD) const {
  const int64_t num_rows = table_VD.size(0);
  if (model_->embedding_norm.exists()) {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor table = table_VD.detach().to(at::kFloat).requires_grad_(true);
    return torch::autograd::grad({embed(ids_BT, table)}, {table}, {gradient_BTD}).front();
  }
  const at::Tensor by_row = model_->embedding_scale == 1.0f ? gradient_BTD : gradient_BTD.mul(model_->embedding_scale);
  return at::embedding_dense_backward(by_row, ids_BT, num_rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

at::Tensor DecoderFunctions::block(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD,
                                   KeyValues* earlier, const DocumentStarts& starts) const {
  return BlockFunctions(*this, index, weights, input_formats_).forward(hidden_BTD, earlier, starts);
}

at::Tensor DecoderFunctions::final_norm(const at::Tensor& gain_D, const at::Tensor& hidden_RD) const {
  const runtime::NormDescription& norm = model_->final_norm;
  if (norm.has_bias && !final_bias_D_.defined()) throw std::logic_error("DecoderFunctions: set_frozen was not called");
  const at::Tensor scaled_D = model_->logit_scale == 1.0f ? gain_D : gain_D.mul(model_->logit_scale);
  return norm_of(norm, scaled_D, norm.has_bias ? final_bias_D_.mul(model_->logit_scale) : at::Tensor(), hidden_RD,
                 compute_);
}

at::Tensor DecoderFunctions::head_products(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const {
  return at::linear(normalized_RD, head_VD);
}

at::Tensor DecoderFunctions::logits(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const {
  return logits_of(head_products(head_VD, normalized_RD));
}

at::Tensor DecoderFunctions::logits_of(const at::Tensor& products_RV) const {
  at::Tensor logits_RV = products_RV.to(at::kFloat);
  if (model_->logit_softcap > 0.0f) {
    logits_RV = logits_RV.div(model_->logit_softcap).tanh().mul(model_->logit_softcap);
  }
  return logits_RV;
}

BlockFunctions::BlockFunctions(const DecoderFunctions& model, int64_t index, const NamedTensors& weights,
                               const InputFormats& formats, const RoundedSite* site)
    : functions_(model),
      model_(model.description()),
      block_(model_.blocks.at(static_cast<size_t>(index))),
      angles_(model.angles(index)),
      channels_K_(model.channels(index)),
      weights_(weights),
      formats_(formats),
      site_(site) {}

at::Tensor BlockFunctions::norm(const runtime::NormDescription& norm, const at::Tensor& x, at::ScalarType out) const {
  return norm_of(norm, find_tensor(weights_, norm.name + ".weight"),
                 norm.has_bias ? find_tensor(weights_, norm.name + ".bias") : at::Tensor(), x, out);
}

const runtime::InputFormat* BlockFunctions::format_of(runtime::ActivationSite site) const {
  return site_ != nullptr && site_->site == site ? &site_->format : nullptr;
}

StageInput BlockFunctions::normalized(runtime::Stage stage, const at::Tensor& hidden) const {
  const runtime::NormDescription& norm = runtime::stage_norm(block_, stage);
  if (!norm.exists())
    return StageInput::plain(hidden.to(functions_.compute_type(), /*non_blocking=*/false, /*copy=*/true));
  if (norm.centers) return StageInput::plain(this->norm(norm, hidden, functions_.compute_type()));
  return StageInput::norm(hidden, find_tensor(weights_, norm.name + ".weight"), norm.epsilon,
                          functions_.compute_type());
}

std::vector<at::Tensor> BlockFunctions::stage_products_of(const StageInput& input,
                                                          const std::vector<runtime::LinearDescription>& readers,
                                                          const std::vector<int64_t>& widths,
                                                          const std::vector<int32_t>& rows) const {
  std::vector<LinearOperands> operands;
  for (const runtime::LinearDescription& reader : readers) operands.push_back(operands_of(weights_, reader));
  const std::vector<at::Tensor> products = stage_products(input, input_format_of(formats_, readers.front()), operands);
  if (products.size() == widths.size()) return products;
  const at::Tensor& stack = products.front();
  const at::Tensor order = rows.empty() ? at::Tensor() : at::tensor(rows, at::kInt).to(stack.device());
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t width : widths) {
    parts.push_back(order.defined() ? stack.index_select(-1, order.narrow(0, first, width))
                                    : stack.narrow(-1, first, width).contiguous());
    first += width;
  }
  return parts;
}

at::Tensor BlockFunctions::rotated_heads(const at::Tensor& x_BTHK, const RotaryAngles& angles) const {
  return rotate_heads(channels_K_.defined() ? x_BTHK.index_select(-1, channels_K_) : x_BTHK, angles);
}

// softmax(scale q k^T + mask) v.
at::Tensor BlockFunctions::attend(const at::Tensor& q_BHTK, const at::Tensor& k_BGTK, const at::Tensor& v_BGTK) const {
  const AttentionRule rule{model_.attention_scale, block_.sliding_window, model_.attention_softcap,
                           model_.alibi_slopes_H,
                           block_.sinks ? find_tensor(weights_, block_.sinks->name) : at::Tensor()};
  return attention_of(functions_.attention_kernel(), q_BHTK, k_BGTK, v_BGTK, rule, site_);
}

at::Tensor BlockFunctions::attend_documents(const at::Tensor& q_BTHK, const at::Tensor& k_BTGK,
                                            const at::Tensor& v_BTGK, const DocumentStarts& starts) const {
  const int64_t batch = q_BTHK.size(0), num_tokens = q_BTHK.size(1);
  const int64_t width = model_.num_heads * model_.head_size;
  std::vector<at::Tensor> mixed_TI;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int64_t>& later = starts.at(static_cast<size_t>(b));
    for (size_t d = 0; d <= later.size(); ++d) {
      const int64_t first = d == 0 ? 0 : later[d - 1];
      const int64_t count = (d < later.size() ? later[d] : num_tokens) - first;
      const RotaryAngles angles = angles_.positions(0, count);
      const auto part = [&](const at::Tensor& of_all) { return of_all.narrow(0, b, 1).narrow(1, first, count); };
      const at::Tensor mixed_1HTK =
          attend(rotated_heads(part(q_BTHK), angles).transpose(1, 2),
                 rotated_heads(part(k_BTGK), angles).transpose(1, 2), part(v_BTGK).transpose(1, 2));
      mixed_TI.push_back(mixed_1HTK.transpose(1, 2).reshape({count, width}));
    }
  }
  return at::cat(mixed_TI, 0).view({batch, num_tokens, width});
}

StageInput BlockFunctions::latent_of(runtime::Stage stage, const at::Tensor& made) const {
  const runtime::NormDescription& norm = runtime::stage_norm(block_, stage);
  return StageInput::norm(made.narrow(-1, 0, norm.width).contiguous(), find_tensor(weights_, norm.name + ".weight"),
                          norm.epsilon, functions_.compute_type());
}

StageInput BlockFunctions::latent(runtime::Stage stage, const at::Tensor& hidden) const {
  const runtime::LinearDescription& maker =
      stage.kind == runtime::Stage::query_latent ? *block_.latent->q_a : block_.latent->kv_a;
  return latent_of(stage, stage_product(normalized(runtime::Stage::attention_input, hidden),
                                        input_format_of(formats_, maker), operands_of(weights_, maker)));
}

BlockFunctions::Heads BlockFunctions::heads_of_latents(const at::Tensor& hidden) const {
  const runtime::LatentAttention& latent = *block_.latent;
  const int64_t num_tokens = hidden.size(-2), num_heads = model_.num_heads, size = model_.head_size;
  const std::vector<runtime::LinearDescription> readers = block_.attention_readers();
  const std::vector<at::Tensor> made = stage_products_of(normalized(runtime::Stage::attention_input, hidden), readers,
                                                         {readers[0].num_out, readers[1].num_out});
  const auto product = [&](runtime::Stage stage, const at::Tensor& of, const runtime::LinearDescription& linear) {
    return stage_product(latent_of(stage, of), input_format_of(formats_, linear), operands_of(weights_, linear));
  };
  const at::Tensor q = latent.q_a ? product(runtime::Stage::query_latent, made[0], block_.q) : made[0];
  const at::Tensor kv_BTHC = product(runtime::Stage::key_value_latent, made[1], latent.kv_b)
                                 .view({-1, num_tokens, num_heads, size - latent.num_rotated + model_.value_size});
  const at::Tensor rotated_BTHJ = made[1]
                                      .narrow(-1, latent.latent_size(), latent.num_rotated)
                                      .reshape({-1, num_tokens, 1, latent.num_rotated})
                                      .expand({-1, -1, num_heads, -1});
  const at::Tensor kept_BTHJ = kv_BTHC.narrow(3, 0, size - latent.num_rotated);
  at::Tensor v_BTHK = kv_BTHC.narrow(3, size - latent.num_rotated, model_.value_size);
  if (model_.value_size < size) {
    v_BTHK = at::cat(
        {v_BTHK, at::zeros({v_BTHK.size(0), num_tokens, num_heads, size - model_.value_size}, v_BTHK.options())}, 3);
  }
  return {q.view({-1, num_tokens, num_heads, size}), at::cat({kept_BTHJ, rotated_BTHJ}, 3), v_BTHK};
}

BlockFunctions::Heads BlockFunctions::heads_of(const at::Tensor& hidden) const {
  const int64_t num_tokens = hidden.size(-2);
  const std::vector<at::Tensor> products =
      stage_products_of(normalized(runtime::Stage::attention_input, hidden), block_.attention_readers(),
                        {block_.q.num_out, block_.k.num_out, block_.v.num_out}, block_.qkv_rows);
  const auto heads = [&](at::Tensor product, int64_t num_heads, const std::optional<runtime::NormDescription>& of) {
    const bool spans_heads = of && of->width != model_.head_size;
    if (spans_heads) product = norm(*of, product, functions_.compute_type());
    product = product.view({-1, num_tokens, num_heads, model_.head_size});
    return of && !spans_heads ? norm(*of, product, functions_.compute_type()) : product;
  };
  return {heads(products[0], model_.num_heads, block_.q_norm), heads(products[1], model_.num_kv_heads, block_.k_norm),
          heads(products[2], model_.num_kv_heads, {})};
}

at::Tensor BlockFunctions::attention(const at::Tensor& hidden, KeyValues* earlier, const DocumentStarts& starts) const {
  const int64_t num_tokens = hidden.size(-2);
  auto [q_BTHK, k_BTGK, v_BTGK] = block_.latent ? heads_of_latents(hidden) : heads_of(hidden);
  std::vector<int64_t> shape = hidden.sizes().vec();
  shape.back() = model_.num_heads * model_.value_size;
  const auto finished = [&](const at::Tensor& mixed) { return joined_heads(mixed, shape); };
  if (!starts.empty()) return finished(attend_documents(q_BTHK, k_BTGK, v_BTGK, starts));
  const int64_t num_earlier = earlier != nullptr && earlier->keys_BGTK.defined() ? earlier->keys_BGTK.size(2) : 0;
  const RotaryAngles angles = angles_.positions(num_earlier, num_tokens);
  q_BTHK = rotated_heads(q_BTHK, angles);
  k_BTGK = rotated_heads(k_BTGK, angles);
  at::Tensor k_BGTK = k_BTGK.transpose(1, 2);
  at::Tensor v_BGTK = v_BTGK.transpose(1, 2);
  if (earlier != nullptr) {
    if (num_earlier > 0) {
      k_BGTK = at::cat({earlier->keys_BGTK, k_BGTK}, 2);
      v_BGTK = at::cat({earlier->values_BGTK, v_BGTK}, 2);
    }
    *earlier = {k_BGTK, v_BGTK};
  }
  return finished(attend(q_BTHK.transpose(1, 2), k_BGTK, v_BGTK).transpose(1, 2));
}

at::Tensor BlockFunctions::joined_heads(const at::Tensor& mixed_BTHK, at::IntArrayRef shape) const {
  if (model_.value_size == model_.head_size) return mixed_BTHK.reshape(shape);
  const int64_t num_tokens = shape[shape.size() - 2];
  return mixed_BTHK.reshape({-1, num_tokens, model_.num_heads, model_.head_size})
      .narrow(3, 0, model_.value_size)
      .reshape(shape);
}

StageInput BlockFunctions::activation(int64_t expert, const StageInput& input) const {
  const runtime::FeedForwardDescription& network = block_.experts.at(static_cast<size_t>(std::max<int64_t>(expert, 0)));
  if (!network.is_gated()) {
    const at::Tensor up =
        stage_product(input, input_format_of(formats_, network.up), operands_of(weights_, network.up));
    return StageInput::plain(activation_of(up, model_.activation));
  }
  const std::vector<at::Tensor> products =
      stage_products_of(input, network.readers(), {network.gate.num_out, network.up.num_out});
  return StageInput::gated(products[0], products[1], model_.activation);
}

at::Tensor BlockFunctions::output(runtime::Stage stage, const StageInput& input) const {
  const runtime::LinearDescription linear = runtime::stage_layers(block_, stage).front();
  return stage_product(input, input_format_of(formats_, linear), operands_of(weights_, linear));
}

// What an output stage adds to the hidden state.
at::Tensor BlockFunctions::added(runtime::Stage stage, const at::Tensor& output) const {
  const bool is_attention = stage.kind == runtime::Stage::attention_output;
  const std::optional<runtime::NormDescription>& post =
      is_attention ? block_.post_attention_norm : block_.post_feed_forward_norm;
  at::Tensor delta = post ? norm(*post, output, at::kFloat) : output;
  if (model_.residual_scale != 1.0f) delta = delta.to(at::kFloat).mul(model_.residual_scale);
  return is_attention ? round_input(delta, format_of(runtime::ActivationSite::attention_output)) : delta;
}

at::Tensor BlockFunctions::add(runtime::Stage stage, const at::Tensor& output, const at::Tensor& hidden) const {
  const at::Tensor sum = hidden.add(added(stage, output));
  return stage.kind == runtime::Stage::attention_output
             ? sum
             : round_made(sum, format_of(runtime::ActivationSite::residual_sum));
}

void BlockFunctions::add_to(runtime::Stage stage, const at::Tensor& output, at::Tensor& hidden) const {
  hidden.add_(added(stage, output));
  const runtime::InputFormat* const format = format_of(runtime::ActivationSite::residual_sum);
  if (format != nullptr && stage.kind != runtime::Stage::attention_output) hidden.copy_(round_made(hidden, format));
}

TokenRouting BlockFunctions::route(const at::Tensor& x_RD) const {
  std::vector<at::Tensor> logits;
  for (const runtime::LinearDescription& router : block_.routers()) {
    logits.push_back(stage_product(StageInput::plain(x_RD), nullptr, operands_of(weights_, router)).to(at::kFloat));
  }
  return route_rows(logits.size() == 1 ? logits.front() : at::cat(logits, -1), block_.routing,
                    block_.correction ? find_tensor(weights_, block_.correction->name) : at::Tensor());
}

void BlockFunctions::add_expert(const ExpertRows& rows, const at::Tensor& output_SD, at::Tensor& sum_RD) {
  sum_RD.index_add_(0, rows.rows_S, output_SD.to(at::kFloat).mul(rows.weights_S.unsqueeze(1)));
}

at::Tensor BlockFunctions::mixture(const at::Tensor& x) const {
  const at::Tensor x_RD = x.reshape({-1, x.size(-1)});
  const TokenRouting routing = route(x_RD);
  at::Tensor sum_RD = at::zeros_like(x_RD, at::kFloat);
  for (int64_t e = 0; e < static_cast<int64_t>(block_.experts.size()); ++e) {
    const ExpertRows rows = routing.rows_of(e);
    if (rows.rows_S.size(0) == 0) continue;
    const StageInput x_SD = StageInput::plain(x_RD.index_select(0, rows.rows_S));
    add_expert(rows, output({runtime::Stage::feed_forward_output, e}, activation(e, x_SD)), sum_RD);
  }
  return sum_RD.view(x.sizes());
}

// The output of the feed-forward layer, or of all experts.
at::Tensor BlockFunctions::feed_forward(const at::Tensor& hidden) const {
  const StageInput x = normalized(runtime::Stage::feed_forward_input, hidden);
  return block_.is_mixture() ? mixture(x.value())
                             : output(runtime::Stage::feed_forward_output, activation(runtime::Stage::kNoExpert, x));
}

at::Tensor BlockFunctions::forward(const at::Tensor& hidden, KeyValues* earlier, const DocumentStarts& starts) const {
  const runtime::Stage mixes = runtime::Stage::attention_output;
  const at::Tensor attended = add(mixes, output(mixes, StageInput::plain(attention(hidden, earlier, starts))), hidden);
  return add(runtime::Stage::feed_forward_output, feed_forward(block_.is_parallel ? hidden : attended), attended);
}

void BlockFunctions::pass(at::Tensor& hidden) const {
  const runtime::Stage mixes = runtime::Stage::attention_output;
  const at::Tensor attended = output(mixes, StageInput::plain(attention(hidden)));
  if (block_.is_parallel) {
    const at::Tensor made = feed_forward(hidden);
    add_to(mixes, attended, hidden);
    return add_to(runtime::Stage::feed_forward_output, made, hidden);
  }
  add_to(mixes, attended, hidden);
  add_to(runtime::Stage::feed_forward_output, feed_forward(hidden), hidden);
}

int64_t BlockFunctions::tokens_at_a_time(int64_t num_tokens, int64_t token_block) const {
  const bool rounds_rows = std::ranges::all_of(formats_, [](const auto& format) { return format.second.is_rowwise(); });
  return site_ == nullptr && rounds_rows ? std::min(token_block, num_tokens) : num_tokens;
}

void BlockFunctions::write_attention(const at::Tensor& hidden_TD, const at::Tensor& out_TI, int64_t token_block) const {
  const int64_t num_tokens = hidden_TD.size(0), step = tokens_at_a_time(num_tokens, token_block);
  if (step == num_tokens) {
    out_TI.copy_(attention(hidden_TD));
    return;
  }
  KeyValues all;
  for (int64_t first = 0; first < num_tokens; first += step) {
    const int64_t count = std::min(step, num_tokens - first), end = first + count;
    const at::Tensor block_TD = hidden_TD.narrow(0, first, count);
    auto [q_BTHK, k_BTGK, v_BTGK] = block_.latent ? heads_of_latents(block_TD) : heads_of(block_TD);
    const RotaryAngles angles = angles_.positions(first, count);
    q_BTHK = rotated_heads(q_BTHK, angles);
    k_BTGK = rotated_heads(k_BTGK, angles);
    if (first == 0) {
      const std::vector<int64_t> shape = {1, k_BTGK.size(2), num_tokens, model_.head_size};
      all = {at::empty(shape, k_BTGK.options()), at::empty(shape, v_BTGK.options())};
    }
    all.keys_BGTK.narrow(2, first, count).copy_(k_BTGK.transpose(1, 2));
    all.values_BGTK.narrow(2, first, count).copy_(v_BTGK.transpose(1, 2));
    const at::Tensor mixed_BHTK =
        attend(q_BTHK.transpose(1, 2), all.keys_BGTK.narrow(2, 0, end), all.values_BGTK.narrow(2, 0, end));
    out_TI.narrow(0, first, count).copy_(joined_heads(mixed_BHTK.transpose(1, 2), {count, out_TI.size(1)}));
  }
}

void BlockFunctions::write_activation(int64_t expert, const at::Tensor& hidden_TD, const at::Tensor& out_TF,
                                      int64_t token_block) const {
  const int64_t num_tokens = hidden_TD.size(0), step = tokens_at_a_time(num_tokens, token_block);
  for (int64_t first = 0; first < num_tokens; first += step) {
    const int64_t count = std::min(step, num_tokens - first);
    at::Tensor rows_TF = out_TF.narrow(0, first, count);
    activation(expert, normalized(runtime::Stage::feed_forward_input, hidden_TD.narrow(0, first, count)))
        .write(rows_TF);
  }
}

at::Tensor BlockFunctions::output_of_hidden(runtime::Stage stage, const at::Tensor& hidden_TD,
                                            int64_t token_block) const {
  const int64_t num_tokens = hidden_TD.size(0), step = tokens_at_a_time(num_tokens, token_block);
  const at::Tensor output_TD = at::empty({num_tokens, model_.hidden_size}, at::kFloat);
  at::Tensor mixed_TI;
  if (stage.kind == runtime::Stage::attention_output) {
    mixed_TI = at::empty({num_tokens, model_.num_heads * model_.value_size}, at::kFloat);
    write_attention(hidden_TD, mixed_TI, token_block);
  }
  for (int64_t first = 0; first < num_tokens; first += step) {
    const int64_t count = std::min(step, num_tokens - first);
    const StageInput x = mixed_TI.defined()
                             ? StageInput::plain(mixed_TI.narrow(0, first, count))
                             : activation(runtime::Stage::kNoExpert, normalized(runtime::Stage::feed_forward_input,
                                                                                hidden_TD.narrow(0, first, count)));
    output_TD.narrow(0, first, count).copy_(output(stage, x));
  }
  return output_TD;
}

void BlockFunctions::add_output_of(runtime::Stage stage, const at::Tensor& x_TI, const at::Tensor& hidden_TD,
                                   int64_t token_block) const {
  const int64_t num_tokens = x_TI.size(0), step = tokens_at_a_time(num_tokens, token_block);
  for (int64_t first = 0; first < num_tokens; first += step) {
    const int64_t count = std::min(step, num_tokens - first);
    at::Tensor rows_TD = hidden_TD.narrow(0, first, count);
    add_to(stage, output(stage, StageInput::plain(x_TI.narrow(0, first, count))), rows_TD);
  }
}

int64_t BlockFunctions::walk_bytes(const runtime::ModelDescription& model, int64_t num_tokens, int64_t token_block,
                                   bool with_outputs) {
  // Mixtures and parallel blocks are passed with all their tokens at a time.
  const bool is_passed_whole =
      std::ranges::any_of(model.blocks, [](const auto& block) { return block.is_mixture() || block.is_parallel; });
  if (num_tokens <= token_block || is_passed_whole) return forward_bytes(model, num_tokens);
  const bool has_latents =
      std::ranges::any_of(model.blocks, [](const auto& block) { return block.latent.has_value(); });
  const bool has_sinks = std::ranges::any_of(model.blocks, [](const auto& block) { return block.sinks.has_value(); });
  const int64_t row_bytes = num_tokens * static_cast<int64_t>(sizeof(float));
  // Of all tokens: keys and values, and for an output what is mixed, and itself.
  const int64_t queries = model.num_heads * model.head_size;
  const int64_t keys = has_latents ? queries : model.num_kv_heads * model.head_size;
  return forward_bytes(model, token_block) + (2 * keys + (with_outputs ? queries + model.hidden_size : 0)) * row_bytes +
         query_block_bytes(model.num_heads / model.num_kv_heads, model.head_size, num_tokens, has_sinks);
}

int64_t BlockFunctions::forward_bytes(const runtime::ModelDescription& model, int64_t num_tokens) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size;
  const int64_t queries = model.num_heads * model.head_size, keys = model.num_kv_heads * model.head_size;
  // The norm, queries, keys and values; queries and keys behind their norms and their rotation, and what they mix.
  int64_t attention = std::max(width + queries + 2 * keys, 3 * queries + 3 * keys);
  // What chooses experts: a few values of each expert, and of each choice.
  int64_t routing_bytes = 0;
  for (const runtime::BlockDescription& block : model.blocks) {
    if (block.is_mixture()) {
      routing_bytes = std::max(routing_bytes, 24 * block.num_routed() + 64 * block.routing.experts_per_token);
    }
    if (!block.latent) continue;
    // What the norm is multiplied to, what latents are multiplied to, and queries, keys and values as heads.
    int64_t latents = 0;
    for (const runtime::LinearDescription& reader : block.attention_readers()) latents += reader.num_out;
    attention = std::max({attention, width + latents, latents + block.latent->kv_b.num_out + queries + 2 * keys});
  }
  // What is mixed as it came and rounded, the output and what the norm behind it makes.
  const int64_t attended = 2 * queries + 2 * width;
  // Gate, up and their product, and of the rows: a mixture's norm, its sum, an expert's rows, its output and its share.
  const int64_t feed_forward = 3 * inner + (model.has_mixture() ? 5 : 2) * width;
  const bool has_sinks = std::ranges::any_of(model.blocks, [](const auto& block) { return block.sinks.has_value(); });
  const int64_t row_bytes = num_tokens * static_cast<int64_t>(sizeof(float));
  const int64_t heads = model.num_heads / model.num_kv_heads;
  return std::max(attention * row_bytes + query_block_bytes(heads, model.head_size, num_tokens, has_sinks),
                  std::max(attended, feed_forward) * row_bytes + num_tokens * routing_bytes);
}

}  // namespace pare::compress
