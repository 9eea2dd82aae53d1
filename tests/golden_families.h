// The tiny checkpoints of every family with transformers' logits (tests/golden/make_families.py).
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/places.h"

namespace pare {

inline std::filesystem::path golden_family(const std::string& name) {
  return std::filesystem::path(kSourceFolder) / "tests/golden/families" / name;
}

// Returns their names, in order.
inline std::vector<std::string> golden_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_family(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the names of those without experts.
inline std::vector<std::string> dense_golden_families() {
  std::vector<std::string> names = golden_families();
  std::erase_if(names,
                [](const std::string& name) { return name.find("mixtral") == 0 || name.find("moe") != name.npos; });
  return names;
}

}  // namespace pare
