// One decoder block in float32 on LibTorch: what the calibration walks through, cut at its four stages. A stage is one
// of the block's four inputs, and the linears that read it:
//
//   x = norm(hidden)                  attention_input      q, k, v
//   mixed = attention(q, k, v)        attention_output     o          hidden += post_norm(o(mixed))
//   x = norm(hidden)                  feed_forward_input   gate, up
//   z = act(gate) * up                feed_forward_output  down       hidden += post_norm(down(z))
//
// Every function handles one window of T tokens on the calling thread and writes into storage the caller owns, so that
// workers split windows and the same window always gives the same bits. The functions that multiply a stage's input
// take it as their own: where the stage has an input format they round it in place.
//
// In a mixture each expert has the two feed-forward stages for itself, and their inputs are rows of the window's tokens
// that go to the expert, in order:
//
//   routing = route(norm(hidden))     once, of all tokens
//   x = norm(hidden[tokens of e])     feed_forward_input   gate_e, up_e
//   z = act(gate) * up                feed_forward_output  down_e      sum[tokens of e] += weight * down_e(z)
//   hidden += post_norm(sum)          after the last expert
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compress/walk/block.h"
#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/model_description.h"
#include "runtime/model/stage.h"

namespace pare {

// What one worker needs beside the activations: allocated once, used for every window and block.
struct BlockScratch {
  BlockScratch(const ModelDescription& model, int64_t num_tokens);
  static int64_t size_bytes(const ModelDescription& model, int64_t num_tokens);

  at::Tensor x_TD;        // a stage's normalized input
  at::Tensor delta_TD;    // what a linear adds to the hidden state
  at::Tensor qkv_TC;      // C = (H + 2 H_kv) K
  at::Tensor q_head_TGK;  // queries of the heads that share one kv head
  at::Tensor k_head_TK;
  at::Tensor v_head_TK;
  at::Tensor scores_BGT;  // of one block of queries
  at::Tensor probabilities_BGT;
  at::Tensor mixed_BGK;
  at::Tensor up_TF;
  at::Tensor sum_TD;  // of a mixture's experts, in forward; undefined where there is none
};

// Where the tokens of one window go.
struct TokenRouting {
  int64_t experts_per_token = 0;
  std::vector<int32_t> experts_TK;  // ascending for each token
  std::vector<float> weights_TK;

  std::vector<int32_t> tokens_of(int64_t expert) const;  // ascending
};

class DecoderBlock : public Block {
 public:
  // Reads block `index` (norms, weights, biases; dense or compressed) as float32; windows have num_tokens tokens.
  // Throws what Checkpoint and stage_layers throw.
  DecoderBlock(const Checkpoint& checkpoint, int64_t index, int64_t num_tokens);

  const BlockDescription& description() const { return *block_; }

  const std::string& name() const override { return block_->name; }
  std::vector<Stage> stages() const override { return block_stages(*block_); }
  at::Tensor weight(Stage stage, size_t index) const override;
  void set_weight(Stage stage, size_t index, std::span<const float> weight_OI) override;
  // All it multiplies with, float32, under the checkpoint's names: weights and biases of linears, views; gains of
  // norms, with the unit offset added.
  std::map<std::string, at::Tensor, std::less<>> tensors() const;
  // How the inputs of its linears are rounded, by the linear's name; plain ones are left out.
  std::map<std::string, InputFormat, std::less<>> input_formats() const;
  // Divides the rows of its weight, and its bias, by scales_O (one per output).
  void divide_outputs(Stage stage, size_t index, std::span<const float> scales_O);
  // The norm before attention_input or feed_forward_input gets another gain_D, with the unit offset added.
  void set_norm_gain(Stage stage, std::span<const float> gain_D);
  // Replaces the layer's bias.
  void set_bias(Stage stage, size_t index, std::span<const float> bias_O);
  void set_input_format(Stage stage, InputFormat format) override;

  // From now on the site's rows are rounded so: of softmax a query's keys as far as it sees them, else a token's
  // channels. embedding_sum is not the block's and changes nothing. Throws std::invalid_argument for a format whose
  // rows are not rounded each by itself.
  void round_site(ActivationSite site, const InputFormat& format);
  void round_no_site() { rounded_site_.reset(); }

  void attention_input(const at::Tensor& hidden_TD, at::Tensor& x_TD) const;
  void attention(at::Tensor& x_TD, BlockScratch& scratch, at::Tensor& mixed_TI) const;
  void add_attention_output(at::Tensor mixed_TI, BlockScratch& scratch, at::Tensor& hidden_TD) const;
  void feed_forward_input(const at::Tensor& hidden_TD, at::Tensor& x_TD) const;
  void feed_forward(at::Tensor& x_TD, BlockScratch& scratch, at::Tensor& activated_TF) const;
  void add_feed_forward_output(at::Tensor activated_TF, BlockScratch& scratch, at::Tensor& hidden_TD) const;
  // The same in two steps, without rounding the input: x W^T + b of one layer; and what the layer of an output stage
  // has made (delta_TD is changed) behind the norm that may follow it.
  void linear(Stage stage, size_t index, const at::Tensor& x_TI, at::Tensor out_TO) const;
  void add_output(Stage stage, at::Tensor& delta_TD, at::Tensor& hidden_TD) const;

  // The same of a mixture; x_SD and activated_SF hold the rows of `tokens`.
  TokenRouting route(const at::Tensor& hidden_TD, BlockScratch& scratch) const;
  void expert_input(const at::Tensor& hidden_TD, std::span<const int32_t> tokens, at::Tensor& x_SD) const;
  void expert(int64_t expert, at::Tensor& x_SD, BlockScratch& scratch, at::Tensor& activated_SF) const;
  // `tokens` are those that `routing` sends to the expert.
  void add_expert_output(int64_t expert, at::Tensor activated_SF, const TokenRouting& routing,
                         std::span<const int32_t> tokens, BlockScratch& scratch, at::Tensor& sum_TD) const;
  void add_mixture_output(at::Tensor& sum_TD, at::Tensor& hidden_TD) const;
  // All of them, as forward does behind the attention.
  void forward_mixture(BlockScratch& scratch, at::Tensor& activated_TF, at::Tensor& hidden_TD) const;

  // All stages: hidden [T, D] in place; activated_TF is working space of max(F, H K) columns' worth of floats.
  void forward(BlockScratch& scratch, at::Tensor& mixed_TI, at::Tensor& activated_TF, at::Tensor& hidden_TD) const;

 private:
  struct StageWeights {
    at::Tensor weight_OI;            // the stage's linears stacked along O
    std::vector<int64_t> first_row;  // of each linear, and the end
    std::vector<at::Tensor> bias_O;  // of each linear; undefined where it has none
    InputFormat input;
  };
  struct NormWeights {
    at::Tensor gain;
    float epsilon = 0.0f;
  };
  static NormWeights read_norm(const Checkpoint& checkpoint, const NormDescription& norm);
  static StageWeights read_stage(const Checkpoint& checkpoint, const BlockDescription& block, Stage stage);
  void round_input(Stage stage, at::Tensor& x_TI) const;
  bool rounds(ActivationSite site) const { return rounded_site_ && rounded_site_->first == site; }
  void round_rows(const at::Tensor& x_TI) const;
  void activate(Stage input, at::Tensor& x_SD, BlockScratch& scratch, at::Tensor& activated_SF) const;
  void rotate_head(const float* source, int64_t token, const NormWeights* norm, float* out) const;
  void gather_head(int64_t kv_head, BlockScratch& scratch) const;

  const ModelDescription* model_;
  const BlockDescription* block_;
  int64_t num_tokens_;
  RopeTable rope_;
  NormWeights attention_norm_, feed_forward_norm_;
  std::optional<NormWeights> q_norm_, k_norm_, post_attention_norm_, post_feed_forward_norm_;
  std::vector<StageWeights> stages_;  // as in block_stages
  at::Tensor router_weight_ED_;       // of a mixture
  std::optional<std::pair<ActivationSite, InputFormat>> rounded_site_;
};

// Whether what the stage's layer makes is added to the hidden state.
bool is_output_stage(Stage stage);
// The widest input of an output stage.
int64_t widest_input(const ModelDescription& model);

// A float32 vector that holds a copy of the values.
at::Tensor float_tensor(std::span<const float> values);
// A view of the first num_rows * width floats of a scratch tensor.
at::Tensor leading_rows(const at::Tensor& tensor, int64_t num_rows, int64_t width);

// hidden[t] = embedding_scale * table[ids[t]] for one window, float32. The table may be dense or quantized.
void embed(const LinearWeights& table_VD, float embedding_scale, std::span<const int32_t> ids_T, float* hidden_TD);

// out[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * gain over rows of `width` floats; out may be x.
void rms_norm(const float* x_RD, const float* gain_D, float epsilon, int64_t num_rows, int64_t width, float* out_RD);

}  // namespace pare
