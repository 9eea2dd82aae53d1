// Files that are read more than once, or mapped, and must be the same files with the same content all the while.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace pare {

// Whether a folder has an entry of that name, even a link that leads nowhere: a file that may be missing is looked for so,
// and one that was to be there is not taken for one that nobody wanted. (Its reader tells: kDanglingLink.)
bool is_there(const std::filesystem::path& path);
inline constexpr std::string_view kDanglingLink = "it is a link to a file that is not there: fetch the whole model";

class InputFiles {
 public:
  // Notes which file `path` is (device, inode), its size and its time of modification: to be called before the file is
  // read, so that a change between the two is found as well. What is missing or no regular file (a pipe) is not
  // noted: its reader says so.
  void add(const std::filesystem::path& path);

  // Looks at every noted file again; costs one stat each. Throws std::runtime_error naming the first that is gone, is
  // another file or was written to: "changed while it was read: 'PATH' ...".
  void check_unchanged() const;

 private:
  struct Entry {
    std::filesystem::path path;
    uint64_t device = 0, inode = 0;
    int64_t size_bytes = 0;
    int64_t modified_s = 0, modified_ns = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace pare
