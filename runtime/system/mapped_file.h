// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace pare {

class MappedFile {
 public:
  // Throws std::runtime_error (path, reason) when the file cannot be opened or mapped. An empty file maps to an empty
  // span.
  static MappedFile open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // SHA-256 of what is mapped, which need not be what lies under the path by now; leaves at most one page
  // resident.
  std::string sha256() const;
  // Tells the kernel that these bytes will not be needed again soon, so that they do not count as resident.
  void drop(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* registration_ = nullptr;
};

// The path of the MappedFile that holds this address; nullopt: none does.
std::optional<std::string> mapped_file_at(const void* address);

// Reading a mapped file behind the end that it has by now, because somebody cut it short, or where its disk cannot be
// read, ends in SIGBUS. With this handler, which the mains install, a MappedFile ends the process with exit status 1
// and one line on standard error, "PROGRAM: 'PATH' ..."; any other SIGBUS does what it did before.
void install_mapped_file_handler(const std::string& program);

}  // namespace pare
