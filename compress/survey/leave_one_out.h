// Measures what it costs the model to round one group of layers alone. This is the increase of the loss, window by
// window, when only the group's weights are replaced.
//
// The windows' hidden states stand before one block and move with it through the model, so only the blocks from the
// changed one on are computed. All changes of a block go through the rest of the model side by side, and each later
// block is read once for all of them. Blocks are the calibration's (float32), and the head is the runtime's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/walk/decoder_block.h"
#include "runtime/engine/backend.h"
#include "runtime/evaluate/perplexity.h"

namespace pare::compress {

// Other values for the layers of one stage: float32, row-major [O, I], by the place in stage_layers; an empty one stays
// as it is. `input` says how the stage's input is rounded.
struct StageChange {
  runtime::Stage stage = runtime::Stage::attention_input;
  std::vector<std::vector<float>> weights_OI;
  runtime::InputFormat input = {};
};

// The losses by window: means over its predictions, in nats.
struct WindowLosses {
  std::vector<double> increase;  // increase of the negative log likelihood over the unchanged model's
  std::vector<double> kl;        // KL(unchanged || changed)
};

class LeaveOneOut {
 public:
  // Runs one forward pass of the unchanged model. `data` must outlive the object. Changed models travel along with the
  // windows, for changes that are spread over many blocks: first the num_travellers whose changes advance() takes, then
  // one for each of `sites`.
  // Throws std::invalid_argument for ids outside the vocabulary or windows beyond the context, and std::runtime_error
  // for a loss that is not finite.
  LeaveOneOut(const runtime::Checkpoint& checkpoint, const runtime::ScoredWindows& data, runtime::Backend& backend,
              size_t num_travellers = 0, std::vector<RoundedSite> sites = {});

  // Returns the losses of the model with each of the changes alone, all in the block before which the windows stand.
  // Throws Interrupted between blocks.
  std::vector<WindowLosses> measure(std::span<const StageChange> changes);
  // Moves the unchanged model through its block, and each traveller through the block with its own changes. `changes`
  // has those of all num_travellers, or is empty, and then they pass unchanged. The windows then stand before the next
  // block.
  void advance(std::span<const std::vector<StageChange>> changes = {});
  // Returns the travellers' losses after the last block, those of sites last.
  std::vector<WindowLosses> arrived();

  // The block before which the windows stand.
  const runtime::BlockDescription& block() const { return block_.description(); }
  double baseline_nll() const { return baseline_nll_; }  // mean, in nats

  // The extent of a measurement: changes in each block, and travellers, sites included.
  struct Extent {
    int64_t num_windows = 0;
    int64_t num_tokens = 0;
    int64_t changes_per_block = 0;
    int64_t num_travellers = 0;
  };
  static int64_t size_bytes(const runtime::Checkpoint& checkpoint, const Extent& extent, int num_threads);
  static double num_operations(const runtime::ModelDescription& model,
                               const Extent& extent);  // floating-point operations

 private:
  // Moves all windows of hidden [N, T, D] through the block, in place.
  void forward(const DecoderBlock& block, std::span<at::Tensor> hidden_NTD);
  void finish(const at::Tensor& hidden_NTD, float* final_RD) const;
  std::span<const int32_t> targets(int64_t window) const;
  // `where` names the change in messages.
  WindowLosses score(const at::Tensor& hidden_NTD, const std::string& where);

  const runtime::Checkpoint& checkpoint_;
  const runtime::ModelDescription& model_;
  const runtime::ScoredWindows& data_;
  runtime::Backend& backend_;
  int64_t index_ = 0;
  DecoderBlock block_;
  FinalNorm final_norm_;
  std::unique_ptr<runtime::PackedLinear> head_;
  std::vector<RoundedSite> sites_;
  at::Tensor hidden_NTD_;                       // before block_
  std::vector<at::Tensor> travellers_;          // before block_ as well
  runtime::Buffer<float> reference_, changed_;  // final hidden states [N * T, D]
  double baseline_nll_ = 0.0;
};

}  // namespace pare::compress
