#include "compress/recipe/training_precision.h"

#include <stdexcept>

#include "runtime/system/isa.h"

namespace pare {

void visit_precision(FieldVisitor& visit, TrainingPrecision& precision) {
  visit("precision", precision,
        "Products of matrices are computed in this type. `auto` takes `bfloat16` where the processor multiplies it and "
        "no "
        "input is rounded, else `float32`.");
}

bool trains_in_bfloat16(TrainingPrecision precision, bool rounds_inputs, const std::string& pass) {
  if (precision == TrainingPrecision::bfloat16 && rounds_inputs) {
    throw std::invalid_argument(
        pass + ": 'precision: bfloat16' cannot hold inputs that are rounded to 8 bits exactly: use float32");
  }
  if (precision == TrainingPrecision::automatic) return !rounds_inputs && multiplies_bfloat16();
  return precision == TrainingPrecision::bfloat16;
}

}  // namespace pare
