// The index of a model in several files, beside what the files hold.
#pragma once

#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// `needed` says of a tensor, by its name in the files, whether the model needs it.
void examine_index(const Patient& patient, const std::function<bool(const std::string& tensor)>& needed,
                   std::vector<Finding>& findings);

}  // namespace pare::runtime
