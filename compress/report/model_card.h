// The model card of an artifact: README.md, as the Hugging Face Hub shows it. Its figures come from pare.json alone, so
// the same artifact always has the same card.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "compress/report/source_card.h"

namespace pare::compress {

struct CardInputs {
  std::string manifest;       // pare.json, with or without its checksum
  std::string config;         // config.json
  CardHead source;            // of the source's card
  std::string source_card;    // the name of that file in the artifact; empty: there is none
  std::string manifest_name;  // for messages
};

// Returns the card: a YAML head, and in Markdown what was done, sizes, what was measured, who loads the model and how,
// and what was not measured. What an older pare.json does not hold is left out. Names and texts are escaped. Throws
// std::runtime_error for a manifest or configuration that is not what pare writes.
std::string model_card(const CardInputs& inputs);

// Returns model_card of an artifact's folder, whose pare.json holds `manifest`.
std::string card_of_folder(const std::filesystem::path& artifact, const std::string& manifest);

// Returns the name of a file of the folder that says whose eyes the card is for: what stands in the card is from there.
std::string described_by(const std::filesystem::path& artifact);

// Writes it as README.md. Fields of the source's card are in it, so nobody may read it who may not read that.
void write_card(const std::filesystem::path& artifact, const std::string& card);

}  // namespace pare::compress
