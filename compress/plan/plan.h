// Decides before any work what a run will do to each layer and how the result will be stored. Whatever cannot be done
// is refused.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "runtime/format/container_format.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/stage.h"

namespace pare::compress {

// The steps of one linear, and the form in which the result is stored.
struct LayerPlan {
  runtime::LinearDescription linear;
  runtime::Stage stage = runtime::Stage::attention_input;
  size_t index = 0;                 // among the stage's layers
  std::vector<Step> steps = {};     // in order; none: the layer is left alone
  runtime::PackScheme scheme = {};  // the form of the result; its container holds it
  bool is_taken_over = false;       // the result holds codes of the source (export), and no step makes them
  // The pattern of the source's zeros, which stay (dense: unstructured). nullopt: the source has no zeros to keep.
  std::optional<runtime::SparsePattern> kept_zeros = {};

  bool is_compressed() const { return !steps.empty(); }
  // Return the step of that kind, and its options, or null.
  const Step* find_step(PassKind kind) const;
  const PassOptions* step(PassKind kind) const;
  // Returns how the layer's input will be rounded. It is plain where no step rounds it.
  runtime::InputFormat input() const;
  // Returns how the layer is fitted to the original model, for any of its passes. It is null where the layer is not
  // fitted, also where one of its passes says so. Experts are not fitted: which tokens reach one depends on the model,
  // so there is nothing to compare.
  const quant::FitOptions* fit() const;
  // True if the weight stays as it is, and only small inputs are dropped.
  bool only_drops_inputs() const;
  bool is_reconstructed() const { return step(PassKind::reconstructs) != nullptr; }
  StatisticsNeed need() const;
};

struct TablePlan {
  runtime::LinearDescription linear;
  bool is_linear = true;  // false: the embedding
  quant::GridOptions grid;
  runtime::PackScheme scheme = {};  // the scheme in which it is stored
};

struct RunPlan {
  std::vector<std::vector<LayerPlan>> blocks;
  std::vector<TablePlan> tables;  // embedding and untied head, when the recipe quantizes them
  bool needs_calibration = false;
  bool takes_all_statistics = false;     // the statistics of every stage, whatever its layers need
  std::vector<std::string> unquantized;  // linears that the artifact's config lists as left alone
  std::vector<std::string> events = {};  // requests of the recipe that have no effect, as sentences
  // The bytes that the recipe's budget leaves for the blocks' linears (compress/survey/budget.h), where it has one.
  std::optional<int64_t> budget_bytes = {};

  StatisticsNeed need(int64_t block, runtime::Stage stage) const;
  int64_t num_layers() const;  // layers in blocks that are compressed
  bool fits() const;           // true if any layer is fitted to the original model
  bool asks_to_fit() const;    // true if the recipe itself asks for it
  bool walks_before() const;   // true if a pass walks over all blocks before any is compressed
  bool rounds_inputs() const;  // true if any layer's input is rounded
  // Return the options by which a block's layers are trained together, or null where none is; and whether any block is.
  const ReconstructOptions* reconstruction(int64_t block) const;
  bool reconstructs() const;
  // Returns whether the walk carries the original model's states as well.
  bool carries_original() const { return fits() || reconstructs(); }
  // Returns the layers of a stage that are compressed.
  std::vector<const LayerPlan*> stage_layers(int64_t block, runtime::Stage stage) const;
};

// Returns the linears of a decoder's or an encoder's block, in the order of its stages, with nothing planned yet.
template <typename Block>
std::vector<LayerPlan> block_layers(const Block& block, std::span<const runtime::Stage> stages) {
  std::vector<LayerPlan> layers;
  for (const runtime::Stage stage : stages) {
    const std::vector<runtime::LinearDescription> linears = stage_layers(block, stage);
    for (size_t index = 0; index < linears.size(); ++index) {
      layers.push_back({.linear = linears[index], .stage = stage, .index = index});
    }
  }
  return layers;
}

// Removes the fit from layers where only a default and not the recipe asks for it.
void leave_out_default_fit(RunPlan& plan);

// Plans a decoder's run. Throws std::invalid_argument, before any work, for whatever cannot be done:
// - a source that is quantized already
// - options that do not fit a layer, and what the container cannot hold
// - linears that read one input and ask for different formats of it
// - patterns that match no layer
// - calibration data that are needed but not given
// - evaluations of the other kind of model
// - nothing to do, and nothing to train
// - for a mixture of experts, a budget, and scales for an input that its router reads.
RunPlan plan_decoder(const Recipe& recipe, const runtime::Checkpoint& checkpoint);
// Plans an encoder's run. It also refuses what has no meaning, or no exact one, for an encoder. These are scaling
// passes (a norm's output feeds the residual sum as well as the next linears), fitting to the original and
// reconstruction. They are also head, budget, sensitivity and statistics files.
RunPlan plan_encoder(const Recipe& recipe, const runtime::Checkpoint& checkpoint);

// Plans pare calibrate: every layer of every block is there and needs all statistics; nothing is compressed.
RunPlan plan_statistics(const runtime::ModelDescription& model);

// Sets the layer's scheme, which follows from its steps and the container that they or the recipe name. It must be
// called again when a step's options change.
void plan_storage(const std::string& container, LayerPlan& layer);

// Throws std::invalid_argument for a source that is quantized already, or that drops small inputs.
void check_not_quantized(const runtime::Checkpoint& checkpoint);

}  // namespace pare::compress
