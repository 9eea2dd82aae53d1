// A model as named on the command line: a Hugging Face directory, or a .gguf.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/import/import.h"

namespace pare::runtime {

// Returns the .gguf file in a folder that a run has made with such a file in place of config.json and weights: it has a
// pare.json, and one .gguf. Any other path stands for itself.
std::filesystem::path stored_model(const std::filesystem::path& model);

// Makes the directory that stands for a model that cannot be used as it is.
using MakeDirectory = std::function<void(const std::filesystem::path& model, const std::filesystem::path& directory)>;

// Throws std::runtime_error unless the folder for temporary files has room for num_bytes that stand for `model`, as a
// ModelDirectory does before it writes them. Work that ends with one asks this first.
void require_temporary_space(const std::filesystem::path& model, int64_t num_bytes);

// A Hugging Face directory stands for itself. A .gguf, or one in a folder (stored_model), is imported into a temporary
// directory; with `make`, a model gets the one that the caller makes. It lies in the system's folder for temporary
// files, TMPDIR:
//
//   TMPDIR/pare-import-XXXXXX/NAME/    the imported directory; XXXXXX is locked while a process uses it
//
// The destructor removes it. Once the import is done its files have no names any more: the entries are links to the
// open files. So a killed process leaves none of their bytes. If a process is killed earlier, the next one that imports
// a model removes its remains.
class ModelDirectory {
 public:
  // has_weights and codes: as of ImportOptions, for a .gguf. Throws what import_model or `make` throws, and
  // std::runtime_error if no temporary folder can be made, has no room, or does not take a file. The last two name the
  // model and the folder for temporary files, and not the file inside.
  explicit ModelDirectory(const std::filesystem::path& model, const MakeDirectory& make = {}, bool has_weights = true,
                          GgufCodes codes = GgufCodes::rounded);
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;
  ~ModelDirectory();

  const std::filesystem::path& path() const { return path_; }
  // True for another directory than the model's own.
  bool is_temporary() const { return !temporary_.empty(); }

  // True for the path of such an import that this process holds.
  static bool is_import(const std::filesystem::path& directory);

 private:
  void take_names_away();
  void remove();
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  int lock_ = -1;                    // on temporary_
  std::vector<int> files_;           // descriptors
};

// Returns the text with the model that the user named wherever the temporary directory of one stands, such as in the
// message of an error. The directory may be gone by then.
std::string with_named_models(std::string text);

}  // namespace pare::runtime
