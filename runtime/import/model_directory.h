// A model as it is named on the command line: a Hugging Face directory, or a .gguf.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

namespace pare {

// Makes the directory that stands for a model which cannot be worked on as it is.
using MakeDirectory = std::function<void(const std::filesystem::path& model, const std::filesystem::path& directory)>;

// The directory itself; for a .gguf a temporary import of it (bf16), and where the caller says how one is made, that
// one, in the system's folder for temporary files, TMPDIR:
//
//   TMPDIR/pare-import-XXXXXX/NAME/    the imported directory; XXXXXX is locked while a process uses it
//
// It goes with this object. Once it is imported its files have no names any more (what stands there are links to the
// open files), so that a process that is killed leaves no bytes of them; what a process leaves that is killed before,
// the next one to import a model removes.
class ModelDirectory {
 public:
  // Throws what import_model or `make` throws, and std::runtime_error when no temporary folder can be made.
  explicit ModelDirectory(const std::filesystem::path& model, const MakeDirectory& make = {});
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;
  ~ModelDirectory();

  const std::filesystem::path& path() const { return path_; }

  // Whether that is the path of such an import that this process holds.
  static bool is_import(const std::filesystem::path& directory);

 private:
  void take_names_away();
  void remove();
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  int lock_ = -1;                    // of temporary_
  std::vector<int> files_;           // descriptors
};

}  // namespace pare
