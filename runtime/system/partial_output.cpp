#include "runtime/system/partial_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "claimed-by-pare";
constexpr std::string_view kProgram = "pare ";
constexpr std::string_view kResumable = " resumable";

std::string error_text(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void fail(const fs::path& folder, const std::string& what) {
  throw std::runtime_error("'" + folder.string() + "' " + what);
}

// Returns everything in the folder except the mark; nothing if there is no folder.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    if (entry->path().filename() != kMark) entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// True for a link: it may lead to another command's folder.
bool is_link(const fs::path& folder) {
  return fs::is_symlink(fs::symlink_status(folder));
}

void check_not_a_strangers(const fs::path& folder) {
  const fs::file_status status = fs::symlink_status(folder);  // asked once: the command at work may remove it meanwhile
  if (fs::exists(status) && !fs::is_directory(status)) {
    fail(folder, "exists and is not a folder" + std::string(fs::is_symlink(status) ? " but a link" : "") +
                     ": remove it or choose another output");
  }
  const std::vector<fs::path> entries = entries_of(folder);
  // The order matters: a command at work makes its mark first.
  if (entries.empty() || is_there(folder / kMark) || !is_there(entries.front())) return;
  fail(folder, "exists and is not an unfinished output of pare (it holds '" + entries.front().filename().string() +
                   "'): remove it or choose another output");
}

struct Mark {
  std::string text;
  std::string command;  // empty: no such text, or one with control characters
  bool is_resumable = false;
};

// A mark without text is one that was about to be written.
Mark read_mark(int descriptor) {
  std::array<char, 256> buffer;
  const ssize_t size = ::pread(descriptor, buffer.data(), buffer.size(), 0);
  Mark mark{std::string(buffer.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))), "", false};
  std::string_view rest = mark.text;
  if (!rest.starts_with(kProgram) || !rest.ends_with('\n')) return mark;
  rest = rest.substr(kProgram.size(), rest.size() - kProgram.size() - 1);
  mark.is_resumable = rest.ends_with(kResumable);
  if (mark.is_resumable) rest.remove_suffix(kResumable.size());
  // Only a text of ours is kept, because messages quote it.
  if (std::none_of(rest.begin(), rest.end(), is_control)) mark.command = rest;
  return mark;
}

// Opens and locks the mark in `folder`. Returns -1, with errno, if it cannot be opened. ENOENT: there is no such folder
// (a link counts as none) or, unless `makes` it, no mark. Throws std::runtime_error if another process holds it.
int lock_mark(const fs::path& folder, bool makes) {
  const fs::path path = folder / kMark;
  if (is_link(folder)) {
    errno = ENOENT;
    return -1;
  }
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | (makes ? O_CREAT : 0), 0666);
    if (descriptor < 0) return -1;
    struct stat mine, there;
    if (::fstat(descriptor, &mine) == 0 && !S_ISREG(mine.st_mode)) {
      ::close(descriptor);
      fail(folder, "holds a '" + std::string(kMark) + "' that is not a file: remove it or choose another output");
    }
    const bool is_locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    const int error = errno;
    // The process that held it before may have removed it.
    const bool is_current = ::fstat(descriptor, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
                            mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (is_locked && is_current) return descriptor;
    if (!is_locked && is_current) {
      const std::string owner = read_mark(descriptor).command;
      ::close(descriptor);
      if (error == EWOULDBLOCK) {
        fail(folder, "is in use: another 'pare " + (owner.empty() ? "..." : owner) + "' is writing it");
      }
      fail(folder, "cannot be locked: " + error_text(error));
    }
    ::close(descriptor);
  }
}

// Does the same without making it; also returns -1 if it is in use.
int lock_mark_if_free(const fs::path& folder) {
  try {
    return lock_mark(folder, /*makes=*/false);
  } catch (const std::runtime_error&) {
    return -1;
  }
}

void remove_worthless(const fs::path& folder) {
  fs::remove_all(folder / PartialOutput::kResult);
  for (const fs::path& entry : entries_of(folder)) {
    if (is_temporary_name(entry.filename().string())) fs::remove(entry);
  }
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

fs::path output_place(const fs::path& output) {
  // Does not use lexically_normal: if "link" is a link, "link/.." is not the folder that holds it.
  std::string text = output.string();
  // The system would see a name cut off at a NUL, which is another file's.
  if (std::any_of(text.begin(), text.end(), is_control)) {
    throw std::invalid_argument("output '" + output.string() + "': expected a name without control characters");
  }
  while (text.size() > 1 && (text.ends_with('/') || text.ends_with("/."))) text.pop_back();
  const fs::path place = text;
  const fs::path name = place.filename();
  if (name.empty() || name == "." || name == "..") {
    throw std::invalid_argument("output '" + output.string() + "': expected the name of a new file or folder");
  }
  fs::path folder;
  for (auto part = place.begin(); part != std::prev(place.end()); ++part) {
    const fs::file_status status = fs::status(folder);
    if (*part == ".." && !folder.empty() && !fs::exists(status)) {
      throw std::invalid_argument("output '" + output.string() + "': there is no folder '" + folder.string() + "'");
    }
    folder /= *part;
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw std::invalid_argument("output '" + output.string() + "': '" + folder.string() + "' is not a folder");
    }
  }
  return place;
}

NoDiskSpace::NoDiskSpace(const fs::path& place, int64_t available, int64_t needed)
    : std::runtime_error("'" + place.string() + "' has " + format_bytes(available) + " free; this run needs " +
                         format_bytes(needed) + ": free some or choose another place for the output"),
      available_(available),
      needed_(needed) {}

void require_disk_space(const fs::path& output, int64_t num_bytes) {
  fs::path existing = fs::absolute(output).lexically_normal();
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  const auto available = static_cast<int64_t>(fs::space(existing).available);
  int64_t held = 0;
  std::error_code none;
  for (fs::recursive_directory_iterator file(PartialOutput::folder_of(output), none), end; !none && file != end;
       file.increment(none)) {
    if (file->is_regular_file(none)) held += static_cast<int64_t>(file->file_size(none));
  }
  if (available + held < num_bytes) throw NoDiskSpace(existing, available, num_bytes);
}

fs::path PartialOutput::folder_of(const fs::path& output) {
  fs::path folder = output_place(output);
  folder += ".partial";
  return folder;
}

void PartialOutput::check_is_free(const fs::path& output, Leftovers leftovers) {
  if (!is_there(output_place(output))) return;
  const fs::path folder = folder_of(output);
  const int lock = leftovers == Leftovers::go ? lock_mark_if_free(folder) : -1;
  if (lock >= 0) {
    PartialOutput remains(output_place(output), "", Remains::resumable, lock);
    if (remains.is_empty()) remains.discard();
  } else if (leftovers == Leftovers::go) {
    ::rmdir(folder.c_str());  // an empty one: a discard() was killed before its last step
  }
  throw std::runtime_error("output '" + output.string() + "' exists: remove it or choose another");
}

PartialOutput::PartialOutput(fs::path output, std::string command, Remains remains, int lock)
    : output_(std::move(output)),
      folder_(folder_of(output_)),
      command_(std::move(command)),
      remains_(remains),
      lock_(lock) {}

PartialOutput::PartialOutput(PartialOutput&& other) noexcept
    : output_(std::move(other.output_)),
      folder_(std::move(other.folder_)),
      command_(std::move(other.command_)),
      remains_(other.remains_),
      lock_(std::exchange(other.lock_, -1)) {}

PartialOutput::PartialOutput(const fs::path& output, std::string command, Remains remains)
    : PartialOutput(output_place(output), std::move(command), remains, -1) {
  check_is_free(output_, Leftovers::go);
  fs::create_directories(parent_of(folder_));
  int lock = -1;
  while (lock < 0) {
    check_not_a_strangers(folder_);
    if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) {
      throw std::runtime_error("cannot make the folder '" + folder_.string() + "': " + error_text(errno));
    }
    lock = lock_mark(folder_, /*makes=*/true);
    // ENOENT: the command at work has removed the folder in between.
    if (lock < 0 && errno != ENOENT) fail(folder_, "cannot be marked: " + error_text(errno));
  }
  try {
    mark(lock);
  } catch (...) {
    ::close(lock);  // not ours, and so not to be discarded
    throw;
  }
  lock_ = lock;
  // The process that held the lock before may have published.
  if (is_there(output_)) {
    if (is_empty()) discard();
    check_is_free(output_, Leftovers::go);
  }
}

void PartialOutput::mark(int lock) const {
  const Mark found = read_mark(lock);
  const bool is_unknown = found.command.empty() && !(found.text.empty() && is_empty());
  if (is_unknown) {
    fail(folder_, "holds a '" + std::string(kMark) +
                      "' that does not name the command that made it: remove it or choose another output");
  }
  if (found.is_resumable && !is_empty()) {
    if (found.command == command_) return;
    fail(folder_, "holds an unfinished 'pare " + found.command +
                      "': continue that command, remove the folder or choose another output");
  }
  remove_worthless(folder_);
  const std::string text =
      std::string(kProgram) + command_ + std::string(remains_ == Remains::resumable ? kResumable : "") + "\n";
  const auto size = static_cast<ssize_t>(text.size());
  const bool is_written =
      ::pwrite(lock, text.data(), text.size(), 0) == size && ::ftruncate(lock, size) == 0 && ::fsync(lock) == 0;
  if (!is_written) {
    std::string reason = error_text(errno);
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      reason += ": free some space or choose another folder, then run again";
    }
    if (is_empty()) {  // with half a mark nobody could use it
      ::unlink((folder_ / kMark).c_str());
      ::rmdir(folder_.c_str());
    }
    fail(folder_, "cannot be marked: " + reason);
  }
  sync_directory(folder_);
}

std::optional<PartialOutput> PartialOutput::take_remains(const fs::path& output, std::string command) {
  const int lock = lock_mark_if_free(folder_of(output));
  if (lock < 0) return std::nullopt;
  const Mark found = read_mark(lock);
  PartialOutput remains(output_place(output), std::move(command), Remains::resumable, lock);
  if (!found.is_resumable || found.command != remains.command_) return std::nullopt;
  return remains;
}

PartialOutput::~PartialOutput() {
  if (lock_ < 0) return;
  try {
    if (remains_ == Remains::worthless) discard();
  } catch (const std::exception&) {  // the failure that led here is the one to report
  }
  if (lock_ >= 0) ::close(lock_);
}

fs::path PartialOutput::result() const {
  return folder_ / kResult;
}

bool PartialOutput::is_empty() const {
  const std::vector<fs::path> entries = entries_of(folder_);
  return std::all_of(entries.begin(), entries.end(),
                     [](const fs::path& entry) { return is_temporary_name(entry.filename().string()); });
}

void PartialOutput::fail_occupied() {
  // The next command would remove remains that nobody can go on with.
  if (remains_ == Remains::worthless) {
    fs::remove(folder_ / kMark);  // while it is locked
    ::close(std::exchange(lock_, -1));
  }
  throw std::runtime_error("output '" + output_.string() + "' has appeared during this run; the result is in '" +
                           result().string() + "'");
}

void PartialOutput::publish() {
  if (fs::is_directory(result())) sync_directory(result());
  if (::renameat2(AT_FDCWD, result().c_str(), AT_FDCWD, output_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) fail_occupied();
    if (errno != EINVAL && errno != ENOSYS) {
      throw std::runtime_error("cannot rename '" + result().string() + "' to '" + output_.string() +
                               "': " + error_text(errno));
    }
    // This file system cannot rename without replacing.
    if (is_there(output_)) fail_occupied();
    fs::rename(result(), output_);
  }
  sync_directory(parent_of(output_));
}

void PartialOutput::discard() {
  remove_worthless(folder_);
  fs::remove(folder_ / kMark);  // while it is locked
  ::rmdir(folder_.c_str());     // unless it holds something else
  ::close(std::exchange(lock_, -1));
}

}  // namespace pare::runtime
