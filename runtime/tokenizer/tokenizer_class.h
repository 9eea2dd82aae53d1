// The tokenizer classes of transformers that build their tokenizer anew. Of a tokenizer.json they take the vocabulary
// and the post-processor alone; how text is normalized and split is a fact of the class. Source: tokenization_*.py and
// models/auto/tokenization_auto.py of transformers 5.17.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/system/json_text.h"

namespace pare::runtime {

// Says what stands around a text. from_file: the tokenizer.json says it.
enum class AroundText { from_file, nothing, bos, eos, bos_eos, cls_sep, from_file_or_cls_sep };

// Says whether the special tokens are added once more at the end: as they are, now all special, or without flags.
enum class AddAgain { no, as_special, without_flags };

struct TokenizerClass {
  std::string_view name;   // without the "Fast" of older names
  std::string_view model;  // the model of a tokenizer.json that it can be made from
  bool byte_level = false;
  // Special tokens that the class names where tokenizer_config.json does not: key, content.
  std::vector<std::pair<std::string_view, std::string_view>> special_tokens = {};
  AroundText around = AroundText::from_file;
  AddAgain adds_again = AddAgain::no;
  bool has_extra_ids = false;      // names <extra_id_0> and following where the files name no extra tokens
  bool named_are_objects = false;  // its tokens count as ones with flags; mask_token takes the white space to its left
  // The ids of cls_token and sep_token around a text where tokenizer_config.json says that there are none.
  std::pair<int32_t, int32_t> cls_sep_ids = {2, 3};
  // Writes normalizer, pre_tokenizer, decoder and the model's options into the tokenizer.json.
  void (*build)(const nlohmann::json& config, const std::string& unk_token, nlohmann::json& file) = nullptr;
};

// Returns the class that AutoTokenizer takes for a folder with these files, null if it reads the tokenizer.json as it
// is. `config` is tokenizer_config.json and `model_config` config.json, each {} if it is missing.
const TokenizerClass* named_tokenizer_class(const nlohmann::json& config, const nlohmann::json& model_config);
// True if the tokenizer.json holds the class's model. A file of another one (a vocabulary of bytes under
// LlamaTokenizer, say) is to be read as it is, where transformers would give ids that no model was trained with.
bool fits(const TokenizerClass& of_class, const nlohmann::json& file);

// A row of the table of make_tokenizer_class_table.py: what AutoTokenizer takes for a model_type.
struct ModelTypeClass {
  std::string_view model_type;
  std::string_view tokenizer_class;  // "TokenizersBackend": the tokenizer.json as it is
  bool decides = false;              // true: whatever the folder's own tokenizer_class says
};
extern const std::span<const ModelTypeClass> kModelTypeClasses;  // sorted by model_type

}  // namespace pare::runtime
