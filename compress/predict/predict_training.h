// How long a training takes, how much memory and disk: from shapes, before any of it is read.
#pragma once

#include <ATen/core/Tensor.h>

#include "compress/predict/prediction.h"
#include "compress/recipe/distill_pass.h"
#include "compress/train/trainer.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// What a training is of. windows: their number and length alone count.
struct TrainingExtent {
  const runtime::Checkpoint& student;
  const runtime::Checkpoint* teacher;  // null: recorded, or none is read
  const DistillOptions& options;
  const TrainingWindows& windows;
  at::ScalarType compute;  // of its products
  at::Device device;
};

// Every token costs two operations for each weight that it meets forward and four backward, and as many again forward
// where the activations are recomputed. Throws std::invalid_argument where a CPU's memory does not suffice.
Prediction predict_training(const TrainingExtent& extent, const RunLimits& limits);

}  // namespace pare::compress
