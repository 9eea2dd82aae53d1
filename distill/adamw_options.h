// The options of AdamW (adamw.h) and their defaults, free of LibTorch so that recipes can be read without it.
#pragma once

#include "runtime/format/fields.h"

namespace pare::distill {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // decoupled: multiplied by the learning rate

  void fields(runtime::FieldVisitor& visit);
};

}  // namespace pare::distill
