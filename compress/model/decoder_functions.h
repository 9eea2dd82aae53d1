// A decoder as functions of its weights: tensors by name in, hidden states and logits out, on the device of the
// tensors, with gradients for whatever requires them. Training and calibration both compute with them, so that a
// mechanism of a family stands here and in the runtime's engine.
//
// Hidden states are float32, [B, T, D] or [T, D]; linears multiply in the model's compute type, float32 or bfloat16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "compress/model/attention.h"
#include "compress/model/block_weights.h"
#include "compress/model/row_functions.h"
#include "compress/model/stage_products.h"
#include "runtime/model/model_description.h"
#include "runtime/model/stage.h"

namespace pare::compress {

// Keys and values of the tokens before, of one block: [B, kv heads, T, K]. Undefined: there are none.
struct KeyValues {
  at::Tensor keys_BGTK, values_BGTK;
};

// For each sequence of a batch the positions after the first at which another document begins, in ascending order
// (runtime/evaluate/document_windows.h). Empty: each sequence is one document.
using DocumentStarts = std::vector<std::vector<int64_t>>;

class DecoderFunctions {
 public:
  // For sequences of at most max_tokens tokens, those before them included. `model` must outlive it. compute:
  // at::kFloat or at::kBFloat16. device: of all tensors. Throws std::invalid_argument for another type.
  DecoderFunctions(const runtime::ModelDescription& model, int64_t max_tokens, at::ScalarType compute,
                   at::Device device = at::kCPU, AttentionKernel attention = AttentionKernel::fused);

  const runtime::ModelDescription& description() const { return *model_; }
  at::ScalarType compute_type() const { return compute_; }
  at::Device device() const { return device_; }
  AttentionKernel attention_kernel() const { return attention_; }
  const RotaryAngles& angles(int64_t block) const { return *angles_[static_cast<size_t>(block)]; }
  // The order of a head's channels that the rotation wants (RopeDescription::channels_K), int64 [K]; undefined: as they
  // are.
  const at::Tensor& channels(int64_t block) const { return channels_[static_cast<size_t>(block)]; }
  void set_input_formats(InputFormats formats);
  // Takes what is never trained: learned positions, the norm of the embedding and the bias of the final norm. Needed
  // for embed and final_norm of a model that has them; they throw std::logic_error without it.
  void set_frozen(const runtime::Checkpoint& checkpoint);

  // ids_BT int64, table_VD in any floating type: [B, T, D] float32, scaled as the family has it.
  at::Tensor embed(const at::Tensor& ids_BT, const at::Tensor& table_VD) const;
  // The gradient of a loss by the table, from its gradient by embed(): float32 [V, D], summed in float32 whatever the
  // table's type, since some tokens come hundreds of times.
  at::Tensor embedding_gradient(const at::Tensor& ids_BT, const at::Tensor& gradient_BTD,
                                const at::Tensor& table_VD) const;
  // Through block `index` (BlockFunctions::forward), with the formats that were set.
  at::Tensor block(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD,
                   KeyValues* earlier = nullptr, const DocumentStarts& starts = {}) const;
  // The final norm and the logits' factor, in the compute type: what the head multiplies.
  at::Tensor final_norm(const at::Tensor& gain_D, const at::Tensor& hidden_RD) const;
  // The head's products with normalized hidden states [R, D]: [R, V] in the compute type, half of float32's memory.
  at::Tensor head_products(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const;
  // float32 logits [R, V] of such products.
  at::Tensor logits_of(const at::Tensor& products_RV) const;
  at::Tensor logits(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const;

 private:
  const runtime::ModelDescription* model_;
  at::ScalarType compute_;
  at::Device device_;
  AttentionKernel attention_;
  std::vector<std::shared_ptr<const RotaryAngles>> angles_;  // of each block
  std::vector<at::Tensor> channels_;
  InputFormats input_formats_;
  // Float32; undefined: none, or not set.
  at::Tensor positions_PD_, final_bias_D_, embedding_gain_D_, embedding_bias_D_;
};

// One block's functions, cut at its stages. A stage is one of the block's inputs, and the linears that read it:
//
//   x = norm(hidden)                  attention_input      q, k, v
//   mixed = attention(q, k, v)        attention_output     o          hidden += factor * post_norm(o(mixed))
//   x = norm(hidden)                  feed_forward_input   gate, up
//   z = act(gate) * up                feed_forward_output  down       hidden += factor * post_norm(down(z))
//
// With latent attention (runtime::LatentAttention) two stages stand between the first two:
//
//   x = q_norm(q_a(norm(hidden)))     query_latent         q             where there is a q_a
//   x = kv_norm(kv_a(norm(hidden)))   key_value_latent     kv_b
//
// Where a block has no norm, x is the hidden state. The factor is the family's, mostly 1.
//
// In a mixture each expert has the two feed-forward stages for itself, and their inputs are rows of the tokens that go
// to the expert, in order:
//
//   routing = route(norm(hidden))     once, of all tokens; a shared expert, the last, has all of them
//   x = norm(hidden)[tokens of e]     feed_forward_input   gate_e, up_e
//   z = act(gate) * up                feed_forward_output  down_e      sum[tokens of e] += weight * down_e(z)
//   hidden += post_norm(sum)          after the last expert
//
// Linears multiply their inputs as their formats round them, each sequence of [B, T, I] by itself, as the runtime does.
class BlockFunctions {
 public:
  // All must outlive it, and a graph that it makes. site: null, or what is rounded beside the inputs of linears: of
  // softmax a query's keys as far as it sees them, else a token's channels; embedding_sum is not a block's.
  BlockFunctions(const DecoderFunctions& model, int64_t index, const NamedTensors& weights, const InputFormats& formats,
                 const RoundedSite* site = nullptr);

  // The input of a latent's stage.
  StageInput latent(runtime::Stage stage, const at::Tensor& hidden) const;
  // The norm in front of attention_input or feed_forward_input, or a copy of the hidden state where there is none. The
  // hidden state is the one that the stage's half reads: in a parallel block that before attention.
  StageInput normalized(runtime::Stage stage, const at::Tensor& hidden) const;
  // The input of attention_output, [..., T, H K], with latents [..., T, H value_size]. earlier: not null, the tokens
  // stand after those that it holds, see them, and are added to it. starts: attention stays within a document, whose
  // positions begin at 0, as if it stood alone; inputs that are rounded in a range of their whole sequence would still
  // be of all documents together. Not with `earlier`.
  at::Tensor attention(const at::Tensor& hidden, KeyValues* earlier = nullptr, const DocumentStarts& starts = {}) const;
  // The input of feed_forward_output from that of feed_forward_input, of the block or one of its experts.
  StageInput activation(int64_t expert, const StageInput& input) const;
  // The product of an output stage's linear with its input.
  at::Tensor output(runtime::Stage stage, const StageInput& input) const;
  // The hidden state with the output of a stage (of a mixture the sum) added to it, behind the norm that may follow it.
  at::Tensor add(runtime::Stage stage, const at::Tensor& output, const at::Tensor& hidden) const;
  // Adds it in place, without gradients.
  void add_to(runtime::Stage stage, const at::Tensor& output, at::Tensor& hidden) const;

  // Routes normalized hidden states [R, D].
  TokenRouting route(const at::Tensor& x_RD) const;
  // Adds the share of an expert that has made output_SD of its rows.
  static void add_expert(const ExpertRows& rows, const at::Tensor& output_SD, at::Tensor& sum_RD);
  // The sum of the experts' outputs for normalized hidden states.
  at::Tensor mixture(const at::Tensor& x) const;

  // All of it. Throws std::invalid_argument for a tensor that is missing.
  at::Tensor forward(const at::Tensor& hidden, KeyValues* earlier = nullptr, const DocumentStarts& starts = {}) const;
  // The same in place, without gradients.
  void pass(at::Tensor& hidden) const;

  // The walk's stages for one whole sequence, without gradients. Tokens go in blocks of token_block, a multiple of the
  // attention's blocks of queries, so that little is held beside the results. No bit of a result depends on it. They go
  // together where an input is rounded in a range of its whole sequence, or where something beside the inputs of
  // linears is rounded.
  // Writes attention(hidden) to out_TI, contiguous.
  void write_attention(const at::Tensor& hidden_TD, const at::Tensor& out_TI, int64_t token_block) const;
  // Writes the input of feed_forward_output to out_TF, contiguous: of rows that no mixture reads, or of an expert's.
  void write_activation(int64_t expert, const at::Tensor& hidden_TD, const at::Tensor& out_TF,
                        int64_t token_block) const;
  // Returns the output of a stage that is no expert's, from the hidden state that the stage's half reads: [T, D].
  at::Tensor output_of_hidden(runtime::Stage stage, const at::Tensor& hidden_TD, int64_t token_block) const;
  // Adds the output of a stage to the hidden state, from the stage's input.
  void add_output_of(runtime::Stage stage, const at::Tensor& x_TI, const at::Tensor& hidden_TD,
                     int64_t token_block) const;

  // Returns the most bytes that a walk through the stages holds at a time beside what forward_bytes leaves out, in
  // float32 and by blocks of queries, where tokens go in blocks. with_outputs: output_of_hidden is called as well.
  static int64_t walk_bytes(const runtime::ModelDescription& model, int64_t num_tokens, int64_t token_block,
                            bool with_outputs);

  // Returns the most bytes that are there at a time while num_tokens go through a block in place or stage by stage, in
  // float32 and by blocks of queries, beside the block, its hidden states and the inputs of its stages.
  static int64_t forward_bytes(const runtime::ModelDescription& model, int64_t num_tokens);

 private:
  // Before their rotation. With latents there are as many heads of keys as of queries, and zeros behind values up to K.
  struct Heads {
    at::Tensor q_BTHK, k_BTGK, v_BTGK;
  };
  Heads heads_of(const at::Tensor& hidden) const;
  // What attention has mixed, [B, T, H, K], as the input of attention_output, without the zeros behind values.
  at::Tensor joined_heads(const at::Tensor& mixed_BTHK, at::IntArrayRef shape) const;
  // How many of so many tokens go at a time.
  int64_t tokens_at_a_time(int64_t num_tokens, int64_t token_block) const;
  Heads heads_of_latents(const at::Tensor& hidden) const;
  // The norm of the first columns of what q_a or kv_a has made.
  StageInput latent_of(runtime::Stage stage, const at::Tensor& made) const;
  at::Tensor norm(const runtime::NormDescription& norm, const at::Tensor& x, at::ScalarType out) const;
  const runtime::InputFormat* format_of(runtime::ActivationSite site) const;
  at::Tensor added(runtime::Stage stage, const at::Tensor& output) const;
  at::Tensor feed_forward(const at::Tensor& hidden) const;
  // The products of a stage's linears, cut into parts of these widths where the file holds the linears as one, with its
  // rows in the order `rows` unless that is empty.
  std::vector<at::Tensor> stage_products_of(const StageInput& input,
                                            const std::vector<runtime::LinearDescription>& readers,
                                            const std::vector<int64_t>& widths,
                                            const std::vector<int32_t>& rows = {}) const;
  // Queries, keys and values before their rotation, [B, T, H K].
  at::Tensor attend_documents(const at::Tensor& q_BTHK, const at::Tensor& k_BTGK, const at::Tensor& v_BTGK,
                              const DocumentStarts& starts) const;
  // Heads [B, T, H, K] of queries or keys, rotated.
  at::Tensor rotated_heads(const at::Tensor& x_BTHK, const RotaryAngles& angles) const;
  at::Tensor attend(const at::Tensor& q_BHTK, const at::Tensor& k_BGTK, const at::Tensor& v_BGTK) const;

  const DecoderFunctions& functions_;
  const runtime::ModelDescription& model_;
  const runtime::BlockDescription& block_;
  const RotaryAngles& angles_;
  const at::Tensor& channels_K_;
  const NamedTensors& weights_;
  const InputFormats& formats_;
  const RoundedSite* site_;
};

}  // namespace pare::compress
