// The bytes of one tensor of a GGUF file, and what is lost in them.
#pragma once

#include <functional>
#include <span>

#include "runtime/export/gguf_plan.h"
#include "runtime/format/linear_weights.h"
#include "runtime/system/atomic_file.h"

namespace pare::runtime {

struct GgufLoss {
  bool keeps_codes = false;
  bool is_lossless = true;
  double squared_error = 0.0, squared_weight = 0.0;  // sums over all elements
  double relative_error() const;
};

// Makes the tensor's bytes and decodes them again, to measure. One part is in memory at a time. Works on all cores.
// `copies` has the blocks of a tensor that is_copied. Throws std::runtime_error naming the tensor for numbers that the
// type cannot hold, or that it holds no part of.
GgufLoss make_gguf_tensor(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor, const GgufCopies& copies,
                          const std::function<std::span<const float>(const LinearDescription&)>& importance,
                          const ByteSink& sink);

// Returns the stored weight of a linear or of the embedding.
LinearWeights read_for_gguf(const Checkpoint& checkpoint, const LinearDescription& linear);
// True if blocks of this type hold the weight's codes. Their scales may be rounded.
bool holds_codes(const LinearWeights& linear, GgufType type);
// True unless float16, in which blocks have their scales, loses the weight's: all numbers together are within 2^-8 of
// what they were. F16 is a type too, of the weight's numbers. For other types the codes are held.
bool holds_scales(const LinearWeights& linear, GgufType type);
// True if blocks of this type with the weight's codes stand for the weight exactly. The codes are held.
bool is_held_exactly(const LinearWeights& linear, GgufType type);

}  // namespace pare::runtime
