#include "runtime/system/private_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/system/atomic_file.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

// The extensions of the files in a folder from which outputs are made.
constexpr std::array<std::string_view, 3> kRead = {".safetensors", ".json", ".h5"};

// The users who may read all of some files, their owner aside.
class Readers {
 public:
  // Keeps those who have the right for all entries so far: everybody, nobody, or only a group. If others have a right
  // that the group lacks, its members cannot be told from others, and nobody has it.
  void limit(const struct stat& entry, mode_t right_of_group, mode_t right_of_others) {
    const bool group_may = (entry.st_mode & right_of_group) != 0, others_may = (entry.st_mode & right_of_others) != 0;
    if (group_may && others_may) return;
    has_others_ = false;
    has_group_ = has_group_ && group_may && group_.value_or(entry.st_gid) == entry.st_gid;
    group_ = entry.st_gid;
  }

  // Looks at the file itself and at all folders above it, and follows links.
  void limit_by(const fs::path& file) {
    std::error_code error;
    const fs::path place = fs::canonical(file, error);
    struct stat status;
    if (error || ::stat(place.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    limit(status, S_IRGRP, S_IROTH);
    for (fs::path folder = place.parent_path();; folder = folder.parent_path()) {
      if (::stat(folder.c_str(), &status) == 0) limit(status, S_IXGRP, S_IXOTH);
      if (folder == folder.parent_path()) return;
    }
  }

  mode_t withheld(gid_t group) const {
    const bool group_may = has_others_ || (has_group_ && group_ == group);
    return (has_others_ ? 0 : S_IRWXO) | (group_may ? 0 : S_IRWXG);
  }

 private:
  bool has_others_ = true;
  bool has_group_ = true;
  std::optional<gid_t> group_;  // none yet: every group
};

// Returns the group that new files get where `output` will be.
gid_t group_of(const fs::path& output) {
  std::error_code error;
  fs::path folder = fs::absolute(output, error).parent_path();
  while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  struct stat status;
  const bool passes_its_own = ::stat(folder.c_str(), &status) == 0 && (status.st_mode & S_ISGID) != 0;
  return passes_its_own ? status.st_gid : ::getegid();
}

// Makes the umask stricter for a while. Files that other threads make meanwhile are as private.
class StricterUmask {
 public:
  explicit StricterUmask(mode_t withheld) : before_(::umask(0777)) { ::umask(before_ | withheld); }
  StricterUmask(const StricterUmask&) = delete;
  StricterUmask& operator=(const StricterUmask&) = delete;
  ~StricterUmask() { ::umask(before_); }

 private:
  mode_t before_;
};

// Returns the rights that a copy of the file must not give.
mode_t withheld_from_copies(const InputFile& source, const fs::path& copy) {
  struct stat status;
  if (::fstat(source.descriptor(), &status) != 0) {
    throw std::runtime_error("cannot read '" + source.path().string() + "': " + std::generic_category().message(errno));
  }
  Readers readers;
  readers.limit(status, S_IRGRP, S_IROTH);
  // The owner may write to it, as to everything that this process makes.
  return (0666 & ~status.st_mode & ~static_cast<mode_t>(S_IWUSR)) | readers.withheld(group_of(copy));
}

}  // namespace

void keep_as_private_as(const std::vector<fs::path>& sources, const fs::path& output) {
  Readers readers;
  for (const fs::path& given : sources) {
    const fs::path source = given == "-" ? fs::path("/dev/stdin") : given;  // may be redirected from a file
    readers.limit_by(source);
    std::error_code no_folder;
    for (fs::directory_iterator entry(source, no_folder), end; !no_folder && entry != end; entry.increment(no_folder)) {
      const std::string extension = entry->path().extension().string();
      if (std::find(kRead.begin(), kRead.end(), extension) != kRead.end()) readers.limit_by(entry->path());
    }
  }
  ::umask(::umask(0777) | readers.withheld(group_of(output)));
}

void copy_privately(const InputFile& source, const fs::path& copy) {
  const StricterUmask umask(withheld_from_copies(source, copy));
  write_file_atomically(copy, [&source](const ByteSink& sink) { read_in_pieces(source, sink); });
}

void write_privately(const InputFile& source, const fs::path& path, std::string_view text) {
  const StricterUmask umask(withheld_from_copies(source, path));
  write_file_atomically(path, text);
}

}  // namespace pare::runtime
