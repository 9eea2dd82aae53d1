// One block through the passes, stage by stage: scaling of the stage's input, rounding and refinement of its layers.
#pragma once

#include <vector>

#include "compress/artifact.h"
#include "compress/block_walk.h"
#include "compress/compress_layer.h"
#include "compress/fold.h"

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

// What an earlier run has committed of a block, put in place of its weights and norms.
void restore_block(const std::vector<PlannedLayer>& layers, int64_t part, const Artifact& artifact,
                   const Checkpoint& checkpoint, DecoderBlock& block);

}  // namespace pare
