// Whether a model knows a text at all: what the text costs it, beside what the frequencies of the text's tokens alone
// would cost. Ids of another tokenizer, damaged weights and random ones cost more.
#pragma once

#include <cstdint>

#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

struct TextLoss {
  double loss = 0.0;     // mean over the predictions that were scored, nats
  double entropy = 0.0;  // of the frequencies of all tokens of the text, nats
  int64_t num_predictions = 0;
  // Nothing to predict counts as known; a loss that is no number does not.
  bool is_known() const { return num_predictions == 0 || loss < entropy; }
};

// A sample of the windows, so that it costs little beside a calibration: at most kTextLossWindows of them, evenly
// spread, of each the first kTextLossTokens. One forward pass, block by block in float32, of which one block and pieces
// of the head are held at a time: less than any walk over the same model. The same bits for any number of threads.
// Throws Interrupted between blocks.
inline constexpr int64_t kTextLossWindows = 8;
inline constexpr int64_t kTextLossTokens = 64;
TextLoss measure_text_loss(const runtime::Checkpoint& model, const runtime::TokenWindows& windows);

// -sum p log p of the relative frequencies of the tokens, nats. 0 for no token.
double token_entropy(const runtime::TokenWindows& windows);

}  // namespace pare::compress
