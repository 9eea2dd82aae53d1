// Texts in the form that models are trained on: documents, each of which ends with an end token. Short ones share a
// window. Attention and labels never go from one document to another. A document may be a conversation, which ends as
// the model's chat template ends it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/files/npy.h"
#include "runtime/model/model_description.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// Returns the id of the token that ends a document. It is the token called `name`. If that is empty, it is the
// eos_token of the model's tokenizer_config.json or special_tokens_map.json, or else the first end token of its
// config.json. Throws std::invalid_argument if the vocabulary has no such token, or if no file names one.
int32_t end_of_document(const std::string& name, const Tokenizer& tokenizer, const std::filesystem::path& model,
                        const ModelDescription& description);

// The options for cutting a text into documents in tokens, and these into windows.
struct DocumentCut {
  const Tokenizer& tokenizer;
  int32_t end_token = 0;       // after each text, unless the tokenizer puts it there itself; not after conversations
  int64_t num_tokens = 0;      // per window
  int64_t num_vocabulary = 0;  // ids must lie below it
};

// Documents one after the other, cut into windows; the incomplete tail is dropped.
struct DocumentWindows {
  TokenWindows windows;
  // For each window, the positions after the first at which another document begins, in ascending order. At the first
  // position a document begins, or one goes on that began in an earlier window. The window does not see that beginning.
  std::vector<std::vector<int32_t>> starts_N;
};
// num_windows > 0 takes only the first windows; 0: all. Throws std::invalid_argument if the text gives less than one
// window and for ids outside the vocabulary. Throws what read_source_texts throws.
DocumentWindows read_document_windows(const std::filesystem::path& path, const DocumentCut& cut, int64_t num_windows);

// Returns documents that share no window: each in pieces of num_tokens tokens, the last one shorter. Pieces of fewer
// than least_tokens are left out. Throws as read_document_windows does; here std::invalid_argument means that no piece
// is left.
std::vector<std::vector<int32_t>> read_document_pieces(const std::filesystem::path& path, const DocumentCut& cut,
                                                       int64_t least_tokens);

}  // namespace pare::runtime
