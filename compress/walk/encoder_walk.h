// The calibration's way through an encoder, as block_walk.h is through a decoder: all texts' hidden states stand in
// front of one block and move through its stages, each computed once and with the weights the block has by then. Texts
// have their own lengths; all states lie in memory, row after row.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/walk/encoder_block.h"
#include "compress/walk/statistics.h"

namespace pare::compress {

// Texts of an encoder's calibration, as token ids.
using CalibrationTexts = std::vector<std::vector<int32_t>>;

class EncoderWalk {
 public:
  // Statistics count rows in groups of so many, so that ranges need no row each; the rows that fill no group at the end
  // of the last text are not counted.
  static constexpr int64_t kGroupRows = 16;

  // Embeds the texts. Throws std::invalid_argument for less than kGroupRows tokens in all.
  EncoderWalk(const runtime::Checkpoint& checkpoint, const CalibrationTexts& texts, uint64_t sample_seed);

  // Moves all texts up to `stage` of the block in front of them and returns the statistics of the stage's input. To be
  // called for every stage of a block, in order, and then leave. Throws Interrupted and UnusableInput.
  LayerStatistics reach(const EncoderBlock& block, runtime::Stage stage, StatisticsNeed need);
  // Through the last stage's layers: the texts then stand in front of the next block.
  void leave(const EncoderBlock& block);

  // Bytes of the states of num_tokens tokens.
  static int64_t size_bytes(const runtime::EncoderDescription& model, int64_t num_tokens);

 private:
  at::Tensor rows(const at::Tensor& all_RI, size_t text) const;

  std::vector<int64_t> first_row_;  // of each text, and the end
  std::vector<int64_t> sample_rows_;
  at::Tensor hidden_RD_, mixed_RD_, activated_RF_;
  at::Tensor normed_RD_;  // the input of two stages, where blocks normalize first
};

}  // namespace pare::compress
