#include "compress/recipe/hub_name.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/commands/artifact_files.h"

namespace pare::compress {
namespace {

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_part(std::string_view part) {
  constexpr size_t kMostCharacters = 96;  // the Hub's own limit
  return !part.empty() && part.size() <= kMostCharacters && is_letter_or_digit(part.front()) &&
         std::ranges::all_of(part, [](char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

bool is_hub_name(std::string_view name) {
  const size_t slash = name.find('/');
  return slash != std::string_view::npos && is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

std::string name_in_hub_cache(const std::filesystem::path& model) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(model, error);
  if (error || folder.parent_path().filename() != "snapshots") return {};
  constexpr std::string_view kBeginning = "models--", kBetween = "--";
  const std::string cached = folder.parent_path().parent_path().filename().string();
  if (!cached.starts_with(kBeginning)) return {};
  std::string name = cached.substr(kBeginning.size());
  const size_t between = name.find(kBetween);
  if (between == std::string::npos) return {};
  name.replace(between, kBetween.size(), "/");
  return is_hub_name(name) ? name : std::string();
}

std::string known_hub_name(const std::filesystem::path& model) {
  if (std::string name = name_in_hub_cache(model); !name.empty()) return name;
  if (!std::filesystem::is_directory(model)) return {};
  const nlohmann::json name = runtime::manifest_member(model, "base_model");
  return name.is_string() && is_hub_name(name.get<std::string>()) ? name.get<std::string>() : std::string();
}

}  // namespace pare::compress
