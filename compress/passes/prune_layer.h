// Functions that the passes that prune share.
#pragma once

#include <functional>

#include "compress/passes/stage_state.h"
#include "compress/recipe/prune_options.h"
#include "prune/mask.h"

namespace pare {

// Returns the rule by which the pass keeps a layer's weights.
KeepRule rule_of(const PrunePass& pass);

// Adds the event that magnitudes choose, because the stage has seen no token.
void note_unseen(LayerState& layer);

// Returns whether the zeros of the source that the layer keeps are as many as the rule asks for, so that nothing is
// left to choose.
bool has_zeros_for(const LayerState& layer, const KeepRule& rule);
// Returns the weight that `choose` makes, pruned also where the source is. Where the source's zeros are enough, returns
// the weight as it is.
PrunedWeight pruned_beside_source(const LayerState& layer, const KeepRule& rule,
                                  const std::function<PrunedWeight()>& choose);

// Gives the layer the pruned weight and its mask, and measures the error.
void keep_pruned(const StageState& stage, const SparsePattern& pattern, PrunedWeight pruned, LayerState& layer);

// A layer whose mask is chosen together with its kept weights (prune/alps.h).
struct AlpsLayer {
  LayerState* layer = nullptr;
  KeepRule rule;
  SparsePattern pattern;
};
// Prunes all layers at once, because they share the factorizations. Throws what alps throws, with the layers' names in
// front.
void prune_by_alps(StageState& stage, const std::vector<AlpsLayer>& layers, double damping, const AlpsOptions& options,
                   const ResolveOptions& resolving);

// Does the same as keep_pruned, after solving the kept weights again on the stage's H (prune/resolve.h) where the
// options ask for it. Throws what resolve throws.
void prune_layer(StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer);

}  // namespace pare
