// The names that models have on the Hugging Face Hub: "ORG/NAME".
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pare::compress {

// Returns whether the text may be such a name: two parts of at most 96 letters, digits, '-', '_' and '.', each of which
// begins with a letter or digit.
bool is_hub_name(std::string_view name);

// Returns the name of a model whose folder is that of a hub's cache, models--ORG--NAME/snapshots/REV, after links are
// followed; else "". Throws nothing for paths that do not exist.
std::string name_in_hub_cache(const std::filesystem::path& model);

// Returns the name that a hub's cache gives the model's folder, or else the pare.json in it; "" where neither does.
std::string known_hub_name(const std::filesystem::path& model);

}  // namespace pare::compress
