// What a run will do to each layer and how the result will be stored: decided, and refused where it cannot be, before
// any work.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "runtime/format/container_format.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/stage.h"

namespace pare {

// What happens to one linear, and the form in which the result is stored.
struct LayerPlan {
  LinearDescription linear;
  Stage stage = Stage::attention_input;
  size_t index = 0;              // among the stage's layers
  std::vector<Step> steps = {};  // in order; none: the layer is left alone
  PackScheme scheme = {};        // of what the steps make; its container holds it
  // The zeros of the source's weight stay, in that pattern (dense: unstructured); nullopt: it has none to keep.
  std::optional<SparsePattern> kept_zeros = {};

  bool is_compressed() const { return !steps.empty(); }
  // The step of that kind, or null.
  const PassOptions* step(PassKind kind) const;
  // How the layer's input will be rounded; plain where no step says.
  InputFormat input() const;
  // How the layer is fitted to the original model, for any of its passes; null where it is not, as where one of them
  // says so. Experts are not: which tokens reach one depends on the model, so that there is nothing to compare.
  const FitOptions* fit() const;
  bool is_reconstructed() const { return step(PassKind::reconstructs) != nullptr; }
  StatisticsNeed need() const;
};

struct TablePlan {
  LinearDescription linear;
  bool is_linear = true;  // false: the embedding
  GridOptions grid;
  PackScheme scheme = {};  // how it is stored
};

struct RunPlan {
  std::vector<std::vector<LayerPlan>> blocks;
  std::vector<TablePlan> tables;  // embedding and untied head, when the recipe quantizes them
  bool needs_calibration = false;
  bool takes_all_statistics = false;     // of every stage, whatever its layers need
  std::vector<std::string> unquantized;  // linears that the artifact's config lists as left alone
  std::vector<std::string> events = {};  // what the recipe asks for in vain, in words

  StatisticsNeed need(int64_t block, Stage stage) const;
  int64_t num_layers() const;  // that are compressed in blocks
  bool fits() const;           // any layer to the original model
  bool asks_to_fit() const;    // where the recipe says so itself
  bool walks_before() const;   // over all blocks, before any is compressed
  bool rounds_inputs() const;  // of any layer
  // The options by which a block's layers are trained together, null where none is; whether any block's are.
  const PassOptions* reconstruction(int64_t block) const;
  bool reconstructs() const;
  // Whether the walk carries the original model's states as well.
  bool carries_original() const { return fits() || reconstructs(); }
  // The layers of a stage that are compressed.
  std::vector<const LayerPlan*> stage_layers(int64_t block, Stage stage) const;
};

// The linears of a decoder's or an encoder's block, in the order of its stages, with nothing planned yet.
template <typename Block>
std::vector<LayerPlan> block_layers(const Block& block, std::span<const Stage> stages) {
  std::vector<LayerPlan> layers;
  for (const Stage stage : stages) {
    const std::vector<LinearDescription> linears = stage_layers(block, stage);
    for (size_t index = 0; index < linears.size(); ++index) {
      layers.push_back({.linear = linears[index], .stage = stage, .index = index});
    }
  }
  return layers;
}

// Takes fitting from layers whose recipe does not ask for it itself.
void leave_out_default_fit(RunPlan& plan);

// What a decoder's run does. Throws std::invalid_argument, before any work, for whatever cannot be done: a source that
// is quantized already, options that do not fit a layer, what the container cannot hold, linears that read one input
// and ask for different formats of it, patterns that match no layer, calibration data that are needed but not given,
// evaluations of encoders, nothing to do, nothing to train; of a mixture of experts also a budget, and scales for what
// its router reads.
RunPlan plan_decoder(const Recipe& recipe, const Checkpoint& checkpoint);
// The same of an encoder. Also refused is what has no meaning for one, or no exact one: scaling passes (a norm's output
// feeds the residual sum as well as the next linears), fitting to the original, reconstruction, head, budget,
// sensitivity, perplexity, instructions, statistics files.
RunPlan plan_encoder(const Recipe& recipe, const Checkpoint& checkpoint);

// What pare calibrate does: every layer of every block is there and needs all statistics; nothing is compressed.
RunPlan plan_statistics(const ModelDescription& model);

// The layer's scheme follows from its steps and the container that they or the recipe name. To be called again when
// a step's options change.
void plan_storage(const std::string& container, LayerPlan& layer);

// Throws std::invalid_argument for a source that is quantized already.
void check_not_quantized(const Checkpoint& checkpoint);

}  // namespace pare
