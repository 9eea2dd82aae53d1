// Files of many gigabytes that are read piece by piece, or written beside their place and moved there when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace pare {

// A regular file, read at offsets. Not mapped: a file that someone cuts while it is read gives an error, not a signal.
class InputFile {
 public:
  // Throws std::runtime_error (path, reason), also for what is no regular file.
  explicit InputFile(std::filesystem::path path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened

  // Fills `bytes` from `offset` on. Throws std::runtime_error (path, reason), also where the file ends before.
  void read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

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
