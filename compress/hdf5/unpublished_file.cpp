#include "compress/hdf5/unpublished_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "runtime/system/atomic_file.h"

namespace pare::compress {
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

}  // namespace

UnpublishedFile::UnpublishedFile(fs::path path, fs::path shown) : path_(std::move(path)), shown_(std::move(shown)) {
  const std::string name = "." + path_.filename().string() + ".partial-" + std::to_string(static_cast<long>(getpid()));
  // A file that a killed process of the same number has left keeps its name.
  for (int i = 0; descriptor_ < 0; ++i) {
    temporary_ = path_.parent_path() / (i == 0 ? name : name + "x" + std::to_string(i));
    descriptor_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) fail("write", shown_, errno);
  }
}

UnpublishedFile::~UnpublishedFile() {
  if (descriptor_ < 0) return;
  unlink(temporary_.c_str());
  close(descriptor_);
}

void UnpublishedFile::write_head(std::string_view bytes) const {
  const ssize_t count = pwrite(descriptor_, bytes.data(), bytes.size(), 0);
  if (count < 0) fail("write", shown_, errno);
  if (count != static_cast<ssize_t>(bytes.size())) fail("write", shown_, ENOSPC);
}

void UnpublishedFile::publish() {
  // Some file systems notice a full disk or quota only here.
  if (fsync(descriptor_) != 0) fail("write", shown_, errno);
  int error = renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
  if (error == EINVAL || error == ENOSYS) {  // some file systems, such as NFS, cannot rename so; they have links
    error = link(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno;
    if (error == 0) unlink(temporary_.c_str());
  }
  if (error == EEXIST) fail("write", shown_, "it was created during this run, and is left as it is");
  if (error != 0) fail("write", shown_, error);
  close(std::exchange(descriptor_, -1));
  runtime::sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

}  // namespace pare::compress
