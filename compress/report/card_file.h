// `pare card`: the model card of an artifact that is there already.
#pragma once

#include <filesystem>
#include <string>

namespace pare::compress {

struct CardRequest {
  std::string base_model;  // ORG/NAME, in place of what pare.json says; empty: that
  bool write = false;      // the card becomes README.md, and pare.json lists it
};

// Returns the card of the artifact in `directory`. With `write` it replaces README.md, and its entry in pare.json; a
// README.md of the source becomes README.source.md. Throws std::invalid_argument for a base model that is no
// name of the Hub's and for a folder without pare.json, std::runtime_error for a pare.json that is damaged, and for a
// README.md that somebody has changed, which is not replaced.
std::string make_card(const std::filesystem::path& directory, const CardRequest& request);

}  // namespace pare::compress
