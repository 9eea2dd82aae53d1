// Files of many gigabytes that another library writes beside their place, and that are moved there when complete.
#pragma once

#include <filesystem>
#include <string_view>

namespace pare::compress {

// A new file beside PATH, with a temporary name (runtime/system/atomic_file.h: is_temporary_name). The folder's owner
// removes what a killed process leaves of one: it lies in a folder that a command has claimed.
class UnpublishedFile {
 public:
  // Makes an empty file that `path` will name; `shown` is the path that messages name. Throws std::runtime_error (path,
  // reason).
  UnpublishedFile(std::filesystem::path path, std::filesystem::path shown);
  UnpublishedFile(const UnpublishedFile&) = delete;
  UnpublishedFile& operator=(const UnpublishedFile&) = delete;
  ~UnpublishedFile();  // removes the file unless it is published

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& shown() const { return shown_; }
  // Returns the file's path until then.
  const std::filesystem::path& temporary_path() const { return temporary_; }

  // Replaces bytes at the file's beginning.
  void write_head(std::string_view bytes) const;

  // Syncs the file to the disk and gives it its name. Throws std::runtime_error (path, reason), also where a file of
  // that name has appeared, which is left as it is.
  void publish();

 private:
  std::filesystem::path path_, shown_, temporary_;
  int descriptor_ = -1;
};

}  // namespace pare::compress
