// Zeros that the source of a run has already. Pruning made them, and they are usually to stay.
#pragma once

#include <string>

#include "compress/plan/plan.h"
#include "compress/recipe/recipe.h"

namespace pare::compress {

// Marks the layers that the plan changes and whose weights are pruned (LayerPlan::kept_zeros), by the rule of
// pruned_zeros and as far as the recipe says. It reads those weights. If only the number of zeros suggests pruning, and
// the recipe does not say what becomes of them, this adds an event to the plan. Returns a description of what is kept;
// it is empty if nothing is kept or the event says it.
//
// has_weights: false for a checkpoint of which only names, types and shapes are there, as a dry run has it of a source
// that is decoded or imported. Then only layers that are claimed to be pruned are marked, as claimed, and the
// description says so.
//
// Throws std::invalid_argument for zeros that a layer's codes do not hold (check_zeros_are_held), what
// Checkpoint::linear and sparsity_claims throw, and Interrupted.
std::string keep_zeros_of_source(const Recipe& recipe, const runtime::Checkpoint& checkpoint, bool has_weights,
                                 RunPlan& plan);

}  // namespace pare::compress
