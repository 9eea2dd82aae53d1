// What a run's result is written as where the recipe's `container` is not one that layers are stored in: dense weights,
// or a GGUF file. The writers are those of `pare export`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/plan/plan_verdicts.h"
#include "compress/recipe/recipe.h"
#include "runtime/commands/inspect.h"
#include "runtime/export/export_gguf.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

struct WrittenForm {
  std::string file;                           // the one .gguf file; "": none
  std::string json;                           // an object, for pare.json: what became of the tensors
  std::vector<std::string> lines, events;     // for people
  std::optional<runtime::WeightSizes> sizes;  // of a .gguf

  // Returns the model in a folder of this form: the folder itself, or the file in it.
  std::filesystem::path model_in(const std::filesystem::path& folder) const {
    return file.empty() ? folder : folder / file;
  }
};

// Before any work: returns what a GGUF file of the model will be; nullopt for other forms. Throws what
// plan_gguf_export throws.
std::optional<runtime::GgufExport> plan_form(const Recipe& recipe, const runtime::Checkpoint& checkpoint);
// Returns who loads the form. `plan` is what the passes do, and `file` comes from plan_form.
std::vector<EngineVerdict> judge_form(const RunPlan& plan, const std::optional<runtime::GgufExport>& file,
                                      const std::function<std::vector<EngineVerdict>(const RunPlan&)>& judge);
// Returns the bytes of the form's weights. `checkpoint` is the source, and the folder that layers are assembled in has
// folder_bytes.
int64_t form_bytes(const Recipe& recipe, const std::optional<runtime::GgufExport>& file,
                   const runtime::Checkpoint& checkpoint, int64_t folder_bytes);
// Returns the bytes of the weights that an evaluation decodes such a file to.
int64_t decoded_bytes(const runtime::GgufExport& file);

// Writes the form of the model in `directory`, a Hugging Face folder that a run has assembled and verified, and puts it
// in the place of all that is there. Beside a .gguf only the licence and the source's card stay. A run that is killed
// meanwhile assembles the folder anew. The file is named after `output`. Throws what export_gguf and export_model
// throw.
WrittenForm write_form(const Recipe& recipe, const std::filesystem::path& directory,
                       const std::filesystem::path& output, runtime::Progress& progress);

}  // namespace pare::compress
