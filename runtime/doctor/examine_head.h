// A decoder's head beside its embedding, with which it may share one weight.
#pragma once

#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// Does nothing for an encoder.
void examine_head(const Patient& patient, std::vector<Finding>& findings);

}  // namespace pare::runtime
