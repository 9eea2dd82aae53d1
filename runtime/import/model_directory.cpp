#include "runtime/import/model_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/import/import.h"

namespace pare {

ModelDirectory::ModelDirectory(const std::filesystem::path& model) : path_(model) {
  if (model.extension() != ".gguf") return;
  std::string pattern = (std::filesystem::temp_directory_path() / "pare-model-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("no folder like '" + pattern + "' can be made to import '" + model.string() +
                             "' into: " + std::strerror(errno) + "; set TMPDIR, or import it first (pare import)");
  }
  temporary_ = pattern;
  // Named after the file, because messages and progress show the folder's name.
  path_ = temporary_ / model.stem();
  try {
    import_model(model, path_, {});
  } catch (...) {
    std::error_code ignored;  // the first failure is the one to report
    std::filesystem::remove_all(temporary_, ignored);
    throw;
  }
}

ModelDirectory::~ModelDirectory() {
  std::error_code ignored;  // a destructor has nobody to tell
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

}  // namespace pare
