#include "compress/recipe/reconstruct_pass.h"

namespace pare::compress {

void ReconstructedParts::fields(runtime::FieldVisitor& visit) {
  visit("weights", weights, "Offsets of codes on their grid are trained, and weights that pruning has kept.");
  visit("scales", scales, "Scales of codes are trained.");
}

void ReconstructOptions::fields(runtime::FieldVisitor& visit) {
  visit("epochs", epochs, {.low = 1, .high = 10000}, "Each block sees all windows this many times.");
  visit("batch", batch, {.low = 1, .high = 1 << 16}, "Each step takes this many windows.");
  visit("learning_rate", learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of weights that pruning has kept in floating point.");
  visit("scale_learning_rate", scale_learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of scales, relative to their size.");
  visit("offset_learning_rate", offset_learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of codes' offsets, in steps of their grid.");
  visit("final_rate", final_rate, {.low = 0.0, .high = 1.0},
        "Rates fall to this share of themselves at the last step.");
  visit("patience", patience, {.low = 0, .high = 10000},
        "A block's training stops after this many epochs without a lower loss on held-out windows. 0 never stops it.");
  visit("train", train, "These options say which parts of a block's layers are trained.");
  visit_precision(visit, precision);
}

void ReconstructPass::check(const PassCheck& check) {
  check.require_calibration("", "blocks are trained on a text");
  if (check.has_statistics_file()) {
    check.fail("",
               "blocks are trained on hidden states, which a statistics file does not hold: give 'calibration: {text: "
               "...}'");
  }
  if (!reconstruct.train.weights && !reconstruct.train.scales) check.fail("train", "nothing is left to train");
  reconstruct.asked_rates.clear();
  for (const char* key : {"learning_rate", "scale_learning_rate", "offset_learning_rate"}) {
    if (check.was_given(key)) reconstruct.asked_rates.emplace_back(key);
  }
}

}  // namespace pare::compress
