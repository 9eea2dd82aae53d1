// Files that are read: what is no regular file is never waited for, and is told apart in one way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pare {

// Whether a folder has an entry of that name, even a link that leads nowhere. A file that may be missing is looked for so:
// one that was to be there is not taken for one that nobody wanted, and its reader says what is wrong with it.
bool is_there(const std::filesystem::path& path);

// What to say of a path that could not be opened for reading, by errno.
std::string why_not_opened(const std::filesystem::path& path, int error);

// Throws std::invalid_argument where `path` is a folder and `expected` ("a text (.txt, .jsonl)") was to be there; names
// a file in it whose name ends in one of `extensions`, if there is one.
void refuse_folder(const std::filesystem::path& path, const std::string& expected,
                   const std::vector<std::string>& extensions);

// A regular file, read at offsets. Not mapped: a file that someone cuts while it is read gives an error, not a signal.
class InputFile {
 public:
  // Throws std::runtime_error (path, reason), also for what is no regular file.
  explicit InputFile(std::filesystem::path path);
  // The same of what is open already: takes the descriptor over. `path` is for messages.
  InputFile(std::filesystem::path path, int descriptor);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened

  // Fills `bytes` from `offset` on. Throws std::runtime_error (path, reason), also where the file ends before.
  void read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  void take_size();
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

// All of it, from its first byte on, in pieces of at most 1 MiB. Throws what InputFile::read throws.
void read_in_pieces(const InputFile& file, const std::function<void(std::span<const std::byte>)>& sink);

// Throws std::runtime_error where the file is the pointer that Git LFS leaves in the place of a large file that was not
// fetched. For whoever reads its content; a copy of one is a copy.
void refuse_git_lfs_pointer(const InputFile& file);

// Files that are read more than once, or mapped, and must be the same files with the same content all the while.
class InputFiles {
 public:
  // Notes which file `path` is (device, inode), its size and its time of modification: to be called before the file is
  // read, so that a change between the two is found as well. What is missing or no regular file (a pipe) is not
  // noted: its reader says so.
  void add(const std::filesystem::path& path);

  // Looks at every noted file again; costs one stat each. Throws std::runtime_error naming the first that is gone, is
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

}  // namespace pare
