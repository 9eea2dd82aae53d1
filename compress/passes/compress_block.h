// One block through the passes, stage by stage: scaling of the stage's input, rounding and refinement of its layers.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/passes/compress_layer.h"
#include "compress/passes/fold.h"
#include "compress/passes/resolve_input.h"
#include "compress/walk/block_walk.h"
#include "runtime/format/stored_linear.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare {

// A stage of an expert that saw fewer tokens than its input is wide.
struct StarvedExpert {
  int64_t expert = 0;
  int64_t num_tokens = 0;
  int64_t width = 0;
  size_t first_layer = 0;  // of the stage, among BlockWork::layers
};

// A block at work, and what it has come to so far.
struct BlockWork {
  DecoderBlock block;
  std::vector<CompressedLayer> layers;
  std::vector<OwnedTensor> changed;  // by folds
  std::vector<StarvedExpert> starved = {};
};

// The stage's layers that are compressed.
std::vector<const PlannedLayer*> compressed_layers(const std::vector<PlannedLayer>& layers, Stage stage);

// Compresses the layers of one stage on the statistics of its input, puts them into the block (a decoder's or an
// encoder's) and appends them to `done`; `scaling` says how the input was scaled. What the stage's layers share began
// at `start` and counts as the first one's time. Throws what the passes throw.
template <typename Block>
void compress_layers(const std::vector<const PlannedLayer*>& layers, const LayerStatistics& statistics,
                     const std::optional<GptqFactor>& factor, const std::string& scaling,
                     std::chrono::steady_clock::time_point start, Block& block, std::vector<CompressedLayer>& done) {
  const Stage stage = layers.front()->stage;
  // All layers of the stage agree in it (check_inputs_agree).
  const ResolvedInput input = resolve_input(*layers.front()->options, statistics);
  block.set_input_format(stage, input.format);
  for (const PlannedLayer* layer : layers) {
    throw_if_interrupted();
    CompressedLayer compressed =
        compress_layer(*layer, block.weight(stage, layer->index), statistics, factor, input.format);
    if (!layer->scheme.is_dense()) {
      block.set_weight(stage, layer->index, effective_weight(compressed.stored));
    }
    compressed.record.scaling = scaling;
    if (!input.event.empty()) compressed.record.events.push_back(input.event);
    compressed.record.seconds = seconds_since(start);
    done.push_back(std::move(compressed));
    start = std::chrono::steady_clock::now();
  }
}

// The layers that an earlier run has committed of a block, put in place of its own.
template <typename Block>
void restore_layers(const std::vector<PlannedLayer>& layers, int64_t part, const Artifact& artifact, Block& block) {
  for (const LayerRecord& record : *artifact.committed(part)) {
    const auto layer = std::find_if(layers.begin(), layers.end(),
                                    [&](const PlannedLayer& planned) { return planned.linear.name == record.name; });
    if (layer == layers.end()) continue;
    const StoredLinear stored = artifact.read_layer(part, record);
    if (!record.scheme.is_dense()) {
      block.set_weight(layer->stage, layer->index, effective_weight(stored));
    }
    block.set_input_format(layer->stage, stored.input);
  }
}

// Compresses the stage's layers on the statistics of its input and puts them into work.block. Where the plan scales
// the stage, its input is divided in the block and in the walk (null when the statistics come from a file) first. The
// factor of H is made once and shared.
// Throws UnusableInput (a Hessian that is none) and what the passes throw.
void compress_stage(const PlannedRun& plan, int64_t block_index, Stage stage, const Checkpoint& checkpoint,
                    LayerStatistics statistics, BlockWalk* walk, BlockWork& work);

// Makes one event of all starved experts, of the first layer that was calibrated on too few tokens.
void report_starved(BlockWork& work);

// Commits layers and changed tensors. Returns the records, complete with their hashes.
std::vector<LayerRecord> commit_layers(int64_t part, std::vector<CompressedLayer> layers,
                                       std::vector<OwnedTensor> changed, Artifact& artifact);
// Commits the block's layers and changed tensors. Returns the records, complete with their hashes.
std::vector<LayerRecord> commit_block(int64_t part, BlockWork work, Artifact& artifact);

// The artifact's part of embedding and head, and that of a block.
constexpr int64_t kTablesPart = 0;
inline int64_t part_of_block(int64_t block) {
  return block + 1;
}

// What an earlier run has left to do.
struct RemainingBlocks {
  std::vector<bool> is_done;  // committed, or without a layer that is compressed
  int64_t last = 0;           // nothing is left from this block on
  int64_t num_committed = 0;
};
RemainingBlocks remaining_blocks(const PlannedRun& plan, const Artifact& artifact);

// What an earlier run has committed of a block, put in place of its weights and norms.
void restore_block(const std::vector<PlannedLayer>& layers, int64_t part, const Artifact& artifact,
                   const Checkpoint& checkpoint, DecoderBlock& block);

}  // namespace pare
