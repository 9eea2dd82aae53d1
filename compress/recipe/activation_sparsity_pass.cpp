#include "compress/recipe/activation_sparsity_pass.h"

#include "runtime/system/progress.h"

namespace pare::compress {

void ActivationSparsityPass::fields(runtime::FieldVisitor& visit) {
  visit("ratio", ratio, {.low = runtime::kAboveZero, .high = 0.99},
        "This share of the inputs becomes zero on the calibration's tokens, in each layer: those of the smallest "
        "magnitude.");
}

void ActivationSparsityPass::check(const PassCheck& check) {
  check.require_calibration({}, "activation_sparsity finds its thresholds in calibration data");
}

std::string ActivationSparsityPass::words(std::string_view key) const {
  return std::string(key) + " " + runtime::format_number(ratio, 2);
}

}  // namespace pare::compress
