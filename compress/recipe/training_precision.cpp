#include "compress/recipe/training_precision.h"

#include <stdexcept>

#include "runtime/system/isa.h"

namespace pare::compress {

bool trains_in_bfloat16(TrainingPrecision precision, bool rounds_inputs, const std::string& pass) {
  if (precision == TrainingPrecision::bfloat16 && rounds_inputs) {
    throw std::invalid_argument(
        pass + ": 'precision: bfloat16' cannot hold inputs that are rounded to 8 bits exactly: use float32");
  }
  if (precision == TrainingPrecision::automatic) return !rounds_inputs && runtime::multiplies_bfloat16();
  return precision == TrainingPrecision::bfloat16;
}

}  // namespace pare::compress
