// The files that a recipe names to be read.
#pragma once

#include <filesystem>
#include <vector>

#include "compress/recipe/recipe.h"

namespace pare::compress {

// Texts, token windows, statistics, instructions and pairs, but for those of items 'distill'.
std::vector<std::filesystem::path> data_files(const Recipe& recipe);

// All that its outputs come from: those, the recipe itself, `model` (which may be another than the recipe's), and the
// models, texts and logits of items 'distill'. Models and logits may be folders.
std::vector<std::filesystem::path> all_inputs(const Recipe& recipe, const std::filesystem::path& model);

}  // namespace pare::compress
