// Pooling: a model's states of the tokens of a text become one vector.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace pare::runtime {

// The way in which the tokens of a text become one vector, and how many of them are read. sentence-transformers keeps
// this in 1_Pooling/config.json and sentence_bert_config.json beside the model.
struct Pooling {
  enum class Kind { mean, first_token, last_token };
  Kind kind = Kind::mean;
  bool is_stated = false;     // false: there is no such file, and the mean is taken
  int64_t max_tokens = 0;     // the most tokens of a text, special tokens included
  std::string label() const;  // "mean over tokens", ...
};
// `context_length` is the model's. Throws std::runtime_error for a file that is not a pooling configuration, and for
// other kinds of pooling (maximum, ...), which the message names.
Pooling read_pooling(const std::filesystem::path& directory, int64_t context_length);

// Throws std::runtime_error where the model's modules.json names a module behind pooling that changes embeddings and is
// not computed here, such as a dense layer.
void require_known_modules(const std::filesystem::path& directory);

// Pools the states of a text's tokens, which are whole rows of the width of `pooled_D`, one after the other.
void pool_rows(std::span<const float> hidden_TD, Pooling::Kind kind, std::span<float> pooled_D);
// Divides a pooled vector by its length. `text` numbers it in messages. Throws std::runtime_error if it is not finite
// or is 0.
void normalize_embedding(std::span<float> embedding_D, int64_t text);

}  // namespace pare::runtime
