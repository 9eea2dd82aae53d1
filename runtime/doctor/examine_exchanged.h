// Layers that hold the weights of others, as where the tensors of two layers were exchanged. Only the original tells.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/doctor/examine_model.h"
#include "runtime/doctor/examine_packed.h"
#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// Returns Pearson's correlation of two lists of one length; nullopt where one of them is constant or not finite.
std::optional<double> correlation(std::span<const float> a, std::span<const float> b);

// Reads every layer that can be read, and compares it with the originals of all layers of its shape: whatever rounding,
// pruning and training make of a weight stays correlated with it, and weights of two layers are not. 16384 values of
// each weight are compared, at places drawn once. `step` is called after each layer. Throws Interrupted.
void examine_exchanged(const Patient& patient, const Needs& needs, const OriginalWeight& original,
                       std::vector<Finding>& findings, const std::function<void()>& step);

}  // namespace pare::runtime
