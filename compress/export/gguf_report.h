// What is said of a GGUF file that was written: by `pare export`, and by a run whose recipe asks for one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/commands/inspect.h"
#include "runtime/export/export_gguf.h"

namespace pare::compress {

// Returns a line for each type and way of its tensors, and a JSON object of every tensor.
std::vector<std::string> gguf_lines(const runtime::GgufExport& result);
std::string gguf_json(const runtime::GgufExport& result, const runtime::GgufFormat& format);
// Returns the sizes of the matrices. Those of blocks are linears, but for routers.
runtime::WeightSizes gguf_sizes(const runtime::GgufExport& result);

// Returns the licences that the model's card names, as the package gguf writes them; "" without any. What keeps the
// card from being read becomes a note.
std::string licences_of(const std::filesystem::path& directory, std::vector<std::string>& notes);

}  // namespace pare::compress
