#include "runtime/system/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/system/input_files.h"
#include "runtime/system/mapped_file.h"

namespace pare::runtime {
namespace {

[[noreturn]] void fail(const char* verb, const std::filesystem::path& path, int error) {
  std::string reason = std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT) reason += ": free some space or choose another folder, then run again";
  throw std::runtime_error(std::string("cannot ") + verb + " '" + path.string() + "': " + reason);
}

[[noreturn]] void fail_too_large(const std::filesystem::path& path, size_t max_bytes) {
  throw std::runtime_error("cannot read '" + path.string() + "': it is larger than the " + std::to_string(max_bytes) +
                           " bytes allowed here");
}

// The temporary neighbour of a file. The destructor removes it unless it has become the file.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& path)
      : path_(path),
        temporary_(path.parent_path() /
                   ("." + path.filename().string() + ".partial-" + std::to_string(static_cast<long>(::getpid())))),
        descriptor_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    if (descriptor_.get() < 0) fail("write", path_, errno);
  }
  ~TemporaryFile() {
    if (!committed_) ::unlink(temporary_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      // Linux writes at most 2^31 - 4096 bytes at once. A signal or a nearly full disk shortens a write too.
      const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      // The kernel cannot read the bytes to be written: they lie at the end of a mapped file that has become shorter.
      if (const auto source = errno == EFAULT && written < 0 ? mapped_file_at(bytes.data()) : std::nullopt) {
        throw std::runtime_error("cannot write '" + path_.string() + "': '" + *source +
                                 "', which its bytes come from, became shorter while it was read, or its disk has "
                                 "failed: restore it, and do not change it during a run");
      }
      if (written < 0) fail("write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void commit() {
    // Some file systems notice a full disk or quota only at fsync or close.
    if (::fsync(descriptor_.get()) != 0) fail("write", path_, errno);
    if (descriptor_.close() != 0) fail("write", path_, errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", path_, errno);
    committed_ = true;
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Descriptor descriptor_;
  bool committed_ = false;
};

// Reads a descriptor's content to its end. `guess_bytes` is only a first guess: pipes and files of /proc do not tell
// their size.
std::string read_to_the_end(int descriptor, const std::filesystem::path& path, size_t guess_bytes, size_t max_bytes) {
  std::string text;
  const size_t first_bytes = std::max<size_t>(guess_bytes, 4095);
  while (true) {
    if (text.size() > max_bytes || guess_bytes > max_bytes) fail_too_large(path, max_bytes);
    const size_t num_bytes = text.size();
    // A pipe gives little at once, and added space is cleared each time.
    constexpr size_t kMostAtOnce = 1 << 20;
    text.resize(num_bytes <= first_bytes ? first_bytes + 1
                                         : std::min(num_bytes + std::min(num_bytes, kMostAtOnce), max_bytes + 1));
    const ssize_t num_read = ::read(descriptor, text.data() + num_bytes, text.size() - num_bytes);
    const int error = errno;
    text.resize(num_bytes + static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
    if (num_read == 0) return text;
    if (num_read < 0 && error != EINTR) fail("read", path, error);
  }
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& produce) {
  if (!path.has_filename()) throw std::invalid_argument("cannot write '" + path.string() + "': expected a file name");
  TemporaryFile file(path);
  produce([&file](std::span<const std::byte> bytes) { file.append(bytes); });
  file.commit();
  sync_directory(folder_of(path));
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  write_file_atomically(path, [bytes](const ByteSink& sink) { sink(bytes); });
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

bool is_temporary_name(std::string_view file_name) {
  constexpr std::string_view kMark = ".partial-";
  const size_t mark = file_name.rfind(kMark);
  if (!file_name.starts_with('.') || mark == std::string_view::npos || mark < 2) return false;
  const std::string_view number = file_name.substr(mark + kMark.size());
  return !number.empty() && std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isalnum(c); });
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const InputFile file(path);
  refuse_git_lfs_pointer(file);
  return read_to_the_end(file.descriptor(), path, static_cast<size_t>(file.size_bytes()), max_bytes);
}

// Standard input and pipes give their text once. A later read of the same one in this process returns the same text.
std::string read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes) {
  if (std::error_code error; path != "/dev/stdin" && std::filesystem::is_regular_file(path, error)) {
    return read_text_file(path, max_bytes);
  }
  // Standard input is not opened by its name: a socket or another user's terminal does not allow that.
  const bool is_standard = path == "/dev/stdin";
  const Descriptor descriptor(is_standard ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                          : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) {
    throw std::runtime_error("cannot read '" + path.string() + "': " + why_not_opened(path, errno));
  }
  struct stat status;
  if (::fstat(descriptor.get(), &status) != 0) fail("read", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  if (S_ISBLK(status.st_mode) || (S_ISCHR(status.st_mode) && ::isatty(descriptor.get()) != 1)) {
    throw std::runtime_error("cannot read '" + path.string() + "': it is a device; expected a file");
  }
  const bool is_regular = S_ISREG(status.st_mode);
  const size_t guess_bytes = is_regular ? static_cast<size_t>(status.st_size) : 0;
  const auto read = [&] { return read_to_the_end(descriptor.get(), path, guess_bytes, max_bytes); };
  if (is_regular && !is_standard) return read();

  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::string> texts_given;
  const std::lock_guard lock(mutex);
  const std::pair source(status.st_dev, status.st_ino);
  const auto known = texts_given.find(source);
  const std::string& text =
      known != texts_given.end() ? known->second : texts_given.emplace(source, read()).first->second;
  if (text.size() > max_bytes) fail_too_large(path, max_bytes);
  return text;
}

void sync_directory(const std::filesystem::path& directory) {
  Descriptor descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) fail("sync folder", directory, errno);
  // EINVAL: the file system cannot sync folders and keeps its renames in order by itself.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) fail("sync folder", directory, errno);
}

void Descriptor::go_to(int next) {
  close();
  descriptor_ = next;
}

int Descriptor::close() {
  return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1));
}

}  // namespace pare::runtime
