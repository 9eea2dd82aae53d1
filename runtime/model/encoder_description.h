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
  std::string name;  // "": none
  int64_t width = 0;
  float epsilon = 1e-12f;
  bool has_bias = true;  // false: the bias is 0 and not stored
  bool exists() const { return !name.empty(); }
};

// One encoder layer ("block"). Most are normalized after their residual sums:
//   hidden = norm(hidden + attention(hidden)); hidden = norm(hidden + feed_forward(hidden)).
// Those that normalize first are as a decoder's:
//   hidden += attention(norm(hidden)); hidden += feed_forward(norm(hidden)).
// Attention sees the whole text, or in a window of n the tokens that are less than n away.
struct EncoderBlockDescription {
  std::string name;  // "encoder.layer.3"
  LinearDescription q, k, v, o;
  std::optional<LinearDescription> qkv;  // what the file holds instead of q, k and v: their rows together
  LayerNormDescription attention_norm;   // after o, or before q, k and v; without a name these read the hidden state
  FeedForwardDescription feed_forward;
  LayerNormDescription feed_forward_norm;  // after down, or before up
  bool normalizes_first = false;
  int64_t sliding_window = 0;  // 0: none
  size_t rope = 0;             // in EncoderDescription::ropes
  // The linears that read attention's input, as the file holds them.
  std::vector<LinearDescription> attention_readers() const;
};

// Scores that attention adds for the distance of two tokens, the same ones in every block: a learned value for each
// head and each of num_out buckets of distances (T5, arXiv 1910.10683, section 2.1).
struct DistanceDescription {
  LinearDescription table;  // [buckets, heads]
  int64_t reach = 0;        // all distances from here on are in one bucket
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
  LinearDescription word_embedding;
  std::optional<LinearDescription> token_type_embedding, position_embedding;
  LayerNormDescription embedding_norm;
  std::vector<RopeDescription> ropes;  // that blocks rotate q and k by; empty: none does
  std::optional<DistanceDescription> distances;
  std::vector<EncoderBlockDescription> blocks;
  bool needs_plain_weights = false;  // transformers loads the model only where linears have a .weight
  LayerNormDescription final_norm;   // of the last hidden state; without a name: none
  // Linears that the family's model class has after the blocks, and that embeddings do not pass through.
  std::vector<std::string> unused_linears;
  std::string head;  // the module that a file of the class with a head may not hold; "": there is no such class
  DType dtype = DType::F32;
};

// True if config.json names a family that describe_encoder knows. Throws std::invalid_argument, with `where`, for text
// that is no JSON object.
bool describes_encoder(const std::string& config_json, const std::string& where);

// Reads a config.json's text; `where` names the file in messages. The meaning of keys and of their absence is
// transformers 5's (configuration_*.py and modeling_*.py of each family). Throws std::invalid_argument for what is not
// computed here (decoders built from the family, relative positions of another kind, other heads). Also throws it for
// missing, mistyped or impossible values: key, expected, found. A file without dtype and torch_dtype has weights of
// dtype_if_absent.
EncoderDescription describe_encoder(const std::string& config_json, const std::string& where,
                                    DType dtype_if_absent = DType::F32);

// Returns the tables of the embeddings: words, token types if there are any, positions.
std::vector<LinearDescription> embedding_tables(const EncoderDescription& model);
// Returns the positions of a text's tokens: rows of position_embedding, or what they are rotated by.
std::vector<int32_t> positions_of(const EncoderDescription& model, std::span<const int32_t> ids_T);
// Returns the scores of distances from -reach to reach for each head, [H, 2 reach + 1], from the values of the table.
std::vector<float> scores_of_distances(const DistanceDescription& distances, std::span<const float> table_BH);
// Returns every linear of the blocks as the file holds it, in order: q, k, v, o, those before the activation, down.
std::vector<LinearDescription> block_linears(const EncoderDescription& model);
// Returns all norms: the embeddings', then those of each block, then the final one.
std::vector<LayerNormDescription> all_norms(const EncoderDescription& model);

}  // namespace pare::runtime
