// A model as it is named on the command line: a Hugging Face directory, or a .gguf.
#pragma once

#include <filesystem>

namespace pare {

// The directory itself; for a .gguf a temporary import of it (bf16, in the system's folder for temporary files,
// TMPDIR), which is removed with this object.
class ModelDirectory {
 public:
  // Throws what import_model throws, and std::runtime_error when no temporary folder can be made.
  explicit ModelDirectory(const std::filesystem::path& model);
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;
  ~ModelDirectory();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: nothing to remove
};

}  // namespace pare
