// What the passes that prune share.
#pragma once

#include <functional>

#include "compress/passes/stage_state.h"
#include "compress/recipe/prune_options.h"
#include "prune/mask.h"

namespace pare {

// How many weights of a layer the pass keeps.
KeepRule rule_of(const PrunePass& pass);

// Says that magnitudes choose, since the stage is unseen.
void note_unseen(LayerState& layer);

// Whether the source's zeros that the layer keeps are as many as the rule asks for: nothing is left to choose.
bool has_zeros_for(const LayerState& layer, const KeepRule& rule);
// What `choose` says, with the zeros of the source; where these are enough, the weight as it is.
PrunedWeight pruned_beside_source(const LayerState& layer, const KeepRule& rule,
                                  const std::function<PrunedWeight()>& choose);

// The layer gets the pruned weight and its mask. Measures the error.
void keep_pruned(const StageState& stage, const SparsePattern& pattern, PrunedWeight pruned, LayerState& layer);

// A layer whose mask is chosen together with its kept weights (prune/alps.h).
struct AlpsLayer {
  LayerState* layer = nullptr;
  KeepRule rule;
  SparsePattern pattern;
};
// All at once: they share the factorizations. Throws what alps throws, with the layers' names in front.
void prune_by_alps(StageState& stage, const std::vector<AlpsLayer>& layers, double damping, const AlpsOptions& options,
                   const ResolveOptions& resolving);

// The same after what is kept is solved anew on the stage's H (prune/resolve.h), where the options say so. Throws what
// resolve throws.
void prune_layer(StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer);

}  // namespace pare
