#include "compress/model/encoder_functions.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

#include "compress/model/row_functions_by_ops.h"

namespace pare::compress {

std::vector<at::Tensor> EncoderFunctions::products(runtime::Stage stage, const at::Tensor& x_TI) const {
  const std::vector<runtime::LinearDescription> linears = runtime::stage_layers(block_, stage);
  std::vector<LinearOperands> operands;
  for (const runtime::LinearDescription& linear : linears) operands.push_back(operands_of(weights_, linear));
  return stage_products(StageInput::plain(x_TI), input_format_of(formats_, linears.front()), operands);
}

at::Tensor EncoderFunctions::attention(const at::Tensor& hidden_TD) const {
  std::vector<at::Tensor> heads_HTK = products(runtime::Stage::attention_input, hidden_TD);  // of queries, keys, values
  for (at::Tensor& product : heads_HTK) {
    product = product.view({hidden_TD.size(0), model_.num_heads, model_.head_size}).transpose(0, 1);
  }
  const at::Tensor scores_HTT = at::matmul(heads_HTK[0], heads_HTK[1].transpose(1, 2)).mul_(model_.attention_scale);
  const at::Tensor mixed_HTK = at::matmul(at::softmax(scores_HTT, 2), heads_HTK[2]);
  return mixed_HTK.transpose(0, 1).reshape({hidden_TD.size(0), model_.num_heads * model_.head_size});
}

at::Tensor EncoderFunctions::activation(const at::Tensor& hidden_TD) const {
  return activation_by_ops(products(runtime::Stage::feed_forward_input, hidden_TD).front(), model_.activation);
}

at::Tensor EncoderFunctions::add_output(runtime::Stage stage, const at::Tensor& x_TI,
                                        const at::Tensor& hidden_TD) const {
  const runtime::LayerNormDescription& norm =
      stage == runtime::Stage::attention_output ? block_.attention_norm : block_.feed_forward_norm;
  return at::layer_norm(hidden_TD.add(products(stage, x_TI).front()), {model_.hidden_size},
                        find_tensor(weights_, norm.name + ".weight"), find_tensor(weights_, norm.name + ".bias"),
                        static_cast<double>(norm.epsilon));
}

int64_t EncoderFunctions::forward_bytes(const runtime::EncoderDescription& model, int64_t num_tokens) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size, scores = model.num_heads * num_tokens;
  // Queries, keys, values, scores and what is mixed of them, from the scores' softmax and then in the order of tokens.
  const int64_t attention = 4 * width + scores + std::max(scores, width);
  // The rounded input, the products and their activation.
  const int64_t activation = width + 2 * inner;
  // The rounded input, its product, the sum and the norm with its mean and deviation.
  const int64_t output = std::max(width, inner) + 3 * width + 2;
  return num_tokens * std::max({attention, activation, output}) * static_cast<int64_t>(sizeof(float));
}

}  // namespace pare::compress
