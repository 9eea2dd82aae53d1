// One encoder block in float32 on LibTorch: what the calibration walks through, cut at the same four stages as a
// decoder's (decoder_block.h). The norms stand behind the residual sums, so that the hidden state itself is the input
// of two stages:
//
//   x = hidden                        attention_input      q, k, v
//   mixed = attention(q, k, v)        attention_output     o          hidden = norm(hidden + o(mixed))
//   x = hidden                        feed_forward_input   up
//   z = act(up)                       feed_forward_output  down       hidden = norm(hidden + down(z))
//
// Every function handles one text of T tokens on the calling thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>
#include <vector>

#include "compress/walk/decoder_block.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/encoder_description.h"

namespace pare {

class EncoderBlock : public Block {
 public:
  // Reads block `index` (norms, weights, biases; dense or compressed) as float32. Throws what Checkpoint throws.
  EncoderBlock(const Checkpoint& checkpoint, int64_t index);

  const EncoderBlockDescription& description() const { return *block_; }

  const std::string& name() const override { return block_->name; }
  std::vector<Stage> stages() const override { return {kStages.begin(), kStages.end()}; }
  at::Tensor weight(Stage stage, size_t index) const override;
  void set_weight(Stage stage, size_t index, std::span<const float> weight_OI) override;
  void set_input_format(Stage stage, InputFormat format) override;

  // hidden_TD is the stage's input and left as it is; mixed_TD is written.
  void attention(const at::Tensor& hidden_TD, at::Tensor& mixed_TD) const;
  // hidden_TD goes on to the feed-forward's input.
  void add_attention_output(const at::Tensor& mixed_TD, at::Tensor& hidden_TD) const;
  void feed_forward(const at::Tensor& hidden_TD, at::Tensor& activated_TF) const;
  // hidden_TD goes on to the next block's input.
  void add_feed_forward_output(const at::Tensor& activated_TF, at::Tensor& hidden_TD) const;

 private:
  struct Linear {
    at::Tensor weight_OI, bias_O;
  };
  struct StageWeights {
    std::vector<Linear> linears;
    InputFormat input;
  };
  struct NormWeights {
    at::Tensor gain, bias;
    double epsilon = 0.0;
  };
  static NormWeights read_norm(const Checkpoint& checkpoint, const LayerNormDescription& norm);
  at::Tensor rounded_input(Stage stage, const at::Tensor& x_TI) const;
  at::Tensor linear(Stage stage, size_t index, const at::Tensor& x_TI) const;
  void add_and_norm(const at::Tensor& delta_TD, const NormWeights& norm, at::Tensor& hidden_TD) const;

  const EncoderDescription* model_;
  const EncoderBlockDescription* block_;
  std::array<StageWeights, kStages.size()> stages_;
  NormWeights attention_norm_, feed_forward_norm_;
};

// hidden_TD = norm(word[id] + token_type[0] + position[t]) of one text, [T, D] float32.
class EncoderEmbedding {
 public:
  explicit EncoderEmbedding(const Checkpoint& checkpoint);
  void embed(std::span<const int32_t> ids_T, at::Tensor& hidden_TD) const;

 private:
  LinearWeights words_, token_types_, positions_;
  LayerNorm norm_;
};

}  // namespace pare
