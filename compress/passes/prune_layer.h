// What the passes that prune share.
#pragma once

#include "compress/passes/stage_state.h"
#include "compress/recipe/prune_options.h"
#include "prune/mask.h"

namespace pare {

// How many weights of a layer the pass keeps.
KeepRule rule_of(const PrunePass& pass);

// Says that magnitudes choose, since the stage is unseen.
void note_unseen(LayerState& layer);

// The layer gets the pruned weight and its mask. Measures the error.
void keep_pruned(const StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer);

// The same after what is kept is solved anew on the stage's H (prune/resolve.h), where the options say so. Throws what
// resolve throws.
void prune_layer(StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer);

}  // namespace pare
