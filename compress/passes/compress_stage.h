// Takes one block through a recipe's steps, stage by stage. Each step's pass changes the stage's layers. Scales that it
// asks for are folded into what produces the input, and the results replace the block's weights.
#pragma once

#include <string>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/passes/stage_state.h"
#include "compress/walk/block.h"
#include "compress/walk/model_walk.h"

namespace pare::compress {

struct CompressedLayer {
  runtime::StoredLinear stored;
  LayerRecord record;       // its sha256 is set when the weight is committed: later folds may change the scales
  at::Tensor kept_OI = {};  // for a pruned layer that is to be trained: bool, true where the mask keeps a weight
};

// A stage of an expert that saw fewer tokens than its input is wide.
struct StarvedExpert {
  int64_t expert = 0;
  int64_t num_tokens = 0;
  int64_t width = 0;
  size_t first_layer = 0;  // the stage's first layer, among BlockWork::layers
};

// A block at work, with its results so far.
struct BlockWork {
  Block& block;
  std::vector<CompressedLayer> layers = {};
  std::vector<runtime::OwnedTensor> changed =
      {};  // tensors of the source that folds and passes have changed, under their names
  std::vector<StarvedExpert> starved = {};
};

// Returns the state of the stage's compressed layers before the first step. Weights are views of the block's. Zeros of
// the source that are to stay count as pruned.
StageState make_stage(const std::vector<const LayerPlan*>& layers, const Block& block, LayerStatistics statistics);

// Applies the steps of the layers in the recipe's order. Training works on whole blocks and is left out. `fold` applies
// the scaling that a pass asks for to the input, and changes statistics and weights of the state accordingly. Throws
// what the passes throw.
using FoldScales = std::function<void(const InputScaling& scaling, StageState& state)>;
void apply_steps(StageState& state, const FoldScales& fold);

// Compresses the stage's layers on the statistics of its input and puts them into work.block. Where a step scales the
// input, the input is divided in the block and in the walk first. Throws UnusableInput (for a matrix that is no
// Hessian) and what the passes throw.
void compress_stage(const RunPlan& plan, int64_t block_index, runtime::Stage stage,
                    const runtime::Checkpoint& checkpoint, LayerStatistics statistics, ModelWalk& walk,
                    BlockWork& work);

// Makes one event of all starved experts, in the record of the first layer that was calibrated on too few tokens.
void report_starved(const std::vector<LayerPlan>& layers, BlockWork& work);

// Commits the block's layers and changed tensors. Returns the records, complete with their hashes.
std::vector<LayerRecord> commit_layers(int64_t part, std::vector<CompressedLayer> layers,
                                       std::vector<runtime::OwnedTensor> changed, Artifact& artifact);

// Puts what an earlier run has committed of a block in place of its weights, norms and inputs.
void restore_block(const std::vector<LayerPlan>& layers, int64_t part, const Artifact& artifact,
                   const runtime::Checkpoint& checkpoint, Block& block);

// The artifact's part of embedding and head, and that of a block.
constexpr int64_t kTablesPart = 0;
inline int64_t part_of_block(int64_t block) {
  return block + 1;
}

// The blocks that an earlier run has left to do.
struct RemainingBlocks {
  std::vector<bool> is_done;  // the block is committed, or has no layer that is compressed
  int64_t last = 0;           // nothing is left from this block on
  int64_t num_committed = 0;
};
RemainingBlocks remaining_blocks(const RunPlan& plan, const Artifact& artifact);

}  // namespace pare::compress
