// One block through a recipe's steps, stage by stage: each step's pass changes the stage's layers, scales that it asks
// for are folded into what produces the input, and the results take the place of the block's weights.
#pragma once

#include <string>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/passes/stage_state.h"
#include "compress/walk/block.h"
#include "compress/walk/model_walk.h"

namespace pare {

struct CompressedLayer {
  StoredLinear stored;
  LayerRecord record;       // its sha256 is taken when the weight is committed: later folds may change the scales
  at::Tensor kept_OI = {};  // of a pruned layer that is to be trained: bool, what the mask keeps
};

// A stage of an expert that saw fewer tokens than its input is wide.
struct StarvedExpert {
  int64_t expert = 0;
  int64_t num_tokens = 0;
  int64_t width = 0;
  size_t first_layer = 0;  // of the stage, among BlockWork::layers
};

// A block at work, and what it has come to so far.
struct BlockWork {
  Block& block;
  std::vector<CompressedLayer> layers = {};
  std::vector<OwnedTensor> changed = {};  // tensors of the source under their names, by folds and by passes
  std::vector<StarvedExpert> starved = {};
};

// The stage's compressed layers in front of the first step; weights are views of the block's, and zeros of the source
// that stay are pruned already.
StageState make_stage(const std::vector<const LayerPlan*>& layers, const Block& block, LayerStatistics statistics);

// Applies the steps of the layers in the recipe's order; training works on whole blocks and is left out. `fold` does
// what a pass asks of the input, and changes statistics and weights of the state accordingly. Throws what the passes
// throw.
using FoldScales = std::function<void(const InputScaling& scaling, StageState& state)>;
void apply_steps(StageState& state, const FoldScales& fold);

// Compresses the stage's layers on the statistics of its input and puts them into work.block. Where a step scales the
// input, it is divided in the block and in the walk first. Throws UnusableInput (a Hessian that is none) and what the
// passes throw.
void compress_stage(const RunPlan& plan, int64_t block_index, Stage stage, const Checkpoint& checkpoint,
                    LayerStatistics statistics, ModelWalk& walk, BlockWork& work);

// Makes one event of all starved experts, of the first layer that was calibrated on too few tokens.
void report_starved(const std::vector<LayerPlan>& layers, BlockWork& work);

// Commits the block's layers and changed tensors. Returns the records, complete with their hashes.
std::vector<LayerRecord> commit_layers(int64_t part, std::vector<CompressedLayer> layers,
                                       std::vector<OwnedTensor> changed, Artifact& artifact);

// What an earlier run has committed of a block, put in place of its weights, norms and inputs.
void restore_block(const std::vector<LayerPlan>& layers, int64_t part, const Artifact& artifact,
                   const Checkpoint& checkpoint, Block& block);

// The artifact's part of embedding and head, and that of a block.
constexpr int64_t kTablesPart = 0;
inline int64_t part_of_block(int64_t block) {
  return block + 1;
}

// That what is committed is about layers of the plan, each once, in its part and with its shape: a record is a file
// that anyone may have written. Throws std::runtime_error (file, expected, found).
void check_committed(const RunPlan& plan, const Artifact& artifact);

// What an earlier run has left to do.
struct RemainingBlocks {
  std::vector<bool> is_done;  // committed, or without a layer that is compressed
  int64_t last = 0;           // nothing is left from this block on
  int64_t num_committed = 0;
};
RemainingBlocks remaining_blocks(const RunPlan& plan, const Artifact& artifact);

}  // namespace pare
