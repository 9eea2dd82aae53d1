// Functions that the passes that prune share.
#pragma once

#include <functional>

#include "compress/passes/stage_state.h"
#include "compress/recipe/prune_options.h"
#include "prune/mask.h"

namespace pare::compress {

// Returns the rule by which the pass keeps a layer's weights.
prune::KeepRule rule_of(const PrunePass& pass);

// Adds the event that magnitudes choose, because the stage has seen no token.
void note_unseen(LayerState& layer);

// Returns whether the zeros of the source that the layer keeps are as many as the rule asks for, so that nothing is
// left to choose.
bool has_zeros_for(const LayerState& layer, const prune::KeepRule& rule);
// Returns the weight that `choose` makes, pruned also where the source is. Where the source's zeros are enough, returns
// the weight as it is.
prune::PrunedWeight pruned_beside_source(const LayerState& layer, const prune::KeepRule& rule,
                                         const std::function<prune::PrunedWeight()>& choose);

// Gives the layer the pruned weight and its mask, and measures the error.
void keep_pruned(const StageState& stage, const runtime::SparsePattern& pattern, prune::PrunedWeight pruned,
                 LayerState& layer);

// A layer whose mask is chosen together with its kept weights (prune/alps.h).
struct AlpsLayer {
  LayerState* layer = nullptr;
  prune::KeepRule rule;
  runtime::SparsePattern pattern;
};
// Prunes all layers at once, because they share the factorizations. Throws what alps throws, with the layers' names in
// front.
void prune_by_alps(StageState& stage, const std::vector<AlpsLayer>& layers, double damping,
                   const prune::AlpsOptions& options, const prune::ResolveOptions& resolving);

// Does the same as keep_pruned, after solving the kept weights again on the stage's H (prune/resolve.h) where the
// options ask for it. Throws what resolve throws.
void prune_layer(StageState& stage, const PrunePass& pass, prune::PrunedWeight pruned, LayerState& layer);

}  // namespace pare::compress
