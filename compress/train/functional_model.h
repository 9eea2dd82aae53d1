// A decoder as functions of its weights, for training: tensors by name in, hidden states and logits out, with
// gradients for whatever requires them. The calibration's DecoderBlock computes the same without gradients; logits of
// both, and the runtime's, agree.
//
// hidden states are float32 [B, T, D]; linears multiply in the model's compute type, float32 or bfloat16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compress/train/row_functions.h"
#include "runtime/format/input_format.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/model_description.h"

namespace pare {

// Tensors under their checkpoint names: linears' ".weight" in the compute type or held in a narrower one (held_linear),
// ".bias" in the compute type, norms' ".weight" in float32 with the unit offset added.
using NamedTensors = std::map<std::string, at::Tensor, std::less<>>;
// How inputs of linears are rounded, by the linear's name; plain ones may be left out. Gradients pass straight through
// (Bengio et al., arXiv 1308.3432).
using InputFormats = std::map<std::string, InputFormat, std::less<>>;

// Keys and values of the tokens before, of one block: [B, kv heads, T, K]. Undefined: there are none.
struct KeyValues {
  at::Tensor keys_BGTK, values_BGTK;
};

// Of each sequence of a batch the positions behind the first at which another document begins, in ascending order
// (runtime/evaluate/document_windows.h). Empty: each sequence is one document.
using DocumentStarts = std::vector<std::vector<int64_t>>;

class FunctionalModel {
 public:
  // For sequences of at most max_tokens tokens, those before them included. `model` must outlive it. compute:
  // at::kFloat or at::kBFloat16. device: of all tensors. Throws std::invalid_argument for another type.
  FunctionalModel(const ModelDescription& model, int64_t max_tokens, at::ScalarType compute,
                  at::Device device = at::kCPU);

  const ModelDescription& description() const { return *model_; }
  at::ScalarType compute_type() const { return compute_; }
  at::Device device() const { return device_; }
  void set_input_formats(InputFormats formats);

  // ids_BT int64, table_VD in any floating type: [B, T, D] float32, scaled as the family has it.
  at::Tensor embed(const at::Tensor& ids_BT, const at::Tensor& table_VD) const;
  // Of a loss by the table's num_rows rows, of its gradient by embed(): float32 [V, D], summed in float32 whatever the
  // table's type, since some tokens come hundreds of times.
  at::Tensor embedding_gradient(const at::Tensor& ids_BT, const at::Tensor& gradient_BTD, int64_t num_rows) const;
  // Through block `index`. weights: the block's tensors. Throws std::invalid_argument for one that is missing.
  // earlier: not null, the tokens stand behind those that it holds, see them, and are added to it. starts: attention
  // stays within a document, whose positions begin at 0, as if it stood alone; inputs that are rounded in a range of
  // their whole sequence would still be of all documents together. Not with `earlier`.
  at::Tensor block(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD,
                   KeyValues* earlier = nullptr, const DocumentStarts& starts = {}) const;
  // The final norm, in the compute type: what the head multiplies.
  at::Tensor final_norm(const at::Tensor& gain_D, const at::Tensor& hidden_RD) const;
  // The head's products with normalized hidden states [R, D]: [R, V] in the compute type, half of float32's memory.
  at::Tensor head_products(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const;
  // float32 logits [R, V] of such products.
  at::Tensor logits_of(const at::Tensor& products_RV) const;
  at::Tensor logits(const at::Tensor& head_VD, const at::Tensor& normalized_RD) const;

 private:
  at::Tensor linear(const NamedTensors& weights, const LinearDescription& linear, const at::Tensor& x) const;
  // Null: plain.
  const InputFormat* input_format(const LinearDescription& reader) const;
  at::Tensor norm(const NamedTensors& weights, const NormDescription& norm, const at::Tensor& x,
                  at::ScalarType out) const;
  // Products of linears whose inputs are that norm of x, rounded in one format.
  std::vector<at::Tensor> linears_behind(const NormDescription& norm,
                                         const std::vector<const LinearDescription*>& linears,
                                         const NamedTensors& weights, const at::Tensor& x) const;
  at::Tensor attention(int64_t index, const NamedTensors& weights, const at::Tensor& hidden_BTD, KeyValues* earlier,
                       const DocumentStarts& starts) const;
  // [B, T, H K] of queries, keys and values before their rotation.
  at::Tensor attend_documents(int64_t index, const at::Tensor& q_BTHK, const at::Tensor& k_BTGK,
                              const at::Tensor& v_BTGK, const DocumentStarts& starts) const;
  at::Tensor attend(const BlockDescription& block, const at::Tensor& q_BHTK, const at::Tensor& k_BGTK,
                    const at::Tensor& v_BGTK) const;
  at::Tensor gated(const NamedTensors& weights, const FeedForwardDescription& network, const at::Tensor& gate_RF,
                   const at::Tensor& up_RF) const;
  at::Tensor mixture(const BlockDescription& block, const NamedTensors& weights, const at::Tensor& x_BTD) const;

  const ModelDescription* model_;
  at::ScalarType compute_;
  at::Device device_;
  std::vector<std::shared_ptr<const RotaryAngles>> angles_;  // of each block
  InputFormats input_formats_;
};

// A model whose weights do not change, in its compute type.
struct FrozenModel {
  const FunctionalModel* functions = nullptr;
  at::Tensor embedding_VD, head_VD, gain_D;
  std::vector<NamedTensors> blocks;

  // Normalized hidden states [B, T, D] of ids_BT; earlier: empty, or what each block has seen before, which is added
  // to; behind_blocks: not null, set to the hidden states [B, T, D] behind each block; starts: as of
  // FunctionalModel::block. To be called without gradients.
  at::Tensor normalized(const at::Tensor& ids_BT, std::vector<KeyValues>* earlier = nullptr,
                        std::vector<at::Tensor>* behind_blocks = nullptr, const DocumentStarts& starts = {}) const;
  at::Tensor head_products(const at::Tensor& normalized_RD) const {
    return functions->head_products(head_VD, normalized_RD);
  }
  // float32 [R, V].
  at::Tensor logits(const at::Tensor& normalized_RD) const { return functions->logits(head_VD, normalized_RD); }
};
// How the linears of blocks are held. narrow: on a CPU in the file's type where it is narrower and has the same values
// (held_linear). widened: in the compute type, for many products of few rows.
enum class HeldWeights { narrow, widened };
// On the device of `functions`, which must outlive it.
FrozenModel read_frozen(const Checkpoint& checkpoint, const FunctionalModel& functions, HeldWeights held);

// The block's linears (of a mixture with its router) and norms, in the order in which a token meets them.
std::vector<LinearDescription> linears_of(const BlockDescription& block);
std::vector<NormDescription> norms_of(const BlockDescription& block);

// Weights of the checkpoint as they are multiplied, without gradients: of linears and embedding in the type `compute`,
// of norms in float32. `index` is a block's.
NamedTensors read_block(const Checkpoint& checkpoint, int64_t index, at::ScalarType compute);
// The same of a linear, whose codes are decoded in the type `compute`.
at::ScalarType held_type(const LinearWeights& linear, at::ScalarType compute, at::Device device);
at::Tensor read_table(const Checkpoint& checkpoint, const LinearDescription& table, at::ScalarType compute);
at::Tensor read_gain(const Checkpoint& checkpoint, const NormDescription& norm);
// The formats of the inputs of all blocks' linears that are rounded.
InputFormats read_input_formats(const Checkpoint& checkpoint);

}  // namespace pare
