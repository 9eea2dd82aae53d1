// The small files that lie beside a model's weights: which of them its outputs get as well, and which not. A model's
// folder comes from anywhere, and a link in it may lead to any file of whoever runs pare.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"
#include "runtime/system/input_files.h"

namespace pare {

// Names of files, relative to the model's folder.
struct SmallFiles {
  std::vector<std::string> copied;  // sorted; those in a folder of their own last
  std::vector<std::string> links;   // would be copied, but lead out of the folder
  std::vector<std::string> others;  // everything else in the folder, sorted; folders end in '/'
};

// What lies in `directory` beside config.json, pare.json and report.json; names that begin with a dot are left out.
// Copied are generation_config.json, tokenizer.*, tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// vocab.*, merges.txt, chat_template.*, preprocessor_config.json, processor_config.json, README*, LICENSE*, and what
// sentence-transformers knows an encoder by: modules.json, config_sentence_transformers.json,
// sentence_bert_config.json, 1_Pooling/config.json. A link is copied where it stays in the folder, or leads from a hub
// cache's snapshots/REV to a file of its own ../../blobs. Throws std::runtime_error where config.json or a file that
// pare reads is a link that leads elsewhere: the output would be another model without it.
SmallFiles find_small_files(const std::filesystem::path& directory);

// The paths of those that are copied.
std::vector<std::filesystem::path> copied_files(const std::filesystem::path& directory);

// One of those that are copied, opened where no link leads away from the folder (or the hub cache's blobs), whatever
// has become of its names since it was found. Throws std::runtime_error (path, reason).
InputFile open_small_file(const std::filesystem::path& directory, const std::string& name);
// The same file's SHA-256, and a copy of it that no more people may read (runtime/system/private_files.h).
std::string hash_small_file(const std::filesystem::path& directory, const std::string& name);
void copy_small_file(const std::filesystem::path& directory, const std::string& name,
                     const std::filesystem::path& copy);

// What a run says of files that it does not copy: as an event, of links, and as a line of the plan, of all others but
// the weights that it reads; "" where there are none.
std::vector<std::string> events_of_links(const SmallFiles& files);
std::string line_of_others(const SmallFiles& files, const Checkpoint& source);

}  // namespace pare
