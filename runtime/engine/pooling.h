// Pooling: an encoder's states of the tokens of a text become one vector.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/model/encoder_description.h"

namespace pare::runtime {

// The way in which the tokens of a text become one vector, and how many of them are read. sentence-transformers keeps
// this in 1_Pooling/config.json and sentence_bert_config.json beside the model.
struct Pooling {
  enum class Kind { mean, first_token };
  Kind kind = Kind::mean;
  bool is_stated = false;     // false: there is no such file, and the mean is taken
  int64_t max_tokens = 0;     // the most tokens of a text, special tokens included
  std::string label() const;  // "mean over tokens", ...
};
// Throws std::runtime_error for a file that is not a pooling configuration, and for other kinds of pooling (maximum,
// ...), which the message names.
Pooling read_pooling(const std::filesystem::path& directory, const EncoderDescription& model);

}  // namespace pare::runtime
