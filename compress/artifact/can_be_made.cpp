#include "compress/artifact/can_be_made.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

#include "runtime/system/partial_output.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

std::string error_text(int error) {
  return std::generic_category().message(error);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Returns 0 if something can be made in the folder, or the error of trying it. It tries with a file that never has a
// name. Where the file system has no such files, it tries with a folder that it removes at once.
int error_of_making_in(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (descriptor >= 0) {
    ::close(descriptor);
    return 0;
  }
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT) return errno;
  std::string name = (folder / ".pare-can-write-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return errno;
  ::rmdir(name.c_str());
  return 0;
}

}  // namespace

void check_can_be_made(const fs::path& output) {
  const fs::path place = runtime::output_place(output), partial = runtime::PartialOutput::folder_of(output);
  const auto refuse = [&](const fs::path& folder, const std::string& why) {
    throw std::runtime_error("output '" + output.string() + "' cannot be made: '" + folder.string() + "': " + why +
                             "; choose another output");
  };
  const auto is_made = [](const fs::path& path) {
    std::error_code too_long;
    return fs::exists(path, too_long);
  };
  fs::path folder = parent_of(place);
  while (!is_made(folder)) folder = parent_of(folder);
  const int64_t most_bytes = ::pathconf(folder.c_str(), _PC_NAME_MAX);
  for (fs::path made = partial; made != folder && !is_made(made); made = parent_of(made)) {
    const auto num_bytes = static_cast<int64_t>(made.filename().string().size());
    if (most_bytes > 0 && num_bytes > most_bytes) {
      refuse(made, "a name of " + std::to_string(num_bytes) + " bytes; expected at most " + std::to_string(most_bytes));
    }
  }
  if (const int error = error_of_making_in(folder); error != 0) refuse(folder, error_text(error));
  // A run goes on with what an earlier run has left there.
  if (!fs::is_directory(partial)) return;
  if (const int error = error_of_making_in(partial); error != 0) refuse(partial, error_text(error));
}

}  // namespace pare::compress
