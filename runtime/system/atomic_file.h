// Files that appear whole or not at all: temporary name in the same folder, fsync, rename, fsync of the folder.
// The temporary name of NAME is ".NAME.partial-PID", so that what a killed run left behind can be recognised.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace pare {

// Replaces `path` by `bytes`. Throws std::runtime_error (path, reason), leaving `path` as it was and no temporary file.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// The same for content that is produced piece by piece: `produce` calls the given sink any number of times.
using ByteSink = std::function<void(std::span<const std::byte>)>;
void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& produce);

// Whether this is the name of such a temporary file, or of one that mkstemp made of ".NAME.partial-XXXXXX".
bool is_temporary_name(std::string_view file_name);

// The whole file, which must be a regular one: a model's folder comes from anywhere, and opening a pipe waits for ever.
// Throws std::runtime_error (path, reason), also when it is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);
// The same of what the user names: also a pipe, which is waited for, or a terminal.
std::string read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

void sync_directory(const std::filesystem::path& directory);

// The descriptor of an open file or folder, or what open returned instead (below 0); closed whatever happens.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return descriptor_; }
  // Takes over the next one, which may have been opened by way of the one before.
  void go_to(int next);
  // What close returns; 0 where nothing is open.
  int close();

 private:
  int descriptor_;
};

}  // namespace pare
