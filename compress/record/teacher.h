// Makes the rows of a store with a model that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compress/record/logit_writer.h"
#include "runtime/engine/generate_together.h"
#include "runtime/engine/transformer.h"

namespace pare::compress {

class RecordingTeacher {
 public:
  // The model must outlive it. num_tokens is the number of the head's rows that are tokens. Later rows are padding,
  // which is left out of every distribution. num_kept and temperatures are as in truncate_logits.
  RecordingTeacher(runtime::Transformer& model, int64_t num_tokens, int64_t num_kept, std::vector<double> temperatures);

  // Runs the sequences, with each of their documents alone, and appends a row for each of their tokens. All have one
  // length, and there are at most batch_sequences(length) of them. The logits are in float32, a chunk of tokens at a
  // time. The grouping of sequences decides how sums are split, so equal bytes need equal calls. Throws
  // std::runtime_error for logits that are not finite (first_sequence serves to say in which sequence).
  void append(std::span<const RecordedSequence> sequences, int64_t first_sequence, LogitShardWriter& writer);

  static int64_t batch_sequences(int64_t num_tokens);
  // Returns the memory of one chunk of a head's logits and of its truncation on num_threads threads.
  static int64_t logit_bytes(int64_t num_vocabulary, int num_threads);

 private:
  runtime::Transformer& model_;
  int64_t num_tokens_, num_kept_;
  std::vector<double> temperatures_;
  runtime::Buffer<float> hidden_RD_, logits_RV_;
  std::vector<float> host_logits_RV_;
  int64_t num_hidden_rows_ = 0;
};

// Returns each prompt with the continuation that the model draws, including its end token if it drew one. The prompt's
// own tokens are no labels. Throws what generate_together throws.
std::vector<RecordedSequence> continue_prompts(runtime::Transformer& model,
                                               std::span<const runtime::GenerationRequest> requests);

// Returns a text's window with a label at every token but the last of a document. `starts` is as in RecordedSequence.
RecordedSequence window_of_documents(std::span<const int32_t> ids, const std::vector<int32_t>& starts);

}  // namespace pare::compress
