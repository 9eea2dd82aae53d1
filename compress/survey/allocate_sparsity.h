// Decides how many weights each layer keeps where a recipe shares one ratio among layers: by one threshold for all
// magnitudes (Allocation::global), or by the outliers of each block (OWL, prune/owl.h).
#pragma once

#include <functional>
#include <memory>

#include "compress/plan/plan.h"
#include "compress/walk/model_walk.h"

namespace pare::compress {

// Gives those steps their share (PassOptions::set_share). OWL's outliers are counted on a separate walk through the
// uncompressed model, which `make_walk` begins. Nothing is done where no step asks for it. The result depends on model,
// data and recipe alone, so that a resumed run gets the same. Throws what the walk throws, and Interrupted.
void allocate_sparsity(const runtime::Checkpoint& checkpoint,
                       const std::function<std::unique_ptr<ModelWalk>()>& make_walk, RunPlan& plan);

}  // namespace pare::compress
