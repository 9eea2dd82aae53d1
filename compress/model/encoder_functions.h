// One encoder block as functions of its weights, on one text of T tokens, cut at the same four stages as a decoder's
// (decoder_functions.h). In most families the norms stand after the residual sums, so that the hidden state itself is
// the input of two stages:
//
//   x = hidden                        attention_input      q, k, v
//   mixed = attention(q, k, v)        attention_output     o          hidden = norm(hidden + o(mixed))
//   x = hidden                        feed_forward_input   up
//   z = act(up)                       feed_forward_output  down       hidden = norm(hidden + down(z))
//
// In others they stand before, as in a decoder: x = norm(hidden), and hidden = hidden + o(mixed).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "compress/model/block_weights.h"
#include "runtime/model/encoder_description.h"
#include "runtime/model/stage.h"

namespace pare::compress {

class EncoderFunctions {
 public:
  // Linears' ".weight" and ".bias" and norms' ".weight" and ".bias", float32. All must outlive it.
  EncoderFunctions(const runtime::EncoderDescription& model, const runtime::EncoderBlockDescription& block,
                   const NamedTensors& weights, const InputFormats& formats, at::Tensor distances_HN = {})
      : model_(model), block_(block), weights_(weights), formats_(formats), distances_HN_(std::move(distances_HN)) {}

  // The input of the two other stages, [T, D].
  at::Tensor input(runtime::Stage stage, const at::Tensor& hidden_TD) const;

  // The inputs of the two output stages, [T, D] and [T, F].
  at::Tensor attention(const at::Tensor& hidden_TD) const;
  at::Tensor activation(const at::Tensor& hidden_TD) const;
  // The hidden state after an output stage with the input x_TI.
  at::Tensor add_output(runtime::Stage stage, const at::Tensor& x_TI, const at::Tensor& hidden_TD) const;

  // Returns the most bytes that are there at a time while one of these functions works on a text of num_tokens tokens,
  // without gradients: what it makes, its result included.
  static int64_t forward_bytes(const runtime::EncoderDescription& model, int64_t num_tokens);

 private:
  // Products of the stage's linears with its input.
  std::vector<at::Tensor> products(runtime::Stage stage, const at::Tensor& x_TI) const;

  at::Tensor normalized(const runtime::LayerNormDescription& norm, const at::Tensor& x_TD) const;
  void change_scores(at::Tensor& scores_HTT) const;

  const runtime::EncoderDescription& model_;
  const runtime::EncoderBlockDescription& block_;
  const NamedTensors& weights_;
  const InputFormats& formats_;
  at::Tensor distances_HN_;  // scores of distances, N = 2 reach + 1; undefined: none
};

}  // namespace pare::compress
