// Files that appear whole or not at all: temporary name in the same folder, fsync, rename, fsync of the folder. The
// temporary name of NAME is ".NAME.partial-PID", so that the remains of a killed run can be recognised.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace pare::runtime {

// Replaces `path` by `bytes`. Throws std::runtime_error (path, reason), and then leaves `path` as it was and no
// temporary file.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Does the same for content that is produced piece by piece: `produce` calls the given sink any number of times.
using ByteSink = std::function<void(std::span<const std::byte>)>;
void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& produce);

// True for the name of such a temporary file, or of one that mkstemp made of ".NAME.partial-XXXXXX".
bool is_temporary_name(std::string_view file_name);

// Reads a whole file. It must be a regular one, because a model's folder may come from anywhere, and opening a pipe
// would wait forever. Throws std::runtime_error (path, reason), also if the file is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);
// Does the same for a path that the user names. It may also be a pipe, which is waited for, or a terminal.
std::string read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

void sync_directory(const std::filesystem::path& directory);

// The descriptor of an open file or folder, or the negative value that open returned. The destructor closes it.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return descriptor_; }
  // Takes over the next descriptor and closes the one before, by way of which the next may have been opened.
  void go_to(int next);
  // Returns what close returns; 0 if nothing is open.
  int close();

 private:
  int descriptor_;
};

}  // namespace pare::runtime
