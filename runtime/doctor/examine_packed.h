// Illnesses of GPTQ's and AWQ's tensors: the version of zeros, g_idx, the axis and order of packing, bits and groups.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/claims.h"
#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// Returns the original's weight of a module, by the description's name, float32 [O, I]; empty: there is none of that
// shape.
using OriginalWeight = std::function<std::vector<float>(const std::string& module, int64_t num_out, int64_t num_in)>;

// Reads every module with a qweight, one at a time, and appends what is wrong. `original` may be empty. Names of
// modules that are explained are put into `explained`, as the files have them. `step` is called after each module.
void examine_packed(const Patient& patient, const Claims& claims, const OriginalWeight& original,
                    std::vector<Finding>& findings, std::set<std::string>& explained,
                    const std::function<void()>& step);

// Reads the shapes of every linear of compressed-tensors with a weight_packed in integers. Appends what is wrong, and
// puts the modules that this explains into `explained`.
void examine_shapes(const Patient& patient, const Claims& claims, std::vector<Finding>& findings,
                    std::set<std::string>& explained);

// Returns the modules with a qweight, by the names in the files.
std::vector<std::string> packed_names(const Patient& patient);

}  // namespace pare::runtime
