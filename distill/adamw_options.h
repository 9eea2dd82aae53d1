// The options of AdamW (adamw.h) and their defaults, free of LibTorch so that recipes can be read without it.
#pragma once

#include "runtime/format/fields.h"

namespace pare {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // decoupled: multiplied by the learning rate

  void fields(FieldVisitor& visit) {
    visit("beta1", beta1, {.low = 0.0, .high = 0.99999});
    visit("beta2", beta2, {.low = 0.0, .high = 0.99999});
    visit("epsilon", epsilon, {.low = 1e-16, .high = 1.0});
    visit("weight_decay", weight_decay, {.low = 0.0, .high = 10.0});
  }
};

}  // namespace pare
