// Reads a Hugging Face tokenizer.json (written by the `tokenizers` package, format "1.0") into the parts it describes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/decoder.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/word_piece.h"

namespace pare::runtime {

// Ids put around an encoded text on request.
struct PostProcessor {
  std::vector<int32_t> before, after;
};

struct TokenizerParts {
  std::unique_ptr<TokenModel> model;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
};

// Throws std::runtime_error (`where`, the place in the file) for text that is not JSON and for wrong types. Throws it,
// by name, for what pare does not know: a model other than BPE and WordPiece, an option that training needs, a
// normalizer, pre-tokenizer, post-processor or decoder. The file's truncation and padding are for batches of short
// texts and are not applied; transformers does not apply them by default either.
TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& where);

// transformers takes special tokens around a text from tokenizer_config.json if that says add_bos_token or
// add_eos_token, and otherwise from tokenizer.json. This function does the same. Throws as parse_tokenizer_json does.
void apply_tokenizer_config(const std::string& config_json, const std::string& where, TokenizerParts& parts);

}  // namespace pare::runtime
