// What a run will do to each layer, and who will be able to load the result: decided before any work.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compress/calibration.h"
#include "compress/decoder_block.h"
#include "compress/recipe.h"
#include "runtime/checkpoint.h"
#include "runtime/format/compressed_tensors.h"

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
// Throws std::invalid_argument when linears of one block that read one input ask for different formats of it.
void check_inputs_agree(const std::vector<PlannedLayer>& layers);
// How what the options make is stored.
PackScheme storage_scheme(const LayerOptions& options, Container container);

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
