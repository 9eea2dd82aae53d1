// Checks before hours of work that an output can be made at all.
#pragma once

#include <filesystem>

namespace pare::compress {

// Throws std::runtime_error (the output, the folder, the reason) unless OUTPUT could be made, with OUTPUT.partial
// beside it (runtime/system/partial_output.h). It is called before any work, and by commands that only plan it. Where
// the file system allows it, nothing with a name is made for this.
void check_can_be_made(const std::filesystem::path& output);

}  // namespace pare::compress
