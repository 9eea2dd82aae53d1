// What becomes of the tokens of a text behind an encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/model/encoder_description.h"

namespace pare {

// How the tokens of a text become one vector, and how much of a text is read: what sentence-transformers keeps in
// 1_Pooling/config.json and sentence_bert_config.json beside the model.
struct Pooling {
  enum class Kind { mean, first_token };
  Kind kind = Kind::mean;
  bool is_stated = false;     // false: there is no such file, and the mean is taken
  int64_t max_tokens = 0;     // of a text, special tokens included
  std::string label() const;  // "mean over tokens", ...
};
// Throws std::runtime_error for a file that is none, and for other kinds of pooling (maximum, ...), by name.
Pooling read_pooling(const std::filesystem::path& directory, const EncoderDescription& model);

}  // namespace pare
