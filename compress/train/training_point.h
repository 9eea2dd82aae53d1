// What was measured of a training at one step.
#pragma once

#include <cstdint>
#include <optional>

#include "compress/recipe/distill_pass.h"

namespace pare::compress {

struct TrainingPoint {
  int64_t step = 0;
  int64_t num_tokens = 0;           // trained on so far
  std::optional<double> loss = {};  // trained, mean since the point before; nats per token. None before the first step
  double validation_perplexity = 0.0;
  // On the same held-out tokens, in nats per token: the trained loss, and KL(teacher || student) at temperature 1,
  // where it decides what is kept.
  std::optional<double> validation_loss = {}, validation_kl = {};
  double learning_rate = 0.0;

  // What is to be the least; none: the last point is kept.
  std::optional<double> measure(SelectBy select) const;
};

}  // namespace pare::compress
