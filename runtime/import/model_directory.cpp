#include "runtime/import/model_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/import/import.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "pare-import-";
// A link inside the folder. It shows that the folder is ours and not one that a user has named likewise.
constexpr const char* kMark = ".made-by-pare";

// The imports that this process holds.
struct Imports {
  std::mutex mutex;
  std::set<fs::path> paths;
  std::vector<std::pair<std::string, std::string>> names;  // of all that were made, with the models' own
};
Imports& imports() {
  static Imports imports;
  return imports;
}

// Opens and locks the folder. Returns -1 unless it is this user's and no other process holds it.
int lock_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return -1;
  struct stat mine, there;
  const bool is_ours = ::fstat(descriptor, &mine) == 0 && mine.st_uid == ::geteuid() &&
                       ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::lstat(folder.c_str(), &there) == 0 &&
                       mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
  if (is_ours) return descriptor;
  ::close(descriptor);
  return -1;
}

// Removes the remains of killed processes. Folders that cannot be removed are no concern of this process.
void sweep(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kPrefix)) continue;
    const int lock = lock_folder(entry->path());
    if (lock < 0) continue;
    std::error_code ignored;
    if (fs::is_symlink(fs::symlink_status(entry->path() / kMark, ignored))) {
      fs::remove_all(entry->path(), ignored);
    } else {
      ::rmdir(entry->path().c_str());  // killed before it was marked, it is empty
    }
    ::close(lock);
  }
}

// Works for "DIR/" and "." too.
fs::path folder_name(const fs::path& model) {
  const fs::path whole = fs::absolute(model).lexically_normal();
  const fs::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return name.empty() ? fs::path("model") : name;
}

std::runtime_error no_room(const fs::path& place, const fs::path& model, const NoDiskSpace& error) {
  return std::runtime_error("'" + place.string() + "' has " + format_bytes(error.available()) +
                            " free, and the weights that '" + model.string() + "' is decoded to take " +
                            format_bytes(error.needed()) + " there: free some, or set TMPDIR to a folder with more");
}

// The folder for temporary files that the environment names, for messages: the standard library keeps it back where it
// cannot be used. It asks for these names in this order.
fs::path named_temporary_folder() {
  for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    if (const char* const folder = std::getenv(name)) return folder;
  }
  return "/tmp";
}

// Why a file below `folder` could not be written, where that is what the error says: "File too large". "" for any other
// error.
std::string reason_of_failed_write(const std::runtime_error& error, const fs::path& folder) {
  if (const auto* const file = dynamic_cast<const fs::filesystem_error*>(&error)) {
    return file->path1().string().starts_with(folder.string()) ? file->code().message() : "";
  }
  const std::string text = error.what(), start = "cannot write '" + folder.string(), after = "': ";
  const size_t end = text.starts_with(start) ? text.find(after, start.size()) : std::string::npos;
  return end == std::string::npos ? "" : text.substr(end + after.size());
}

}  // namespace

void require_temporary_space(const fs::path& model, int64_t num_bytes) {
  std::error_code error;
  const fs::path place = fs::temp_directory_path(error);
  if (error) return;  // the ModelDirectory says so
  try {
    require_disk_space(place, num_bytes);
  } catch (const NoDiskSpace& short_of) {
    throw no_room(place, model, short_of);
  }
}

fs::path stored_model(const fs::path& model) {
  std::error_code none;
  if (!fs::is_directory(model, none) || fs::exists(model / "config.json", none)) return model;
  if (!fs::exists(model / "pare.json", none)) return model;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(model, none)) {
    if (entry.path().extension() == ".gguf" && entry.is_regular_file(none)) files.push_back(entry.path());
  }
  return files.size() == 1 ? files.front() : model;
}

ModelDirectory::ModelDirectory(const fs::path& asked, const MakeDirectory& make, bool has_weights, GgufCodes codes)
    : path_(asked) {
  const fs::path model = make ? asked : stored_model(asked);
  if (model.extension() != ".gguf" && !make) return;
  std::error_code error;
  fs::path parent = fs::temp_directory_path(error);
  if (error) {
    parent = named_temporary_folder();
  } else {
    sweep(parent);
  }
  // Another process's sweep may remove a folder before it is locked.
  while (lock_ < 0) {
    std::string pattern = (parent / (std::string(kPrefix) + "XXXXXX")).string();
    if (error || ::mkdtemp(pattern.data()) == nullptr) {
      const std::string why = error ? error.message() : std::generic_category().message(errno);
      throw std::runtime_error("cannot make a folder like '" + pattern + "' to " + (make ? "unpack '" : "import '") +
                               model.string() + "' into: " + why + "; set TMPDIR" +
                               (make ? "" : ", or import it first (pare import)"));
    }
    temporary_ = pattern;
    lock_ = lock_folder(temporary_);
  }
  // Named after the file, because messages and progress show the folder's name.
  fs::path name = model.stem();
  while (name.extension() == ".gguf") name = name.stem();  // a folder of such a name would pass for a file
  path_ = temporary_ / (make ? folder_name(model) : name);
  {
    std::string named = with_named_models(model.string());  // a model may be such a directory itself
    const std::lock_guard lock(imports().mutex);
    imports().names.emplace_back(path_.string(), std::move(named));
  }
  try {
    fs::create_symlink("nothing", temporary_ / kMark);
    make ? make(model, path_)
         : import_model(model, path_, {.tokenizer = {}, .has_weights = has_weights, .codes = codes, .progress = {}});
    take_names_away();
    const std::lock_guard lock(imports().mutex);
    imports().paths.insert(path_);
  } catch (const NoDiskSpace& short_of) {
    remove();
    throw no_room(parent, model, short_of);
  } catch (const std::runtime_error& failure) {
    // With the model's name in the folder's place it would seem that the model's own folder was written to.
    const std::string reason = reason_of_failed_write(failure, temporary_);
    remove();  // the first failure is the one to report
    if (reason.empty()) throw;
    throw std::runtime_error(
        "cannot write temporary files for '" + model.string() + "' in '" + parent.string() + "': " + reason +
        ": set TMPDIR to a folder that takes them" +
        (reason == std::generic_category().message(EFBIG) ? ", or raise the limit (ulimit -f)" : ""));
  } catch (...) {
    remove();
    throw;
  }
}

void ModelDirectory::take_names_away() {
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (!entry.is_directory()) names.push_back(entry.path());  // folders hold only small files
  }
  for (const fs::path& name : names) {
    const int descriptor = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      throw std::runtime_error("cannot read '" + name.string() + "': " + std::generic_category().message(errno));
    }
    files_.push_back(descriptor);
    const std::string open_file = "/proc/self/fd/" + std::to_string(descriptor);
    struct stat mine, there;
    const bool is_reached = ::fstat(descriptor, &mine) == 0 && ::stat(open_file.c_str(), &there) == 0 &&
                            mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (!is_reached) return;  // no /proc: the files keep their names, for remove() or the next sweep
    fs::remove(name);
    fs::create_symlink(open_file, name);
  }
}

bool ModelDirectory::is_import(const fs::path& directory) {
  const std::lock_guard lock(imports().mutex);
  return imports().paths.contains(directory);
}

void ModelDirectory::remove() {
  std::error_code ignored;
  {
    const std::lock_guard lock(imports().mutex);
    imports().paths.erase(path_);
  }
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  for (const int descriptor : files_) ::close(descriptor);
  if (lock_ >= 0) ::close(lock_);
}

std::string with_named_models(std::string text) {
  const std::lock_guard lock(imports().mutex);
  for (const auto& [directory, model] : imports().names) {
    for (size_t at = text.find(directory); at != std::string::npos; at = text.find(directory, at + model.size())) {
      text.replace(at, directory.size(), model);
    }
  }
  return text;
}

ModelDirectory::~ModelDirectory() {
  remove();
}

}  // namespace pare::runtime
