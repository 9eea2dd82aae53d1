#include "compress/recipe/reconstruct_pass.h"

namespace pare {

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

const PassRow& reconstruct_row() {
  static const PassRow kRow = {"reconstruct", [] { return std::make_unique<ReconstructPass>(); }, nullptr};
  return kRow;
}

}  // namespace pare
