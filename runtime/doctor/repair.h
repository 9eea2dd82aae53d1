// Writes a repaired copy of a checkpoint: its files, with the changes that the findings know.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/doctor/examine.h"

namespace pare::runtime {

// Returns the findings that a copy mends.
std::vector<const Finding*> repairable(const Examination& examination);

// Throws std::runtime_error if a copy cannot be made, because config.json or a file of weights is missing or damaged.
void require_repairable(const Examination& examination);

// Writes config.json, the files of weights with their index, and other files that a repair changes into `output`, an
// empty folder. Files keep their names, and tensors their bytes but for what the repairs change. Small files that no
// repair changes are the caller's to copy. Throws what require_repairable throws, std::runtime_error for files that
// cannot be written or that have changed since, and Interrupted. `progress` (tensors done, tensors) may be empty.
void write_repaired(const Examination& examination, const std::filesystem::path& output,
                    const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace pare::runtime
