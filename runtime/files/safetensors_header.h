// The header of a safetensors file alone, for models whose weights are not there yet.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/files/safetensors.h"

namespace pare::runtime {

// Writes what write_safetensors writes, but a hole in place of the tensors' bytes: it reads as zeros and takes no disk.
// Nothing is produced. Throws what write_safetensors throws.
void write_safetensors_header(const std::filesystem::path& path, std::vector<StreamedTensor> tensors);

}  // namespace pare::runtime
