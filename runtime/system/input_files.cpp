#include "runtime/system/input_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace pare {

bool is_there(const std::filesystem::path& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
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
