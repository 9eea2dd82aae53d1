// Lists of layers that are not quantized, beside the layers that hold codes.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/claims.h"
#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// How a linear lies in the files.
struct ModuleForm {
  bool has_floats = false;           // a .weight in floats
  std::vector<std::string> codes{};  // the suffixes of tensors with codes
  bool is_there() const { return has_floats || !codes.empty(); }
};
// `module` is a name of the description.
ModuleForm form_of(const Patient& patient, const std::string& module);

// Names of modules that are explained are put into `explained`, as the files have them.
void examine_lists(const Patient& patient, const Claims& claims, std::vector<Finding>& findings,
                   std::set<std::string>& explained);

}  // namespace pare::runtime
