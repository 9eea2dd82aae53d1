// Whether a GGUF file says what the model is.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/model_description.h"

namespace pare::runtime {

// A fact of the model that is another one in what was read back.
struct DescriptionDifference {
  std::string fact, expected, found;
  bool is_of_windows = false;  // attention's: it shows in texts that are longer than a window
};

// Compares what is computed from both. Names, types of elements and tokens do not count. Numbers may differ in the
// last digits of float32, and the factor of the embedding, which is rounded to the type of the weights, in those of
// bfloat16.
std::vector<DescriptionDifference> differences(const ModelDescription& expected, const ModelDescription& found);

}  // namespace pare::runtime
