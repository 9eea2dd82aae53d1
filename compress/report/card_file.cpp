#include "compress/report/card_file.h"

#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "compress/recipe/hub_name.h"
#include "compress/report/model_card.h"
#include "compress/report/source_card.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/small_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/private_files.h"
#include "runtime/system/sealed_json.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A README.md that is neither what the run has listed nor what will be written is somebody's work.
void refuse_changed_card(const fs::path& card, const Json& outputs, const std::string& text) {
  if (!runtime::is_there(card)) return;
  const std::string hash = runtime::sha256_file(card);
  const bool is_listed = outputs.contains(kCardName) && outputs[kCardName] == hash;
  if (is_listed || hash == runtime::sha256_hex(std::as_bytes(std::span(text)))) return;
  throw std::runtime_error("'" + card.string() +
                           "' is not what pare.json lists: it was changed or added by hand and is not replaced; move "
                           "it away, or leave '--write' out to print the card");
}

void replace_card(const fs::path& directory, const std::string& text, Json manifest) {
  Json& outputs = manifest.at("outputs");
  refuse_changed_card(directory / kCardName, outputs, text);
  std::map<std::string, std::string> hashes;  // in the order that a run lists them in
  for (const auto& [name, hash] : outputs.items()) hashes[name] = hash.get<std::string>();
  const std::string kept = is_own_card(directory, kCardName) ? "" : keep_source_card(directory);
  write_card(directory, text);
  hashes[kCardName] = runtime::sha256_file(directory / kCardName);
  // The source's card has another name from now on.
  if (!kept.empty()) hashes[kept] = runtime::sha256_file(directory / kept);
  outputs = hashes;
  const std::string config = runtime::is_there(directory / "config.json") ? "config.json" : described_by(directory);
  runtime::write_privately(runtime::open_small_file(directory, config), directory / runtime::kManifestName,
                           runtime::seal_json(runtime::json_text(manifest, 2) + "\n"));
}

}  // namespace

std::string make_card(const fs::path& directory, const CardRequest& request) {
  if (!request.base_model.empty() && !is_hub_name(request.base_model)) {
    throw std::invalid_argument("expected the base model's name on the Hugging Face Hub, such as ORG/NAME, found '" +
                                request.base_model + "'");
  }
  const fs::path path = directory / runtime::kManifestName;
  if (!runtime::is_there(path)) {
    throw std::invalid_argument("'" + directory.string() +
                                "' has no pare.json: expected a model that 'pare run' or 'pare export' has made");
  }
  const std::string stored = runtime::read_text_file(path);
  if (runtime::check_seal(stored) == runtime::Seal::broken) {
    throw std::runtime_error("'" + path.string() + "' is damaged: it is not what its checksum was taken of");
  }
  Json manifest = runtime::parse_ordered_json(stored, path.string());
  manifest.erase("sha256");
  if (!request.base_model.empty()) manifest["base_model"] = request.base_model;
  const std::string text = card_of_folder(directory, runtime::json_text(manifest));
  if (request.write) replace_card(directory, text, std::move(manifest));
  return text;
}

}  // namespace pare::compress
