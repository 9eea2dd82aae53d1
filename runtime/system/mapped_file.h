// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace pare::runtime {

class MappedFile {
 public:
  // Throws std::runtime_error (path, reason) if the file cannot be opened or mapped. An empty file maps to an empty
  // span.
  static MappedFile open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Returns the SHA-256 of the mapped content, which need not be what lies under the path by now. Leaves at most one
  // page resident.
  std::string sha256() const;
  // Tells the kernel that these bytes will not be needed again soon, so that they do not count as resident.
  void drop(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* registration_ = nullptr;
};

// Returns the path of the MappedFile that holds this address; nullopt: none does.
std::optional<std::string> mapped_file_at(const void* address);

// Reading a mapped file raises SIGBUS after its present end, if somebody cut it short, or where its disk cannot be
// read. The mains install this handler. For a MappedFile it ends the process with exit status 1 and one line on
// standard error, "PROGRAM: 'PATH' ...". For any other SIGBUS it does what was done before.
void install_mapped_file_handler(const std::string& program);

}  // namespace pare::runtime
