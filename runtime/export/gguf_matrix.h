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
// Throws std::runtime_error naming the tensor for numbers that the type cannot hold.
GgufLoss make_gguf_tensor(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor,
                          const std::function<std::span<const float>(const LinearDescription&)>& importance,
                          const ByteSink& sink);

// True if blocks of this type with the weight's codes stand for the weight exactly. GgufTranscoder holds the codes.
bool is_held_exactly(const LinearWeights& linear, GgufType type);

}  // namespace pare::runtime
