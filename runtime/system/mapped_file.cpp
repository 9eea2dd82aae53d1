#include "runtime/system/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace pare {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw std::runtime_error("cannot open '" + path.string() + "': " + reason);
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(path, error_text(errno));
  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    fail(path, error_text(error));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail(path, S_ISDIR(status.st_mode) ? "expected a file, found a directory" : "expected a regular file");
  }
  MappedFile file;
  file.size_ = static_cast<size_t>(status.st_size);
  if (file.size_ > 0) {
    void* memory = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) {
      const int error = errno;
      file.size_ = 0;
      ::close(descriptor);
      fail(path, "mapping " + std::to_string(status.st_size) + " bytes failed: " + error_text(error));
    }
    file.data_ = static_cast<const std::byte*>(memory);
  }
  ::close(descriptor);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> part) const {
  // Only pages that lie wholly inside: the neighbours of a tensor may be in use. The mapping is never written, so a
  // dropped page can always be read again; a refusal of the kernel costs memory only and is no error.
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t file_begin = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t part_begin = reinterpret_cast<uintptr_t>(part.data());
  if (part.empty()) return;
  if (part_begin < file_begin || part_begin - file_begin > size_ || part.size() > size_ - (part_begin - file_begin)) {
    throw std::invalid_argument("MappedFile::drop: the bytes do not belong to this file");
  }
  const uintptr_t begin = (part_begin + page - 1) / page * page;
  const uintptr_t end = (part_begin + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace pare
