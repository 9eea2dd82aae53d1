#include "compress/hdf5/unpublished_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "runtime/system/atomic_file.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* verb, const fs::path& path, const std::string& why) {
  throw std::runtime_error(std::string("cannot ") + verb + " '" + path.string() + "': " + why);
}

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  std::string why = std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    why += ": free some space or choose another folder, then run again";
  fail(verb, path, why);
}

// Of the whole file; a lock of this descriptor alone, so that HDF5's own flock of the same file does not meet it.
bool lock(int descriptor) {
  struct flock request = {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  return fcntl(descriptor, F_OFD_SETLK, &request) == 0;
}

// Whether the name still means the open file: a run that ended between our open and our lock has taken it away.
bool is_named(int descriptor, const fs::path& path) {
  struct stat open_file, named;
  return fstat(descriptor, &open_file) == 0 && lstat(path.c_str(), &named) == 0 && open_file.st_dev == named.st_dev &&
         open_file.st_ino == named.st_ino;
}

// Or with the zeros that stand there until `magic` is written, or holds nothing yet.
bool starts_with(int descriptor, std::string_view magic) {
  std::string start(magic.size(), '\0');
  const ssize_t count = pread(descriptor, start.data(), start.size(), 0);
  if (count != static_cast<ssize_t>(magic.size())) return count == 0;
  return start == magic || start == std::string(magic.size(), '\0');
}

}  // namespace

UnpublishedFile::UnpublishedFile(fs::path path, std::string_view magic) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  while (true) {
    descriptor_ = open(partial_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("write", path_, "'" + partial_.string() + "': " + std::generic_category().message(errno));
    struct stat status;
    std::string why;
    const std::string foreign =
        "'" + partial_.string() + "' exists and is nothing that an interrupted run has left: remove it";
    if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      why = foreign;
    } else if (!lock(descriptor_)) {
      why = errno == EAGAIN || errno == EACCES
                ? "another run is writing '" + partial_.string() + "'"
                : "'" + partial_.string() + "' cannot be locked: " + std::generic_category().message(errno);
    } else if (is_named(descriptor_, partial_)) {
      if (!starts_with(descriptor_, magic)) {
        why = foreign;
      } else if (ftruncate(descriptor_, 0) == 0) {
        return;
      } else {
        why = std::generic_category().message(errno);
      }
    }
    close(std::exchange(descriptor_, -1));
    if (!why.empty()) fail("write", path_, why);
  }
}

UnpublishedFile::~UnpublishedFile() {
  if (descriptor_ < 0) return;
  unlink(partial_.c_str());  // before the lock goes
  close(descriptor_);
}

void UnpublishedFile::write_head(std::string_view bytes) const {
  const ssize_t count = pwrite(descriptor_, bytes.data(), bytes.size(), 0);
  if (count < 0) fail("write", path_, errno);
  if (count != static_cast<ssize_t>(bytes.size())) fail("write", path_, ENOSPC);
}

void UnpublishedFile::publish() {
  // Some file systems notice a full disk or quota only here.
  if (fsync(descriptor_) != 0) fail("write", path_, errno);
  int error = renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
  if (error == EINVAL || error == ENOSYS) {  // a file system that cannot, such as NFS; it has links
    error = link(partial_.c_str(), path_.c_str()) == 0 ? 0 : errno;
    if (error == 0) unlink(partial_.c_str());
  }
  if (error == EEXIST) {
    close(std::exchange(descriptor_, -1));
    fail("write", path_,
         "it has appeared during this run and is left as it is; the complete new file is '" + partial_.string() +
             "': rename it");
  }
  if (error != 0) fail("write", path_, error);
  close(std::exchange(descriptor_, -1));
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

}  // namespace pare
