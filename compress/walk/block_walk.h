// The calibration's way through the model: all windows' hidden states stand in front of one block, and move through it
// stage by stage, each stage computed once and with the weights the block has by then. So a layer's statistics are
// taken on the inputs it will see, and the whole walk is one forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "compress/walk/decoder_block.h"
#include "compress/walk/hidden_store.h"
#include "compress/walk/original_stream.h"
#include "compress/walk/statistics.h"
#include "compress/walk/walk_layout.h"
#include "runtime/files/npy.h"

namespace pare::compress {

// Reads one window's states around a block that was left, float32 [T, D]: those of the compressed model in front of it,
// and the original model's behind it. Both last until it returns.
using UseStates = std::function<void(const at::Tensor& input_TD, const at::Tensor& target_TD)>;

struct WalkSeconds {
  double forward = 0.0;     // the forward pass itself
  double statistics = 0.0;  // ranges and H
};

class BlockWalk {
 public:
  // Embeds the windows. The stores go to `spill_directory` as `spill` says. num_workers: windows that are at work at a
  // time, each with working space of its own (WalkLayout::possible_workers of the threads). With original_embedding,
  // the source's table, the uncompressed model's states go along: each call then takes the uncompressed block as well.
  // keeps_block_inputs: so do the states in front of the block that is passed, for with_states and redo.
  // Throws std::invalid_argument for an id outside the vocabulary, and what HiddenStore throws.
  BlockWalk(const runtime::ModelDescription& model, const runtime::TokenWindows& windows,
            const runtime::LinearWeights& embedding, uint64_t sample_seed, Spill spill,
            const std::filesystem::path& spill_directory, int num_workers,
            ExpertTokens expert_tokens = ExpertTokens::routed,
            const runtime::LinearWeights* original_embedding = nullptr, bool keeps_block_inputs = false,
            const EmbeddingRest& rest = {});

  // Moves all windows up to `stage` of the block in front of them and returns the statistics of the stage's input. To
  // be called for every stage of a block, in order, and then leave. What cannot be compared with the original, an
  // expert's or without its states, has statistics as for StatisticsNeed::hessian. Throws Interrupted between groups of
  // windows.
  LayerStatistics reach(const DecoderBlock& block, runtime::Stage stage, StatisticsNeed need,
                        const DecoderBlock* original = nullptr);
  // After a fold has divided what produces the reached stage's input: the inputs already computed, divided by scales_I
  // likewise. Those that a norm produces are not kept and come out divided anyway.
  void divide_inputs(runtime::Stage stage, std::span<const float> scales_I);
  // Through the last stage's layers: the windows then stand in front of the next block.
  void leave(const DecoderBlock& block, const DecoderBlock* original = nullptr);

  // Behind leave. with_states: from any thread; needs the original's states. redo: `block` has other weights by now,
  // and the windows pass it once more, by the same arithmetic as before. Throw std::logic_error of walks that do not
  // keep the blocks' inputs.
  void with_states(int64_t window, const UseStates& use) const;
  void redo(const DecoderBlock& block);

  const WalkSeconds& seconds() const { return seconds_; }

 private:
  void check_original(const DecoderBlock* original) const;
  // Calls work(window) for all windows, no more than a group at a time.
  void for_each_window(const std::function<void(int64_t)>& work) const;
  // What reach and leave do; without `original` its states stay where they are.
  LayerStatistics move_to(const DecoderBlock& block, runtime::Stage stage, StatisticsNeed need,
                          const DecoderBlock* original);
  void move_through(const DecoderBlock& block, const DecoderBlock* original);
  // The attention's output is added, and every token routed.
  void enter_mixture(const DecoderBlock& block);
  // The reached expert's output goes to the sums.
  void finish_expert(const DecoderBlock& block);
  // The tokens of every window that the stage's statistics are taken on.
  void choose_tokens(runtime::Stage stage);
  // The rows of windows [first, first + count) of the stage's input: in the inputs' store, or in the group buffer. Rows
  // of a chunk's windows follow one another without gaps.
  at::Tensor input_rows(runtime::Stage stage, int64_t first, int64_t count, int64_t width) const;
  // The next one of a window: what the stage's linears read. Adds the attention's output on the way.
  void produce(const DecoderBlock& block, runtime::Stage stage, int64_t window, at::Tensor& x_TI) const;
  // Adds the output of the reached stage's layer to the states of a window.
  void add_output(const DecoderBlock& block, runtime::Stage stage, int64_t window) const;

  const runtime::ModelDescription& model_;
  int64_t num_windows_, num_tokens_;
  WalkLayout layout_;
  uint64_t sample_seed_;
  ExpertTokens expert_tokens_;
  // Of the reached stage: the rows before each window and the end; of an expert also the tokens in each window.
  std::vector<int64_t> first_row_N_;
  std::vector<at::Tensor> tokens_N_;
  HiddenStore hidden_;
  HiddenStore inputs_;
  std::optional<HiddenStore> block_inputs_;
  std::optional<HiddenStore> sums_;
  std::vector<TokenRouting> routing_N_;
  int64_t expert_ = runtime::Stage::kNoExpert;  // the last that was reached
  at::Tensor group_x_;
  std::optional<OriginalStream> original_;
  WalkSeconds seconds_;
};

}  // namespace pare::compress
