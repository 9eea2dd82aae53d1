// How long a training takes, how much memory and disk: from shapes, before any of it is read.
#pragma once

#include <ATen/core/Tensor.h>

#include "compress/model_kind.h"
#include "compress/recipe/distill_pass.h"
#include "compress/train/trainer.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// What a training is of. windows: their number and length alone count.
struct TrainingExtent {
  const Checkpoint& student;
  const Checkpoint* teacher;  // null: recorded, or none is read
  const DistillOptions& options;
  const TrainingWindows& windows;
  at::ScalarType compute;  // of its products
  at::Device device;
};

// A process holds more than its tensors: each thread the products' buffers and a heap of its own, and a heap what it
// keeps between pieces of different sizes. Measured in float32 on two threads: 4.40 GB where tensors are 4.00 (SmolLM2,
// micro-batches of a window of 512 tokens), 5.69 where they are 5.13 (of two), 1.36 to 1.43 where they are 1.13 (6
// blocks).
inline constexpr double kHeapShare = 1.07;
inline constexpr int64_t kThreadBytes = int64_t{80} << 20;
// [tokens, V] that a loss holds at its highest point, those of its graph included.
inline constexpr double kTensorsOfLoss = 15.0;

// Every token costs two operations for each weight that it meets forward and four backward, and as many again forward
// where the activations are recomputed. Throws std::invalid_argument where a CPU's memory does not suffice.
Prediction predict_training(const TrainingExtent& extent, const RunLimits& limits);

}  // namespace pare
