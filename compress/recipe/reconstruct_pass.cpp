#include "compress/recipe/reconstruct_pass.h"

namespace pare {

void ReconstructPass::check(const PassCheck& check) {
  check.require_calibration("", "blocks are trained on a text");
  if (check.has_statistics_file()) {
    check.fail("",
               "blocks are trained on hidden states, which a statistics file does not hold: give 'calibration: {text: "
               "...}'");
  }
  if (reconstruct.learning_rate == 0.0 && reconstruct.scale_learning_rate == 0.0 &&
      reconstruct.offset_learning_rate == 0.0) {
    check.fail("learning_rate", "every learning rate is 0: nothing is left to train");
  }
}

const PassRow& reconstruct_row() {
  static const PassRow kRow = {"reconstruct", [] { return std::make_unique<ReconstructPass>(); }, nullptr};
  return kRow;
}

}  // namespace pare
