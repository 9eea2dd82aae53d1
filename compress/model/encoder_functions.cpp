#include "compress/model/encoder_functions.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <limits>

#include "compress/model/row_functions_by_ops.h"
#include "runtime/engine/backend.h"

namespace pare::compress {

std::vector<at::Tensor> EncoderFunctions::products(runtime::Stage stage, const at::Tensor& x_TI) const {
  const std::vector<runtime::LinearDescription> linears = runtime::stage_layers(block_, stage);
  std::vector<LinearOperands> operands;
  for (const runtime::LinearDescription& linear : linears) operands.push_back(operands_of(weights_, linear));
  return stage_products(StageInput::plain(x_TI), input_format_of(formats_, linears.front()), operands);
}

at::Tensor EncoderFunctions::normalized(const runtime::LayerNormDescription& norm, const at::Tensor& x_TD) const {
  return at::layer_norm(x_TD, {model_.hidden_size}, find_tensor(weights_, norm.name + ".weight"),
                        norm.has_bias ? find_tensor(weights_, norm.name + ".bias") : at::Tensor(),
                        static_cast<double>(norm.epsilon));
}

at::Tensor EncoderFunctions::input(runtime::Stage stage, const at::Tensor& hidden_TD) const {
  const runtime::LayerNormDescription& norm =
      stage == runtime::Stage::attention_input ? block_.attention_norm : block_.feed_forward_norm;
  return block_.normalizes_first && norm.exists() ? normalized(norm, hidden_TD) : hidden_TD;
}

// Adds the scores of distances, and hides what lies outside of the window.
void EncoderFunctions::change_scores(at::Tensor& scores_HTT) const {
  if (!distances_HN_.defined() && block_.sliding_window == 0) return;
  const int64_t num_tokens = scores_HTT.size(1);
  const at::Tensor places_T = at::arange(num_tokens, at::kLong);
  const at::Tensor distances_TT = places_T.unsqueeze(0).sub(places_T.unsqueeze(1));  // key - query
  if (distances_HN_.defined()) {
    const int64_t reach = distances_HN_.size(1) / 2;
    const at::Tensor columns_TT = distances_TT.clamp(-reach, reach).add_(reach);
    for (int64_t h = 0; h < model_.num_heads; ++h) {
      scores_HTT[h].add_(distances_HN_[h].index_select(0, columns_TT.view({-1})).view({num_tokens, num_tokens}));
    }
  }
  if (block_.sliding_window > 0) {
    scores_HTT.masked_fill_(distances_TT.abs().ge(block_.sliding_window).unsqueeze(0),
                            -std::numeric_limits<double>::infinity());
  }
}

at::Tensor EncoderFunctions::attention(const at::Tensor& hidden_TD) const {
  const int64_t num_tokens = hidden_TD.size(0);
  std::vector<at::Tensor> heads_HTK =
      products(runtime::Stage::attention_input, input(runtime::Stage::attention_input, hidden_TD));
  if (block_.qkv) heads_HTK = heads_HTK.front().chunk(3, 1);  // of queries, keys, values
  for (at::Tensor& product : heads_HTK) {
    product = product.reshape({num_tokens, model_.num_heads, model_.head_size});
  }
  if (!model_.ropes.empty()) {
    const runtime::RopeTable table = runtime::make_rope_table(model_.ropes[block_.rope], model_.head_size, num_tokens);
    const auto angles_of = [&](const std::vector<float>& values) {
      return float_tensor(values).view({num_tokens, model_.head_size / 2});
    };
    const RotaryAngles angles = {angles_of(table.cosine), angles_of(table.sine)};
    for (size_t i = 0; i < 2; ++i) heads_HTK[i] = rotate_heads_by_ops(heads_HTK[i].unsqueeze(0), angles).squeeze(0);
  }
  for (at::Tensor& product : heads_HTK) product = product.transpose(0, 1);
  at::Tensor scores_HTT = at::matmul(heads_HTK[0], heads_HTK[1].transpose(1, 2)).mul_(model_.attention_scale);
  change_scores(scores_HTT);
  const at::Tensor mixed_HTK = at::matmul(at::softmax(scores_HTT, 2), heads_HTK[2]);
  return mixed_HTK.transpose(0, 1).reshape({hidden_TD.size(0), model_.num_heads * model_.head_size});
}

at::Tensor EncoderFunctions::activation(const at::Tensor& hidden_TD) const {
  std::vector<at::Tensor> inner_TF =
      products(runtime::Stage::feed_forward_input, input(runtime::Stage::feed_forward_input, hidden_TD));
  if (!block_.feed_forward.is_gated()) return activation_by_ops(inner_TF.front(), model_.activation);
  if (block_.feed_forward.gate_up) inner_TF = inner_TF.front().chunk(2, 1);
  return gated_activation_by_ops(inner_TF[0], inner_TF[1], model_.activation);
}

at::Tensor EncoderFunctions::add_output(runtime::Stage stage, const at::Tensor& x_TI,
                                        const at::Tensor& hidden_TD) const {
  const runtime::LayerNormDescription& norm =
      stage == runtime::Stage::attention_output ? block_.attention_norm : block_.feed_forward_norm;
  const at::Tensor sum_TD = hidden_TD.add(products(stage, x_TI).front());
  return block_.normalizes_first ? sum_TD : normalized(norm, sum_TD);
}

int64_t EncoderFunctions::forward_bytes(const runtime::EncoderDescription& model, int64_t num_tokens) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size, scores = model.num_heads * num_tokens;
  const runtime::EncoderBlockDescription& block = model.blocks.front();
  // Queries, keys, values, scores and what is mixed of them, from the scores' softmax and then in the order of tokens.
  int64_t attention = 4 * width + scores + std::max(scores, width);
  // The normalized input, rotated queries and keys with their halves, distances and their columns (8 bytes each).
  if (block.normalizes_first) attention += width;
  if (!model.ropes.empty()) attention += 5 * width;
  if (model.distances || !model.ropes.empty()) attention += 6 * num_tokens;
  // The normalized and the rounded input, the products and their activation.
  const int64_t activation = (block.normalizes_first ? 2 : 1) * width + (block.feed_forward.is_gated() ? 4 : 2) * inner;
  // The rounded input, its product, the sum and the norm with its mean and deviation.
  const int64_t output = std::max(width, inner) + 3 * width + 2;
  return num_tokens * std::max({attention, activation, output}) * static_cast<int64_t>(sizeof(float));
}

}  // namespace pare::compress
