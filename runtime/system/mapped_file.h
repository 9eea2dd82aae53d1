// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

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
  // Tells the kernel that these bytes will not be needed again soon, so that they do not count as resident.
  void drop(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pare
