// Reads files. A path that is not a regular file is never waited for, and all readers recognise it in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pare::runtime {

// True if a folder has an entry of that name, even a link that leads nowhere. Use it to look for optional files. A file
// that is there but broken then counts as present, and its reader says what is wrong with it.
bool is_there(const std::filesystem::path& path);

// Returns the text for a path that could not be opened for reading, by errno.
std::string why_not_opened(const std::filesystem::path& path, int error);

// Throws std::invalid_argument if `path` is a folder where `expected` ("a text (.txt, .jsonl)") should be. The message
// names a file in it whose name ends in one of `extensions`, if there is one.
void refuse_folder(const std::filesystem::path& path, const std::string& expected,
                   const std::vector<std::string>& extensions);

// A regular file, read at offsets. It is not mapped, so that a file that is cut short while it is read gives an error,
// not a signal.
class InputFile {
 public:
  // Throws std::runtime_error (path, reason), also for a path that is not a regular file.
  explicit InputFile(std::filesystem::path path);
  // Does the same for an open descriptor, which it takes over. `path` is for messages.
  InputFile(std::filesystem::path path, int descriptor);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened

  // Fills `bytes` from `offset` on. Throws std::runtime_error (path, reason), also if the file ends before.
  void read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  void take_size();
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

// Reads the whole file from its first byte on, in pieces of at most 1 MiB. Throws what InputFile::read throws.
void read_in_pieces(const InputFile& file, const std::function<void(std::span<const std::byte>)>& sink);

// Throws std::runtime_error if the file is the pointer that Git LFS leaves in place of a large file that was not
// fetched. For callers that read the content; copying a pointer is fine.
void refuse_git_lfs_pointer(const InputFile& file);

// Files that are read more than once, or mapped. They must stay the same files with the same content all the while.
class InputFiles {
 public:
  // Notes which file `path` is (device, inode), its size and its time of modification. Call it before the file is read,
  // so that a change between the two is found as well. A path that is missing or not a regular file (a pipe) is not
  // noted; its reader reports it.
  void add(const std::filesystem::path& path);

  // Looks at every noted file again, with one stat each. Throws std::runtime_error naming the first that is gone, is
  // another file or was written to: "changed while it was read: 'PATH' ...".
  void check_unchanged() const;

 private:
  struct Entry {
    std::filesystem::path path;
    uint64_t device = 0, inode = 0;
    int64_t size_bytes = 0;
    int64_t modified_s = 0, modified_ns = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace pare::runtime
