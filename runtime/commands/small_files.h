// The small files beside a model's weights: those that its outputs get as well, and those that they do not. A model's
// folder may come from anywhere, and a link in it may lead to any file of the user who runs pare.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"
#include "runtime/system/input_files.h"

namespace pare::runtime {

// Names of files, relative to the model's folder.
struct SmallFiles {
  std::vector<std::string> copied;  // sorted; those in a folder of their own last
  std::vector<std::string> links;   // would be copied, but lead out of the folder
  std::vector<std::string> others;  // everything else in the folder, sorted; folders end in '/'
};

// Lists the files in `directory` beside config.json, pare.json, report.json and report.html. Names that begin with a
// dot are left out. These are copied: generation_config.json, tokenizer.*, tokenizer_config.json,
// special_tokens_map.json, added_tokens.json, vocab.*, merges.txt, chat_template.*, README* and LICENSE*,
// additional_chat_templates/*.jinja, preprocessor_config.json and processor_config.json. So are the files by which
// sentence-transformers knows an encoder: modules.json, config_sentence_transformers.json, sentence_bert_config.json,
// 1_Pooling/config.json, and config.json, model.safetensors and pytorch_model.bin of the modules that modules.json
// names behind it, as 2_Dense.
// A link is copied where it stays in the folder, or leads from a hub cache's snapshots/REV to a file of its own
// ../../blobs. Throws std::runtime_error where config.json or a file that pare reads is a link that leads elsewhere,
// because the output would be another model without it.
SmallFiles find_small_files(const std::filesystem::path& directory);

// Returns the paths of the files that are copied.
std::vector<std::filesystem::path> copied_files(const std::filesystem::path& directory);

// Opens one of the files that are copied. No link may lead away from the folder (or the hub cache's blobs), even if its
// names have changed since it was found. Throws std::runtime_error (path, reason).
InputFile open_small_file(const std::filesystem::path& directory, const std::string& name);
// Return the SHA-256 of such a file, and make a copy of it. No more people may read the copy than the original
// (runtime/system/private_files.h).
std::string hash_small_file(const std::filesystem::path& directory, const std::string& name);
void copy_small_file(const std::filesystem::path& directory, const std::string& name,
                     const std::filesystem::path& copy);

// Describe the files that a run does not copy. Links are an event each. All others, except for the weights that the run
// reads, are one line of the plan, or "" where there are none.
std::vector<std::string> events_of_links(const SmallFiles& files);
std::string line_of_others(const SmallFiles& files, const Checkpoint& source);

}  // namespace pare::runtime
