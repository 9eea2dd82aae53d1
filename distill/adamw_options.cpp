#include "distill/adamw_options.h"

namespace pare::distill {

void AdamWOptions::fields(runtime::FieldVisitor& visit) {
  visit("beta1", beta1, {.low = 0.0, .high = 0.99999}, "AdamW's mean of gradients forgets at this rate.");
  visit("beta2", beta2, {.low = 0.0, .high = 0.99999}, "AdamW's mean of squared gradients forgets at this rate.");
  visit("epsilon", epsilon, {.low = 1e-16, .high = 1.0}, "This is added to what AdamW divides a step by.");
  visit("weight_decay", weight_decay, {.low = 0.0, .high = 10.0},
        "Each step takes this share off a weight, times the learning rate.");
}

}  // namespace pare::distill
