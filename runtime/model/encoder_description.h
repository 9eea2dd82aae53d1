// The structure of an encoder, derived once from config.json, as ModelDescription is for a decoder. Every later part
// reads this and knows no family by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// LayerNorm: y = (x - mean) / sqrt(variance + epsilon) * gain + bias. The tensors are name + ".weight" and ".bias".
struct LayerNormDescription {
  std::string name;
  int64_t width = 0;
  float epsilon = 1e-12f;
};

// One encoder layer ("block"), normalized after its residual sums: hidden = norm(hidden + attention(hidden));
// hidden = norm(hidden + down(activation(up(hidden)))). Attention sees the whole text.
struct EncoderBlockDescription {
  std::string name;  // "encoder.layer.3"
  LinearDescription q, k, v, o;
  LayerNormDescription attention_norm;  // after o
  LinearDescription up, down;
  LayerNormDescription feed_forward_norm;  // after down
};

struct EncoderDescription {
  std::string family;             // the name of its row in families.cpp
  int64_t hidden_size = 0;        // D
  int64_t feed_forward_size = 0;  // F
  int64_t num_heads = 0;          // H
  int64_t head_size = 0;          // K
  int64_t vocabulary_size = 0;    // V
  int64_t context_length = 0;     // tokens of a text
  // Positions start behind this token's id, which is the position of such tokens in a text; none: they start at 0.
  std::optional<int32_t> padding_token;
  Activation activation = Activation::gelu;
  float attention_scale = 0.0f;
  // hidden = norm(word[id] + token_type[0] + position[t]), with tables as linears of num_out rows of num_in = D.
  LinearDescription word_embedding, position_embedding;
  std::optional<LinearDescription> token_type_embedding;
  LayerNormDescription embedding_norm;
  std::vector<EncoderBlockDescription> blocks;
  // Linears that the family's model class has after the blocks, and that embeddings do not pass through.
  std::vector<std::string> unused_linears;
  DType dtype = DType::F32;
};

// True if config.json names a family that describe_encoder knows. Throws std::invalid_argument, with `where`, for text
// that is no JSON object.
bool describes_encoder(const std::string& config_json, const std::string& where);

// Reads a config.json's text; `where` names the file in messages. The meaning of keys and of their absence is
// transformers 5's (configuration_*.py and modeling_*.py of bert, roberta and distilbert). Throws std::invalid_argument
// for what is not computed here (decoders built from the family, relative positions, other heads). Also throws it for
// missing, mistyped or impossible values: key, expected, found. A file without dtype and torch_dtype has weights of
// dtype_if_absent.
EncoderDescription describe_encoder(const std::string& config_json, const std::string& where,
                                    DType dtype_if_absent = DType::F32);

// Returns the tables of the embeddings: words, token types if there are any, positions.
std::vector<LinearDescription> embedding_tables(const EncoderDescription& model);
// Returns the rows of position_embedding that a text's tokens take.
std::vector<int32_t> positions_of(const EncoderDescription& model, std::span<const int32_t> ids_T);
// Returns every linear of the blocks, in order: q, k, v, o, up, down.
std::vector<LinearDescription> block_linears(const EncoderDescription& model);
// Returns all norms: the embeddings', then two for each block.
std::vector<LayerNormDescription> all_norms(const EncoderDescription& model);

}  // namespace pare::runtime
