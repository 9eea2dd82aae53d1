// Whether an output can be made at all, which is worth knowing before hours of work.
#pragma once

#include <filesystem>

namespace pare {

// To be asked before any work, and by who only plans it: whether OUTPUT could be made, and OUTPUT.partial beside it
// (runtime/system/partial_output.h). Nothing that has a name is made for it, where the file system can do without. Throws
// std::runtime_error (the output, the folder, the reason).
void check_can_be_made(const std::filesystem::path& output);

}  // namespace pare
