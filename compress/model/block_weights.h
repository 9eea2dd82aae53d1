// The tensors that a model's blocks multiply with, by their names in the checkpoint, and how they are read from it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/model/stage_products.h"
#include "runtime/format/input_format.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/model_description.h"

namespace pare::compress {

// Tensors under their checkpoint names: linears' ".weight" in the type of products or held in a narrower one
// (held_type), ".bias" in the type of products, norms' ".weight" in float32 with the unit offset added, and the
// vectors that no pass changes (BlockDescription::vectors) in float32.
using NamedTensors = std::map<std::string, at::Tensor, std::less<>>;
// How inputs of linears are rounded, by the linear's name; plain ones may be left out. Gradients pass straight through
// (Bengio et al., arXiv 1308.3432).
using InputFormats = std::map<std::string, runtime::InputFormat, std::less<>>;

// Throws std::invalid_argument for a tensor that is missing.
const at::Tensor& find_tensor(const NamedTensors& tensors, const std::string& name);
LinearOperands operands_of(const NamedTensors& tensors, const runtime::LinearDescription& linear);
// How the linear's input is rounded; null where it is not.
const runtime::InputFormat* input_format_of(const InputFormats& formats, const runtime::LinearDescription& linear);

// The block's linears (of a mixture with its routers) and norms, in the order in which a token meets them.
std::vector<runtime::LinearDescription> linears_of(const runtime::BlockDescription& block);
std::vector<runtime::NormDescription> norms_of(const runtime::BlockDescription& block);
// The number of weights of the linears of the block that has most, routers left out.
int64_t largest_block(const runtime::ModelDescription& model);

// A float32 vector that holds a copy of the values.
at::Tensor float_tensor(std::span<const float> values);
// A linear's weight as its file holds it, decoded: float32 [O, I].
at::Tensor dense_values(const runtime::LinearWeights& linear);

// How the linears of blocks are held. narrow: on a CPU in the file's type where it is narrower and has the same values
// (held_type). widened: in the compute type, for many products of few rows.
enum class HeldWeights { narrow, widened };

// Read weights of the checkpoint as they are multiplied, without gradients: of linears and embedding in the type
// `compute`, of norms in float32. `index` is a block's. They throw what Checkpoint throws.
NamedTensors read_block(const runtime::Checkpoint& checkpoint, int64_t index, at::ScalarType compute,
                        HeldWeights held = HeldWeights::widened, at::Device device = at::kCPU);
at::Tensor read_table(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& table,
                      at::ScalarType compute);
at::Tensor read_gain(const runtime::Checkpoint& checkpoint, const runtime::NormDescription& norm);
// Adds the block's vectors that no pass changes.
void read_vectors(const runtime::Checkpoint& checkpoint, const runtime::BlockDescription& block, NamedTensors& tensors);
// Undefined for a norm without one.
at::Tensor read_bias(const runtime::Checkpoint& checkpoint, const runtime::NormDescription& norm);
// The norm of hidden states in float32, with gain and bias as they are read. bias_D: undefined for none.
at::Tensor norm_of(const runtime::NormDescription& norm, const at::Tensor& gain_D, const at::Tensor& bias_D,
                   const at::Tensor& hidden_RD, at::ScalarType out);
// The final norm, whose gain and bias have the logits' factor.
struct FinalNorm {
  runtime::NormDescription description;
  at::Tensor gain_D, bias_D;
  at::Tensor operator()(const at::Tensor& hidden_RD) const {
    return norm_of(description, gain_D, bias_D, hidden_RD, at::kFloat);
  }
};
FinalNorm read_final_norm(const runtime::Checkpoint& checkpoint);
// Adds the linear's ".weight" and, where it has one, its ".bias". Returns what was read, whose pages may be gone.
runtime::LinearWeights read_linear(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear,
                                   at::ScalarType compute, NamedTensors& tensors);
// held_type of a linear, whose codes are decoded in the type `compute`.
at::ScalarType held_type(const runtime::LinearWeights& linear, at::ScalarType compute, at::Device device);
// The formats of the inputs of all blocks' linears that are rounded.
InputFormats read_input_formats(const runtime::Checkpoint& checkpoint);

// What comes between the embedding's table and the first block: learned positions and a norm, where a model has them.
struct EmbeddingRest {
  std::optional<runtime::LinearWeights> positions_PD;
  int64_t first_position = 0;
  runtime::NormDescription norm;
  at::Tensor gain_D, bias_D;
};
EmbeddingRest read_embedding_rest(const runtime::Checkpoint& checkpoint);
// Adds positions[t + first_position] to hidden[t] of a window of num_tokens tokens, float32, and normalizes the sum.
void finish_embedding(const EmbeddingRest& rest, int64_t num_tokens, float* hidden_TD);

// Writes embedding_scale * table[ids[t]] to hidden[t] of one window, float32. The table may be dense or quantized.
void embed(const runtime::LinearWeights& table_VD, float embedding_scale, std::span<const int32_t> ids_T,
           float* hidden_TD);

}  // namespace pare::compress
