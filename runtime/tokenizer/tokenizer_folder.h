// Reads a tokenizer and the files beside it, which name special tokens and the class.
#pragma once

#include <filesystem>

#include "runtime/tokenizer/tokenizer_json.h"

namespace pare::runtime {

// `file` is a tokenizer.json. Beside it are read, where they are there: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and config.json. The result is that of AutoTokenizer.from_pretrained of transformers 5.17:
//   - The class (tokenizer_class.h) decides what of the tokenizer.json counts.
//   - Tokens named in tokenizer_config.json (added_tokens_decoder, *_token, extra_special_tokens and its older name
//     additional_special_tokens) are added, with their flags. The two other files count where there is no
//     added_tokens_decoder.
//   - The special tokens that have names are `special_tokens_map`: those of the class are among them, also where its
//     model is another one than the tokenizer.json's.
//   - add_bos_token and add_eos_token are ignored: the post-processor stands in the tokenizer.json.
// Throws std::runtime_error as parse_tokenizer_json does, and for wrong types in those files.
TokenizerParts read_tokenizer_folder(const std::filesystem::path& file);

// Returns the tokenizer.json as that class has it: normalizer, pre-tokenizer, model and decoder are those that the
// parts above were made of. Added tokens and what stands around a text are the parts' alone. Throws the same.
nlohmann::json read_tokenizer_document(const std::filesystem::path& file);

}  // namespace pare::runtime
