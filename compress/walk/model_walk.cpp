#include "compress/walk/model_walk.h"

#include <optional>
#include <stdexcept>

#include "compress/walk/decoder_block.h"
#include "compress/walk/encoder_block.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

class WindowWalk : public ModelWalk {
 public:
  WindowWalk(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows,
             const runtime::LinearWeights& embedding, const DecoderWalkOptions& options)
      : checkpoint_(checkpoint),
        num_tokens_(windows.num_tokens),
        with_original_(options.with_original),
        walk_(make_walk(checkpoint, windows, embedding, options)) {}
  bool carries_states() const override { return true; }
  Block& enter(int64_t index) override {
    if (with_original_) original_.emplace(checkpoint_, index, num_tokens_);
    return block_.emplace(checkpoint_, index, num_tokens_);
  }
  LayerStatistics reach(runtime::Stage stage, StatisticsNeed need) override {
    return walk_.reach(*block_, stage, need, original());
  }
  void divide_inputs(runtime::Stage stage, std::span<const float> scales_I) override {
    walk_.divide_inputs(stage, scales_I);
  }
  void leave() override { walk_.leave(*block_, original()); }
  void with_states(int64_t window, const UseStates& use) const override { walk_.with_states(window, use); }
  void redo() override { walk_.redo(*block_); }
  WalkSeconds seconds() const override { return walk_.seconds(); }

 private:
  static BlockWalk make_walk(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows,
                             const runtime::LinearWeights& embedding, const DecoderWalkOptions& options) {
    std::optional<runtime::LinearWeights> original;
    if (options.with_original) original = checkpoint.linear(checkpoint.embedding());
    return BlockWalk(checkpoint.description(), windows, embedding, options.sample_seed, options.spill,
                     options.spill_directory, options.num_workers, options.experts, original ? &*original : nullptr,
                     options.keeps_block_inputs, read_embedding_rest(checkpoint));
  }
  const DecoderBlock* original() const { return original_ ? &*original_ : nullptr; }

  const runtime::Checkpoint& checkpoint_;
  int64_t num_tokens_;
  bool with_original_;
  BlockWalk walk_;
  std::optional<DecoderBlock> block_, original_;
};

class StatisticsWalk : public ModelWalk {
 public:
  StatisticsWalk(const runtime::Checkpoint& checkpoint, const StatisticsFile* statistics)
      : checkpoint_(checkpoint), statistics_(statistics) {}
  Block& enter(int64_t index) override { return block_.emplace(checkpoint_, index, /*num_tokens=*/1); }
  LayerStatistics reach(runtime::Stage stage, StatisticsNeed need) override {
    if (statistics_ == nullptr || need == StatisticsNeed::none) return {};
    const auto start = std::chrono::steady_clock::now();
    LayerStatistics statistics = statistics_->read(block_->description(), stage, need);
    seconds_.statistics += runtime::seconds_since(start);
    return statistics;
  }
  WalkSeconds seconds() const override { return seconds_; }

 private:
  const runtime::Checkpoint& checkpoint_;
  const StatisticsFile* statistics_;
  std::optional<DecoderBlock> block_;
  WalkSeconds seconds_;
};

class TextWalk : public ModelWalk {
 public:
  TextWalk(const runtime::Checkpoint& checkpoint, const CalibrationTexts* texts, uint64_t sample_seed)
      : checkpoint_(checkpoint) {
    if (texts != nullptr) walk_.emplace(checkpoint, *texts, sample_seed);
  }
  bool carries_states() const override { return walk_.has_value(); }
  Block& enter(int64_t index) override { return block_.emplace(checkpoint_, index); }
  LayerStatistics reach(runtime::Stage stage, StatisticsNeed need) override {
    const auto start = std::chrono::steady_clock::now();
    LayerStatistics statistics;
    if (walk_) statistics = walk_->reach(*block_, stage, need);
    seconds_.forward += runtime::seconds_since(start);
    return statistics;
  }
  void leave() override {
    if (walk_) walk_->leave(*block_);
  }
  WalkSeconds seconds() const override { return seconds_; }

 private:
  const runtime::Checkpoint& checkpoint_;
  std::optional<EncoderWalk> walk_;
  std::optional<EncoderBlock> block_;
  WalkSeconds seconds_;
};

}  // namespace

void ModelWalk::with_states(int64_t, const UseStates&) const {
  throw std::logic_error("the walk does not keep the states around a block");
}

void ModelWalk::redo() {
  throw std::logic_error("the walk does not keep the states in front of a block");
}

std::unique_ptr<ModelWalk> walk_windows(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows,
                                        const runtime::LinearWeights& embedding, const DecoderWalkOptions& options) {
  return std::make_unique<WindowWalk>(checkpoint, windows, embedding, options);
}

std::unique_ptr<ModelWalk> walk_statistics(const runtime::Checkpoint& checkpoint, const StatisticsFile* statistics) {
  return std::make_unique<StatisticsWalk>(checkpoint, statistics);
}

std::unique_ptr<ModelWalk> walk_texts(const runtime::Checkpoint& checkpoint, const CalibrationTexts* texts,
                                      uint64_t sample_seed) {
  return std::make_unique<TextWalk>(checkpoint, texts, sample_seed);
}

void walk_blocks(ModelWalk& walk, int64_t end, BlockTask& task, const std::function<void(int64_t)>& between) {
  for (int64_t b = 0; b < end; ++b) {
    runtime::throw_if_interrupted();
    between(b);
    const bool is_done = task.is_done(b);
    if (is_done && !walk.carries_states()) continue;
    Block& block = walk.enter(b);
    task.enter(b, block);
    for (const runtime::Stage stage : block.stages()) {
      LayerStatistics statistics = walk.reach(stage, is_done ? StatisticsNeed::none : task.need(b, stage));
      if (!is_done) task.at_stage(b, block, stage, std::move(statistics));
    }
    if (b + 1 < end || (!is_done && task.reads_outputs(b))) walk.leave();
    if (!is_done) task.leave(b, block);
  }
  between(end);
}

}  // namespace pare::compress
