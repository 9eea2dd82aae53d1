// The model card of a run's source: its README.md, which the result keeps beside its own card, and the fields of its
// YAML head that the result's card takes over. The file comes from anywhere.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pare::compress {

inline constexpr const char* kCardName = "README.md";
// Under this name a result has the source's own card, byte by byte.
inline constexpr const char* kSourceCardName = "README.source.md";
// Stands in every card of pare's.
inline constexpr std::string_view kCardMark = "<!-- written by pare; 'pare card' writes it anew from pare.json -->";

// The fields that are taken over, with their values: license, license_name, license_link, language, library_name,
// pipeline_tag, datasets, tags. All are one line of UTF-8 without control characters.
struct CardHead {
  std::vector<std::pair<std::string, std::vector<std::string>>> fields;
  std::vector<std::string> problems;  // what could not be read, as events

  // Returns the values of a field; none where it is not there.
  std::vector<std::string> values(std::string_view field) const;
};

// Reads the head: what stands between a first line "---" and the next one, within the first 64 KiB of `card`. A card
// without one has no fields. `name` stands in the problems. Values that are longer or more than a card needs are
// problems as well.
CardHead read_card_head(const std::string& card, const std::string& name);

// Returns the name, in a model's folder, of the card that a result made from it keeps; nothing where it has none. That
// is README.source.md if README.md is a card of pare's, else README.md. Only the beginning of files is read.
std::optional<std::string> source_card_name(const std::filesystem::path& directory);

// Returns what read_card_head finds in a file of a model's folder. It is opened as small_files.h says, and no more than
// the head is read.
CardHead card_head_of(const std::filesystem::path& directory, const std::string& name);

// Returns whether that file of a folder is a card of pare's; false where there is none.
bool is_own_card(const std::filesystem::path& directory, const std::string& name);

// In a new artifact's folder with the source's small files: gives README.md the name README.source.md, or the first of
// README.source.2.md, ... that is free, and returns that name. A card of pare's beside a README.source.md stays, to be
// replaced; then, and without a README.md, it returns "".
std::string keep_source_card(const std::filesystem::path& artifact);

}  // namespace pare::compress
