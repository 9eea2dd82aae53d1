#include "runtime/system/input_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace pare {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& why) {
  throw std::runtime_error("cannot read '" + path.string() + "': " + why);
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace

bool is_there(const std::filesystem::path& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
}

std::string why_not_opened(const std::filesystem::path& path, int error) {
  if (error == ENOENT && is_there(path)) return "it is a link to a file that is not there: fetch the whole model";
  return error_text(error);
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK the open of a pipe would wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_, why_not_opened(path_, errno));
  struct stat status;
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  const bool is_regular = error == 0 && S_ISREG(status.st_mode);
  if (!is_regular) {
    ::close(std::exchange(descriptor_, -1));
    if (error != 0) fail(path_, error_text(error));
    fail(path_, S_ISDIR(status.st_mode) ? "expected a file, found a directory"
                                        : "expected a regular file, found a pipe or device");
  }
  size_bytes_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, error_text(errno));
    if (count == 0) fail(path_, "it ends at byte " + std::to_string(offset) + ": it was cut while it was read");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void InputFiles::add(const std::filesystem::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  entries_.push_back({.path = path,
                      .device = status.st_dev,
                      .inode = status.st_ino,
                      .size_bytes = status.st_size,
                      .modified_s = status.st_mtim.tv_sec,
                      .modified_ns = status.st_mtim.tv_nsec});
}

void InputFiles::check_unchanged() const {
  for (const Entry& entry : entries_) {
    std::string what;
    struct stat status;
    if (::stat(entry.path.c_str(), &status) != 0) {
      what = errno == ENOENT ? "is gone" : "cannot be looked at: " + std::generic_category().message(errno);
    } else if (status.st_dev != entry.device || status.st_ino != entry.inode) {
      what = "is another file now";
    } else if (status.st_size != entry.size_bytes) {
      what = "had " + std::to_string(entry.size_bytes) + " bytes and has " + std::to_string(status.st_size);
    } else if (status.st_mtim.tv_sec != entry.modified_s || status.st_mtim.tv_nsec != entry.modified_ns) {
      what = "was written to";
    } else {
      continue;
    }
    throw std::runtime_error("changed while it was read: '" + entry.path.string() + "' " + what +
                             ": put back what it was, or start anew with what it is now, and leave it alone meanwhile");
  }
}

}  // namespace pare
