// What a run will do to each layer, and who will be able to load the result: decided before any work.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "compress/walk/calibration.h"
#include "compress/walk/decoder_block.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/model/checkpoint.h"

namespace pare {

struct PlannedLayer {
  LinearDescription linear;
  Stage stage = Stage::attention_input;
  size_t index = 0;                     // among the stage's layers
  std::optional<LayerOptions> options;  // nothing: left alone
  PackScheme scheme = {};               // how the result will be stored
};

struct PlannedTable {
  LinearDescription linear;
  bool is_linear = true;  // false: the embedding
  GridOptions grid;
};

struct PlannedRun {
  std::vector<std::vector<PlannedLayer>> blocks;
  std::vector<PlannedTable> tables;  // embedding and untied head, when the recipe quantizes them
  std::optional<std::variant<AwqOptions, SmoothQuantOptions>> scaling;
  std::vector<std::vector<bool>> scaled;  // by block and stage (block_stages): whether its input is scaled
  Container container = Container::compressed_tensors;
  bool needs_calibration = false;
  std::vector<std::string> unquantized;  // linears that the artifact's config lists as left alone

  StatisticsNeed need(int64_t block, Stage stage) const;
  bool is_scaled(int64_t block, Stage stage) const;
  int64_t num_layers() const;  // that are compressed in blocks
};

StatisticsNeed statistics_need(const LayerOptions& options);
// Whether that must be there: statistics that only add a report are taken where there are data for them.
bool needs_calibration(const LayerOptions& options, bool has_calibration);
// Throws std::invalid_argument for a pattern of the recipe's passes that matches none of the names.
void check_patterns(const Recipe& recipe, const std::vector<std::string>& names);
// How what the options make is stored.
PackScheme storage_scheme(const LayerOptions& options, Container container);

// The linears of a decoder's or an encoder's block, in the order of its stages, with nothing planned yet.
template <typename Block>
std::vector<PlannedLayer> block_layers(const Block& block, std::span<const Stage> stages) {
  std::vector<PlannedLayer> layers;
  for (const Stage stage : stages) {
    const std::vector<LinearDescription> linears = stage_layers(block, stage);
    for (size_t index = 0; index < linears.size(); ++index) layers.push_back({linears[index], stage, index, {}, {}});
  }
  return layers;
}

// Appends a block to the plan: what the recipe does to its layers. `model_dtype` is what the model is stored in.
// Throws std::invalid_argument: a group size that does not divide, what the container cannot hold, linears that read
// one input and ask for different formats of it.
void plan_block(const Recipe& recipe, DType model_dtype, std::vector<PlannedLayer> layers, PlannedRun& plan);
// Throws std::invalid_argument for passes that need calibration data of which the recipe names none.
void check_calibration(const Recipe& recipe, const PlannedRun& plan);

// Throws std::invalid_argument for a source that is quantized already.
void check_not_quantized(const Checkpoint& checkpoint);

// Throws std::invalid_argument: a source that is quantized already, a group size that does not divide, a pattern of
// the recipe that matches no layer, calibration data that are needed but not given, nothing to do; of a mixture of
// experts also a budget, and scales for what its router reads.
PlannedRun plan_run(const Recipe& recipe, const Checkpoint& checkpoint);

struct EngineVerdict {
  std::string engine;
  bool loads = true;
  std::vector<std::string> reasons;  // why not, or with what restriction
};

// What pare calibrate does: every layer of every block is there and needs all statistics; nothing is compressed.
PlannedRun calibration_plan(const ModelDescription& model);

// Who loads the artifact that the plan makes: this runtime, transformers, vLLM and llama.cpp's converter. The rules are
// those of the releases named in preflight.cpp.
std::vector<EngineVerdict> judge_engines(const PlannedRun& plan, const ModelDescription& model);

}  // namespace pare
