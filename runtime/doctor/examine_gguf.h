// Illnesses of a .gguf file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "runtime/doctor/finding.h"

namespace pare::runtime {

// Decodes every tensor, and looks at the metadata beside them. Returns the number of tensors. `progress` may be empty.
// Throws std::runtime_error for a path that is no file, and Interrupted.
int64_t examine_gguf(const std::filesystem::path& path, std::vector<Finding>& findings,
                     const std::function<void(int64_t, int64_t)>& progress);

}  // namespace pare::runtime
