#include "runtime/commands/verify.h"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/layer_sparsity.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

Verification verify(const std::filesystem::path& directory, const std::function<void(int64_t, int64_t)>& progress) {
  if (!std::filesystem::is_directory(directory)) read_config(directory);  // says what is there instead
  Verification result;
  FileCheck files = check_files(directory, WhichFiles::all, progress);
  result.has_manifest = files.has_manifest;
  result.num_files = files.num_files;
  result.problems = std::move(files.problems);
  result.unchecked = std::move(files.unchecked);

  int64_t num_done = 0, num_items = 0;
  const auto step = [&] {
    throw_if_interrupted();
    if (progress) progress(++num_done, num_items);
  };
  // One item's failure is a problem to list; the others are still checked.
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

  std::optional<ModelDirectory> opened;  // of a folder with a .gguf, what that says
  std::optional<Checkpoint> checkpoint;
  const auto open = [&] {
    opened.emplace(directory);
    checkpoint.emplace(Checkpoint::open(opened->path()));
  };
  if (!attempt(open)) return result;
  std::vector<LinearDescription> linears = stored_linears(*checkpoint);
  std::vector<std::function<void()>> norms;  // each reads one
  if (checkpoint->is_encoder()) {
    const EncoderDescription& model = checkpoint->encoder();
    const std::vector<LinearDescription> tables = embedding_tables(model);
    linears.insert(linears.end(), tables.begin(), tables.end());
    for (const LayerNormDescription& norm : all_norms(model))
      norms.push_back([&, norm] { checkpoint->layer_norm(norm); });
    norms.push_back([&] { checkpoint->distance_scores(); });
  } else {
    for (const NormDescription& norm : all_norms(checkpoint->description())) {
      norms.push_back([&, norm] {
        checkpoint->norm_gain(norm);
        checkpoint->norm_bias(norm);
      });
    }
  }
  num_items = static_cast<int64_t>(linears.size() + norms.size());
  if (progress) progress(0, num_items);
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
  if (is_there(opened->path() / "tokenizer.json")) attempt([&] { Tokenizer::open(opened->path()); });
  return result;
}

std::string to_json(const Verification& verification) {
  nlohmann::ordered_json json;
  json["ok"] = verification.problems.empty();
  json["manifest"] = verification.has_manifest;
  json["files"] = verification.num_files;
  json["linears"] = verification.num_linears;
  json["problems"] = verification.problems;
  json["unchecked"] = verification.unchecked;
  return json_text(json);
}

}  // namespace pare::runtime
