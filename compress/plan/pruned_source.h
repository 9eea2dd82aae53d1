// Zeros that the source of a run has already: whoever made them by pruning wants to keep them.
#pragma once

#include <string>

#include "compress/plan/plan.h"
#include "compress/recipe/recipe.h"

namespace pare {

// Marks the layers that the plan changes and whose weights are pruned (LayerPlan::kept_zeros), by the rule of
// pruned_zeros and as far as the recipe says. Reads those weights. Where nothing but their number says that zeros were
// made by pruning, and the recipe does not say what becomes of them, that is an event of the plan. Returns what is
// kept, in words; empty: nothing, or the event says it. Throws what Checkpoint::linear and sparsity_claims throw, and
// Interrupted.
std::string keep_zeros_of_source(const Recipe& recipe, const Checkpoint& checkpoint, RunPlan& plan);

}  // namespace pare
