#include "compress/model/encoder_functions.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include "compress/model/row_functions_by_ops.h"

namespace pare {

std::vector<at::Tensor> EncoderFunctions::products(Stage stage, const at::Tensor& x_TI) const {
  const std::vector<LinearDescription> linears = stage_layers(block_, stage);
  std::vector<LinearOperands> operands;
  for (const LinearDescription& linear : linears) operands.push_back(operands_of(weights_, linear));
  return stage_products(StageInput::plain(x_TI), input_format_of(formats_, linears.front()), operands);
}

at::Tensor EncoderFunctions::attention(const at::Tensor& hidden_TD) const {
  std::vector<at::Tensor> heads_HTK = products(Stage::attention_input, hidden_TD);  // of queries, keys, values
  for (at::Tensor& product : heads_HTK) {
    product = product.view({hidden_TD.size(0), model_.num_heads, model_.head_size}).transpose(0, 1);
  }
  const at::Tensor scores_HTT = at::matmul(heads_HTK[0], heads_HTK[1].transpose(1, 2)).mul_(model_.attention_scale);
  const at::Tensor mixed_HTK = at::matmul(at::softmax(scores_HTT, 2), heads_HTK[2]);
  return mixed_HTK.transpose(0, 1).reshape({hidden_TD.size(0), model_.num_heads * model_.head_size});
}

at::Tensor EncoderFunctions::activation(const at::Tensor& hidden_TD) const {
  return activation_by_ops(products(Stage::feed_forward_input, hidden_TD).front(), model_.activation);
}

at::Tensor EncoderFunctions::add_output(Stage stage, const at::Tensor& x_TI, const at::Tensor& hidden_TD) const {
  const LayerNormDescription& norm =
      stage == Stage::attention_output ? block_.attention_norm : block_.feed_forward_norm;
  return at::layer_norm(hidden_TD.add(products(stage, x_TI).front()), {model_.hidden_size},
                        find_tensor(weights_, norm.name + ".weight"), find_tensor(weights_, norm.name + ".bias"),
                        static_cast<double>(norm.epsilon));
}

}  // namespace pare
