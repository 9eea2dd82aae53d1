// Converts the vocabulary inside a GGUF file to a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pare::runtime {

class GgufFile;

// The keys tokenizer.ggml.* of a file.
struct GgufVocabulary {
  std::string where;  // the file, for messages
  std::string model;  // "gpt2": BPE, most often byte-level; "gemma4": BPE of characters; "llama": SentencePiece
  std::string pre;    // the pre-tokenizer's name, for "gpt2" only; empty: GPT-2's
  std::vector<std::string> tokens;  // by id
  std::vector<int64_t>
      token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty: all normal
  std::vector<std::string> merges;  // "left right"; for "gpt2" and "gemma4"
  std::vector<double> scores;       // for "llama": the merge whose result has the highest score comes first
  std::optional<int64_t> bos_token, eos_token, unknown_token;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // unset: llama.cpp's defaults for model and pre
};

// Throws std::runtime_error if a key is missing or of the wrong type.
GgufVocabulary read_gguf_vocabulary(const GgufFile& file);

// Returns the names of tokenizer.ggml.pre for byte-level BPE whose rules pare and llama.cpp share. Several may have
// equal rules.
std::vector<std::string> gguf_pre_tokenizers();

// Returns the special tokens that the file names by ids of its vocabulary: their names in tokenizer_config.json, as
// bos_token, and their contents. Throws what GgufFile::texts and integer throw.
std::vector<std::pair<std::string, std::string>> gguf_special_tokens(const GgufFile& file);

// Returns the file's templates of conversations: name, text. That of tokenizer.chat_template is called default. Others
// have their name after that key and a point. Throws std::runtime_error for one that is no text in UTF-8.
std::vector<std::pair<std::string, std::string>> gguf_chat_templates(const GgufFile& file);

// Returns the token with SentencePiece's U+2581 in place of every space.
std::string with_marks_for_spaces(std::string_view token);

// Returns a complete tokenizer.json whose ids are the GGUF's. Merges of a SentencePiece vocabulary are derived from its
// scores in the order of transformers' generate_merges, so that Mistral's are those of its published file. Throws
// std::runtime_error for an unknown model or pre-tokenizer (by name, with the known ones), tokens listed twice, ids out
// of range, and lists of unequal length.
std::string make_tokenizer_json(const GgufVocabulary& vocabulary);

}  // namespace pare::runtime
