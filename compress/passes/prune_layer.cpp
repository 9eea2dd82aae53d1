#include "compress/passes/prune_layer.h"

#include "prune/resolve.h"

namespace pare {

void note_unseen(LayerState& layer) {
  layer.record.events.push_back("no calibration token was seen: pruned by magnitude");
}

KeepRule rule_of(const PrunePass& pass) {
  if (const SparsePattern pattern = pass.pattern(); !pattern.is_dense()) return pattern;
  switch (pass.sparsity.allocation) {
    case Allocation::layer:
      return KeepOfLayer{pass.pruned_share()};
    case Allocation::global:
      return KeepAbove{static_cast<float>(pass.share.threshold), pass.share.num_equal};
    case Allocation::row:
    case Allocation::owl:
      break;
  }
  return KeepOfRows{pass.pruned_share()};
}

void prune_layer(StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer) {
  if (pass.resolves() && !stage.is_unseen()) {
    pruned.weight_OI =
        resolve(layer.target_OI, pruned.weight_OI, pruned.kept_OI, stage.normalized(pass.resolve.damping), pass.resolve)
            .weight_OI;
  }
  keep_pruned(stage, pass, std::move(pruned), layer);
}

void keep_pruned(const StageState& stage, const PrunePass& pass, PrunedWeight pruned, LayerState& layer) {
  const at::Tensor& hessian_II = stage.statistics.hessian_II;
  layer.weight_OI = pruned.weight_OI.contiguous();
  layer.sparsity = Sparsity{pass.pattern(), pruned.kept_OI};
  layer.stored = OwnedWeight{};
  if (hessian_II.defined()) {
    measure_error_with_hessian(hessian_II, layer);
  } else {
    measure_error(stage.statistics.hessian_diagonal_I, layer);
  }
}

}  // namespace pare
