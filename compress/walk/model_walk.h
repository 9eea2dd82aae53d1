// The calibration's way through a model, whatever the model is: blocks in their order, and in front of each the hidden
// states of all windows or texts, or statistics that were taken before, or nothing at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/walk/block.h"
#include "compress/walk/block_walk.h"
#include "compress/walk/encoder_walk.h"
#include "compress/walk/statistics.h"
#include "compress/walk/statistics_file.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

class ModelWalk {
 public:
  virtual ~ModelWalk() = default;
  // Whether hidden states go along: every block must then be passed, also those where nothing is to be done.
  virtual bool carries_states() const { return false; }
  // Reads a block; carried states stand in front of it. The block is this one's until the next is entered.
  virtual Block& enter(int64_t index) = 0;
  // The statistics of the stage's input, as far as they are needed; to be called for every stage in order. None where
  // there are no data.
  virtual LayerStatistics reach(runtime::Stage stage, StatisticsNeed need) = 0;
  // After a fold has divided what produces the reached stage's input: inputs that were computed already, likewise.
  virtual void divide_inputs(runtime::Stage, std::span<const float>) {}
  // Through the last stage's layers.
  virtual void leave() {}
  // Behind leave, of walks that keep the blocks' inputs (DecoderWalkOptions): BlockWalk's. redo takes the entered
  // block. Others throw std::logic_error.
  virtual void with_states(int64_t window, const UseStates& use) const;
  virtual void redo();
  virtual WalkSeconds seconds() const { return {}; }
};

struct DecoderWalkOptions {
  uint64_t sample_seed = 0;
  Spill spill = Spill::none;
  std::filesystem::path spill_directory = {};
  int num_workers = 1;  // windows at work at a time
  ExpertTokens experts = ExpertTokens::routed;
  bool with_original = false;       // the uncompressed model's states go along, for StatisticsNeed::original
  bool keeps_block_inputs = false;  // for with_states and redo
};
// Of a decoder, with windows; `embedding` is the table that the compressed model will embed with. Throws what BlockWalk
// throws.
std::unique_ptr<ModelWalk> walk_windows(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows,
                                        const runtime::LinearWeights& embedding, const DecoderWalkOptions& options);
// Of a decoder, with statistics of its uncompressed blocks; null: without.
std::unique_ptr<ModelWalk> walk_statistics(const runtime::Checkpoint& checkpoint, const StatisticsFile* statistics);
// Of an encoder; null: without texts.
std::unique_ptr<ModelWalk> walk_texts(const runtime::Checkpoint& checkpoint, const CalibrationTexts* texts,
                                      uint64_t sample_seed);

// What is done with the blocks of a walk.
class BlockTask {
 public:
  virtual ~BlockTask() = default;
  // Whether the states only have to pass the block.
  virtual bool is_done(int64_t) const { return false; }
  virtual void enter(int64_t, Block&) {}
  virtual StatisticsNeed need(int64_t block, runtime::Stage stage) const = 0;
  virtual void at_stage(int64_t index, Block& block, runtime::Stage stage, LayerStatistics statistics) = 0;
  // Whether `leave` reads the states behind the block, which those in front of the next block are anyway.
  virtual bool reads_outputs(int64_t) const { return false; }
  // Behind the block's last stage.
  virtual void leave(int64_t, Block&) {}
};

// Blocks [0, end), each stage in its order: the one loop of compressing, calibrating and surveying. `between` is called
// with the number of blocks done, in front of every block and behind the last, and may throw. Throws Interrupted, and
// what walk and task throw.
void walk_blocks(ModelWalk& walk, int64_t end, BlockTask& task, const std::function<void(int64_t)>& between);

}  // namespace pare::compress
