// The names of what a model can be written as in a folder of weights for other engines.
#pragma once

#include <span>
#include <string_view>

#include "runtime/format/container_format.h"

namespace pare::runtime {

struct FolderFormat {
  std::string_view name;             // of `pare export --format`: "awq-gemm"
  std::string_view container;        // ContainerFormat::name(); "": dense weights
  const WeightCode* code = nullptr;  // that every compressed layer gets; null: that of its own
};

// compressed-tensors, gptq, gptq-v2, awq-gemm, bitsandbytes, nvfp4, mxfp4, dense: in the order of the help.
std::span<const FolderFormat> folder_formats();
// Null for another name.
const FolderFormat* find_folder_format(std::string_view name);

// Tells whether the format holds the codes of a linear that a checkpoint stores so. Dense weights hold what codes stand
// for, and round no input. Where the format is a container, that one says it (ContainerFormat::accepts).
Acceptance holds_codes(const FolderFormat& format, const PackScheme& scheme);

}  // namespace pare::runtime
