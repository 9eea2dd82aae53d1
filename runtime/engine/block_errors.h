// How far a model's residual stream is from another's behind each block: what all layers up to there have changed
// together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/transformer.h"

namespace pare::runtime {

class BlockErrors {
 public:
  // True if the residual streams are as wide, behind as many blocks.
  static bool can_compare(const ModelDescription& model, const ModelDescription& reference);
  // Returns the size of what is kept of a batch, in which so many rows are looked at.
  static int64_t size_bytes(const ModelDescription& model, int64_t num_rows);

  // Looks at the last num_rows rows of each sequence.
  BlockErrors(const ModelDescription& model, int64_t num_rows);
  BlockErrors(const BlockErrors&) = delete;
  BlockErrors& operator=(const BlockErrors&) = delete;

  // The model takes a batch of sequences with the first observer, and the reference then the same batch with the other.
  // A batch has at most Transformer::kBatchRows rows, or is one sequence.
  const BlockObserver& keeps() const { return keep_; }
  const BlockObserver& compares() const { return compare_; }

  // Returns |h - h0|^2 / |h0|^2 behind each block, where h is the model's residual stream and h0 the reference's. Sums
  // go over the rows of all batches, in float64. It is 0 where h0 is 0.
  std::vector<double> values() const;

 private:
  void add(size_t block, std::span<const float> reference_RD);

  std::vector<std::vector<float>> states_;  // by block, of the batch at hand
  std::vector<double> squares_, differences_;
  BlockObserver keep_, compare_;
};

}  // namespace pare::runtime
