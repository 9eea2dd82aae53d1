// "Did you mean ...?": finds the allowed name that is closest to a wrong one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pare::runtime {

// Returns the number of single-character insertions, deletions, substitutions and swaps of neighbours (optimal string
// alignment) that turn one word into the other.
int edit_distance(std::string_view from, std::string_view to);

// Returns the candidate with the smallest distance (the first among equals). Returns nothing if even that one has less
// than half of its letters in common with the word.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates);

// Returns " (did you mean 'x'?)" or an empty string, to append to a message.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix = "");

}  // namespace pare::runtime
