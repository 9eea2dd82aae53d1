// Texts as what a model is trained on: documents, each of which ends with a token that says so. Short ones share a
// window; attention and labels never go from one document to another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/files/npy.h"
#include "runtime/model/model_description.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {

// The documents of a file: the lines of a .jsonl (field "text", empty ones left out), or a whole text. Throws as
// read_text does.
std::vector<std::string> read_documents(const std::filesystem::path& path);

// The id of the token that ends a document: the one of that name, or, with none, the tokenizer's end of text, which is
// the eos_token of the model's tokenizer_config.json or special_tokens_map.json, or else the first end token of its
// config.json. Throws std::invalid_argument: the vocabulary has no such token, or nothing names one.
int32_t end_of_document(const std::string& name, const Tokenizer& tokenizer, const std::filesystem::path& model,
                        const ModelDescription& description);

// How a text becomes documents in tokens, and these windows.
struct DocumentCut {
  const Tokenizer& tokenizer;
  int32_t end_token = 0;       // behind each document, unless the tokenizer puts it there itself
  int64_t num_tokens = 0;      // of a window
  int64_t num_vocabulary = 0;  // ids must lie below it
};

// Documents one behind the other, cut into windows; the ragged tail is dropped.
struct DocumentWindows {
  TokenWindows windows;
  // Of each window the positions behind the first at which another document begins, in ascending order. At the first
  // position a document begins, or goes on of which the window before holds the beginning, and which it does not see.
  std::vector<std::vector<int32_t>> starts_N;
};
// num_windows: the first so many; 0: all. Throws std::invalid_argument where the text gives less than one window, and
// for ids outside the vocabulary, and what read_documents throws.
DocumentWindows read_document_windows(const std::filesystem::path& path, const DocumentCut& cut, int64_t num_windows);

// Documents that share no window: each in pieces of num_tokens tokens, the last one shorter. Pieces of fewer than
// least_tokens are left out. Throws as above where none is left.
std::vector<std::vector<int32_t>> read_document_pieces(const std::filesystem::path& path, const DocumentCut& cut,
                                                       int64_t least_tokens);

}  // namespace pare
