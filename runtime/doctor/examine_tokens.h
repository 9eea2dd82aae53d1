// Tokens beside the embedding that they choose rows of.
#pragma once

#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// Opens the tokenizer, if there is one, and looks at the tokens that config.json and generation_config.json name. Does
// nothing for an encoder.
void examine_tokens(const Patient& patient, std::vector<Finding>& findings);

}  // namespace pare::runtime
