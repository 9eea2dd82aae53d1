// The rows of a store, from a model that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compress/record/logit_writer.h"
#include "runtime/engine/generate_together.h"
#include "runtime/engine/transformer.h"

namespace pare {

class RecordingTeacher {
 public:
  // The model must outlive it. num_tokens: rows of the head that are tokens; those behind them are padding, which is
  // left out of every distribution. num_kept and temperatures: truncate_logits.
  RecordingTeacher(Transformer& model, int64_t num_tokens, int64_t num_kept, std::vector<double> temperatures);

  // Runs the sequences, each document of each alone, all of one length, at most batch_sequences(length), and appends a row for each of
  // their tokens: the logits in float32, a chunk of tokens at a time. Which sequences come together decides how sums
  // are split, so that equal bytes need equal calls. Throws std::runtime_error for logits that are not finite
  // (first_sequence says in which).
  void append(std::span<const RecordedSequence> sequences, int64_t first_sequence, LogitShardWriter& writer);

  static int64_t batch_sequences(int64_t num_tokens);
  // Memory of one chunk of a head's logits and of what num_threads threads make of it.
  static int64_t logit_bytes(int64_t num_vocabulary, int num_threads);

 private:
  Transformer& model_;
  int64_t num_tokens_, num_kept_;
  std::vector<double> temperatures_;
  Buffer<float> hidden_RD_, logits_RV_;
  std::vector<float> host_logits_RV_;
  int64_t num_hidden_rows_ = 0;
};

// Each prompt with the continuation that the model draws, its end token included where it gave one; the prompt's own
// tokens are no labels. num_lanes, throws: generate_together's.
std::vector<RecordedSequence> continue_prompts(Transformer& model, std::span<const GenerationRequest> requests,
                                               int64_t num_lanes);

// A text's window, with a label at every token but the last of a document; starts: RecordedSequence's.
RecordedSequence window_of_documents(std::span<const int32_t> ids, const std::vector<int32_t>& starts);

}  // namespace pare
