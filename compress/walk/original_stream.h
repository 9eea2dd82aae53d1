// The uncompressed model's hidden states beside those of the model compressed so far: what each stage lacks of the
// original (FitStatistics) is summed as both pass it. The original's weights never change, so that its states need no
// store of inputs: what a stage reads is made from the hidden states when it is compared.
//
// An eighth of the windows is held out, the same at every stage: no fitted layer's H has seen them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "compress/walk/decoder_block.h"
#include "compress/walk/hidden_store.h"
#include "compress/walk/product_sums.h"
#include "compress/walk/statistics.h"
#include "compress/walk/walk_layout.h"
#include "runtime/files/npy.h"

namespace pare::compress {

class OriginalStream {
 public:
  // Embeds the windows with the original's table. `layout` is the walk's, and has the original.
  OriginalStream(const runtime::ModelDescription& model, const runtime::TokenWindows& windows,
                 const runtime::LinearWeights& embedding, const EmbeddingRest& rest, uint64_t seed,
                 const WalkLayout& layout, const std::filesystem::path& spill_directory);

  // The sums of a stage begin: of a block that is no expert's.
  void begin(runtime::Stage stage, int64_t width);
  // Moves a window of the original through a stage; to be called for every stage of a block, in order, from any thread.
  // Experts' stages change nothing. `compared`: what the compressed model has at
  // the same place, whose difference goes to the sums.
  struct Compared {
    const DecoderBlock& block;
    const at::Tensor& hidden_TD;  // the residual stream that an output stage's output is added to
    const at::Tensor& x_TI;       // the stage's input, unrounded
  };
  void pass(const DecoderBlock& original, runtime::Stage stage, int64_t window, const Compared* compared);
  // Adds consecutive windows that were compared: those of a group, in ascending order.
  void accumulate(int64_t first_window, int64_t num_windows);
  // H, its diagonal, the number of its tokens and `fit` of the stage's statistics.
  void finish(LayerStatistics& statistics);
  // Through a mixture's experts; blocks without have passed their last stage.
  void leave(const DecoderBlock& original, int64_t window);

  // The window's states [T, D] as far as they have come; release: they will not be touched soon.
  at::Tensor states(int64_t window) const { return hidden_.windows(window, 1, model_.hidden_size); }
  void release(int64_t window) const { hidden_.release(window, 1, model_.hidden_size); }

  // One window in so many is held out.
  static constexpr int64_t kHeldShare = 8;
  // By window. Without at least two windows none is held out, and no step is taken (S = 0).
  static std::vector<bool> held_windows(int64_t num_windows, uint64_t seed);

  // Of the sums of a stage whose input is `width` wide.
  static int64_t sums_bytes(const runtime::ModelDescription& model, int64_t width);

 private:
  // The fitting windows', and the held-out ones'.
  struct Sums {
    ProductSums hessian, missing;
    double weight = 0.0;  // of all tokens
  };
  // Rows [T, width] of a window in one of the group's buffers. A chunk's held-out windows come behind its others.
  at::Tensor group_rows(const at::Tensor& buffer, int64_t window, int64_t width) const;
  void compare_outputs(const DecoderBlock& original, runtime::Stage stage, int64_t window, const at::Tensor& hidden_TD,
                       const at::Tensor& output_TD, const Compared& compared);

  const runtime::ModelDescription& model_;
  int64_t num_windows_, num_tokens_, chunk_windows_, group_windows_, token_block_;
  std::vector<bool> is_held_N_;
  std::vector<int64_t> place_N_;  // of a window in its chunk
  HiddenStore hidden_;
  at::Tensor group_x_, group_missing_;  // of the windows at work, times the root of each token's weight
  // Of the stage at hand.
  runtime::Stage stage_ = runtime::Stage::attention_input;
  int64_t width_ = 0, missing_width_ = 0;
  std::vector<double> weight_N_;  // sum over a window's tokens
  std::vector<Sums> sums_;
};

}  // namespace pare::compress
