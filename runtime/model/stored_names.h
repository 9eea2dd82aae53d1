// The names under which files hold a model's modules. Programs save the same model under several prefixes: with
// "model." or without it, as "language_model.model." or "model.language_model.", and the head beside or below.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// The names of a model's modules in its description. `base` stands before all but the head's.
struct ModuleNames {
  std::string base;                   // "model."; may be empty
  std::vector<std::string> children;  // what follows the base, up to the next dot: "embed_tokens", "layers", "norm"
  std::string anchor;                 // a tensor under the base that is always there: "layers.0.input_layernorm.weight"
  std::string embedding;              // a module under the base: "embed_tokens"
  std::string head;                   // a module: "lm_head"; "": none
};

ModuleNames module_names(const ModelDescription& model);
ModuleNames module_names(const EncoderDescription& model);

// How a file's names become the description's. Each pair is a file's prefix and the description's; both end in a dot.
class StoredNames {
 public:
  StoredNames() = default;
  // `names` are the file's, sorted. Those that stand as described already change nothing. Throws std::runtime_error
  // where several prefixes could be meant.
  StoredNames(std::span<const std::string> names, const ModuleNames& modules);

  bool are_described() const { return prefixes_.empty(); }
  std::string described(const std::string& stored) const;
  std::string stored(const std::string& described) const;

 private:
  std::vector<std::pair<std::string, std::string>> prefixes_;  // file's, description's
};

}  // namespace pare::runtime
