#include "runtime/commands/verify.h"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/commands/layer_sparsity.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {
namespace {

constexpr const char* kManifest = "pare.json";

// File name -> SHA-256.
std::map<std::string, std::string> listed_outputs(const std::filesystem::path& manifest) {
  const nlohmann::json json = parse_json(read_text_file(manifest), manifest.string());
  if (!json.is_object() || !json.contains("outputs") || !json["outputs"].is_object()) {
    throw std::runtime_error(manifest.string() + R"(: expected a JSON object with "outputs": {"file": "sha256"})");
  }
  std::map<std::string, std::string> outputs;
  for (const auto& [name, digest] : json["outputs"].items()) {
    // A manifest speaks of its own folder only.
    const std::filesystem::path path(name);
    const bool leaves = path.is_absolute() || path.lexically_normal().string().starts_with("..");
    if (!digest.is_string() || leaves) {
      throw std::runtime_error(manifest.string() + ": outputs: '" + name +
                               "': expected a file of the folder and its SHA-256");
    }
    outputs[name] = digest.get<std::string>();
  }
  return outputs;
}

void check_digest(const std::filesystem::path& directory, const std::string& name, const std::string& expected,
                  std::vector<std::string>& problems) {
  if (!std::filesystem::is_regular_file(directory / name)) {
    problems.push_back((directory / name).string() + ": listed in pare.json, but missing");
    return;
  }
  const std::string found = sha256_file(directory / name);
  if (found != expected) {
    problems.push_back((directory / name).string() + ": SHA-256 " + found + ", pare.json has " + expected +
                       ": the file was changed or damaged after it was written");
  }
}

}  // namespace

Verification verify(const std::filesystem::path& directory, const std::function<void(int64_t, int64_t)>& progress) {
  if (!std::filesystem::is_directory(directory)) throw std::runtime_error(directory.string() + ": no such directory");
  Verification result;
  result.has_manifest = std::filesystem::exists(directory / kManifest);
  std::map<std::string, std::string> outputs;
  if (result.has_manifest) outputs = listed_outputs(directory / kManifest);

  int64_t num_done = 0;
  auto num_items = static_cast<int64_t>(outputs.size());
  const auto step = [&] {
    throw_if_interrupted();
    if (progress) progress(++num_done, num_items);
  };
  // One item's failure is a problem to list; the others are still looked at.
  const auto attempt = [&](const auto& check) {
    try {
      check();
      return true;
    } catch (const std::exception& error) {
      if (dynamic_cast<const std::runtime_error*>(&error) == nullptr &&
          dynamic_cast<const std::invalid_argument*>(&error) == nullptr) {
        throw;  // Interrupted, out of memory
      }
      result.problems.push_back(error.what());
      return false;
    }
  };

  for (const auto& [name, digest] : outputs) {
    attempt([&] { check_digest(directory, name, digest, result.problems); });
    ++result.num_files;
    step();
  }

  std::optional<Checkpoint> checkpoint;
  if (!attempt([&] { checkpoint.emplace(Checkpoint::open(directory)); })) return result;
  for (const std::filesystem::path& file : checkpoint->weight_files()) {
    const std::string name = file.filename().string();
    if (result.has_manifest && !outputs.contains(name)) {
      result.problems.push_back(file.string() + ": a weight file that pare.json does not list");
    }
  }
  std::vector<LinearDescription> linears;
  std::vector<std::function<void()>> norms;  // each reads one
  if (checkpoint->is_encoder()) {
    const EncoderDescription& model = checkpoint->encoder();
    linears = block_linears(model);
    linears.insert(linears.end(), {model.word_embedding, model.token_type_embedding, model.position_embedding});
    for (const LayerNormDescription& norm : all_norms(model))
      norms.push_back([&, norm] { checkpoint->layer_norm(norm); });
  } else {
    const ModelDescription& model = checkpoint->description();
    linears = block_linears(model);
    linears.push_back(checkpoint->embedding());
    if (!model.tied_head) linears.push_back(checkpoint->head());
    for (const NormDescription& norm : all_norms(model)) norms.push_back([&, norm] { checkpoint->norm_gain(norm); });
  }
  num_items += static_cast<int64_t>(linears.size() + norms.size());
  std::map<std::string, SparsityClaim> claims;
  attempt([&] { claims = sparsity_claims(*checkpoint); });
  for (const LinearDescription& linear : linears) {
    attempt([&] {
      const LinearWeights weights = checkpoint->linear(linear);
      const auto claim = claims.find(linear.name);
      if (claim == claims.end()) return;
      const LayerSparsity sparsity = layer_sparsity(weights, claim->second);
      if (!sparsity.problem.empty()) throw std::runtime_error(directory.string() + ": " + sparsity.problem);
    });
    checkpoint->drop_pages(linear);
    ++result.num_linears;
    step();
  }
  for (const auto& read_norm : norms) {
    attempt(read_norm);
    step();
  }
  if (std::filesystem::exists(directory / "tokenizer.json")) attempt([&] { Tokenizer::open(directory); });
  return result;
}

std::string to_json(const Verification& verification) {
  nlohmann::ordered_json json;
  json["ok"] = verification.problems.empty();
  json["manifest"] = verification.has_manifest;
  json["files"] = verification.num_files;
  json["linears"] = verification.num_linears;
  json["problems"] = verification.problems;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace pare
