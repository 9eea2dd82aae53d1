#include "runtime/system/input_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace pare::runtime {
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

void refuse_folder(const std::filesystem::path& path, const std::string& expected,
                   const std::vector<std::string>& extensions) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string extension = entry->path().extension().string();
    const bool fits = std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
    if (fits && entry->is_regular_file(error)) files.push_back(entry->path().string());
  }
  std::string what = "'" + path.string() + "' is a folder; expected " + expected;
  if (is_there(path / "config.json")) throw std::invalid_argument(what + ", and this one looks like a model's");
  if (files.empty()) throw std::invalid_argument(what + ", and it holds none");
  const auto first = std::min_element(files.begin(), files.end());
  throw std::invalid_argument(what + ": give " +
                              (files.size() == 1 ? "" : "one of its " + std::to_string(files.size()) + ", such as ") +
                              "'" + *first + "'");
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK the open of a pipe would wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_, why_not_opened(path_, errno));
  take_size();
}

InputFile::InputFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {
  take_size();
}

void InputFile::take_size() {
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
    if (count == 0) fail(path_, "it ends at byte " + std::to_string(offset) + ": it was shortened while it was read");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void read_in_pieces(const InputFile& file, const std::function<void(std::span<const std::byte>)>& sink) {
  std::vector<std::byte> piece(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), 1 << 20)));
  for (int64_t begin = 0; begin < file.size_bytes(); begin += static_cast<int64_t>(piece.size())) {
    const int64_t size = std::min(file.size_bytes() - begin, static_cast<int64_t>(piece.size()));
    const std::span<std::byte> bytes = std::span(piece).first(static_cast<size_t>(size));
    file.read(begin, bytes);
    sink(bytes);
  }
}

void refuse_git_lfs_pointer(const InputFile& file) {
  constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/", kSize = "\nsize ";
  constexpr int64_t kMostBytes = 1024;  // the limit of the specification
  if (file.size_bytes() < static_cast<int64_t>(kBeginning.size()) || file.size_bytes() >= kMostBytes) return;
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with(kBeginning)) return;
  std::string size;
  if (const size_t at = text.find(kSize); at != std::string::npos) {
    const size_t begin = at + kSize.size();
    size = text.substr(begin, std::min(text.find_first_not_of("0123456789", begin), text.size()) - begin);
  }
  fail(file.path(), "it is a Git LFS pointer to a file" + (size.empty() ? "" : " of " + size + " bytes") +
                        " that was not fetched: run 'git lfs pull' in its folder, or fetch the file again");
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
      what = errno == ENOENT ? "is gone" : "cannot be examined: " + std::generic_category().message(errno);
    } else if (status.st_dev != entry.device || status.st_ino != entry.inode) {
      what = "was replaced by another file";
    } else if (status.st_size != entry.size_bytes) {
      what = "had " + std::to_string(entry.size_bytes) + " bytes and has " + std::to_string(status.st_size);
    } else if (status.st_mtim.tv_sec != entry.modified_s || status.st_mtim.tv_nsec != entry.modified_ns) {
      what = "was written to";
    } else {
      continue;
    }
    throw std::runtime_error("changed while it was read: '" + entry.path.string() + "' " + what +
                             ": restore it, or start over with it as it is now; do not change it during a run");
  }
}

}  // namespace pare::runtime
