#include "runtime/system/private_files.h"

#include <sys/stat.h>

#include <system_error>

namespace pare {
namespace {

namespace fs = std::filesystem;

// All rights of whoever may not read that file.
mode_t rights_without(const fs::path& file) {
  struct stat status;
  if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  mode_t withheld = 0;
  if ((status.st_mode & S_IRGRP) == 0) withheld |= S_IRWXG;
  if ((status.st_mode & S_IROTH) == 0) withheld |= S_IRWXO;
  return withheld;
}

}  // namespace

void keep_as_private_as(const fs::path& source) {
  mode_t withheld = rights_without(source);
  std::error_code no_folder;
  for (fs::directory_iterator entry(source, no_folder), end; !no_folder && entry != end; entry.increment(no_folder)) {
    if (entry->path().extension() == ".safetensors") withheld |= rights_without(entry->path());
  }
  ::umask(::umask(0777) | withheld);
}

}  // namespace pare
