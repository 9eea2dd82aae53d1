// The vocabulary of a GGUF file, made of a Hugging Face folder's tokenizer: the inverse of make_tokenizer_json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/gguf_writer.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {

struct GgufTokenizer {
  GgufVocabulary vocabulary;
  // The special tokens that have an id of their own in the file: "bos", "eos", "unknown", "padding".
  std::vector<std::pair<std::string, int64_t>> roles;
  std::vector<std::string> notes;  // what the file cannot say, each a sentence
};

// Reads the tokenizer of a folder for a model whose table of embeddings has num_rows rows. Ids without a token become
// unused ones, as llama.cpp's converter makes them. Throws std::invalid_argument for what no GGUF file has: another
// model than byte-level BPE or SentencePiece's BPE, rules of splitting that no name of tokenizer.ggml.pre stands for,
// and ids beyond the table. Also if the vocabulary, read back, gives other ids. Throws what read_tokenizer_folder
// throws.
GgufTokenizer make_gguf_tokenizer(const std::filesystem::path& folder, int64_t num_rows);

// Sets tokenizer.ggml.*.
void set_tokenizer_keys(const GgufTokenizer& tokenizer, GgufMetadata& metadata);

}  // namespace pare::runtime
