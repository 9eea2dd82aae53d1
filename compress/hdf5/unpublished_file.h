// Files of many gigabytes that another library writes beside their place, and that are moved there when complete.
#pragma once

#include <filesystem>
#include <string_view>

namespace pare {

// PATH.partial, locked while the object lives. What a killed run has left is taken over, so that there is one at most.
class UnpublishedFile {
 public:
  // An empty file that `path` will name. It must be written so that when the process dies it begins with `magic`, or
  // with zeros, or is empty. Throws std::runtime_error (path, reason): another run is writing it, PATH.partial is
  // something else.
  UnpublishedFile(std::filesystem::path path, std::string_view magic);
  UnpublishedFile(const UnpublishedFile&) = delete;
  UnpublishedFile& operator=(const UnpublishedFile&) = delete;
  ~UnpublishedFile();  // removes what is not published

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& partial_path() const { return partial_; }

  // Replaces bytes at the file's beginning.
  void write_head(std::string_view bytes) const;

  // Brings the file to the disk and gives it its name. Throws std::runtime_error (path, reason). A file that has
  // appeared under that name is left as it is; the complete PATH.partial then stays too, and the message says so.
  void publish();

 private:
  std::filesystem::path path_, partial_;
  int descriptor_ = -1;
};

}  // namespace pare
