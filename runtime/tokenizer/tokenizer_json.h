// Reads a Hugging Face tokenizer.json (written by the `tokenizers` package, format "1.0") into the parts it describes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/system/json_text.h"
#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/decoder.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/unigram.h"
#include "runtime/tokenizer/word_piece.h"

namespace pare::runtime {

// Ids put around an encoded text on request.
struct PostProcessor {
  std::vector<int32_t> before, after;
};

// The special tokens that have names, such as bos_token: name, content.
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

struct TokenizerParts {
  std::unique_ptr<TokenModel> model;
  AddedVocabulary added;
  bool split_special_tokens = false;  // special tokens are not looked for in texts
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  SpecialTokens special_tokens;  // of the files beside a tokenizer.json, which itself names none
};

// Throws std::runtime_error (`where`, the place in the file) for text that is not JSON and for wrong types. Throws it,
// by name, for what pare does not know: a model other than BPE, Unigram and WordPiece, an option that training needs, a
// normalizer, pre-tokenizer, post-processor or decoder. The file's truncation and padding are for batches of short
// texts and are not applied; transformers does not apply them by default either.
TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& where);

// The same for a file that has been parsed.
TokenizerParts parse_tokenizer_document(const nlohmann::json& document, const std::string& where);

}  // namespace pare::runtime
