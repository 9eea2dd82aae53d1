#include "compress/passes/prune_layer.h"

#include <chrono>

#include "prune/alps.h"
#include "prune/resolve.h"
#include "runtime/system/progress.h"

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
  keep_pruned(stage, pass.pattern(), std::move(pruned), layer);
}

void prune_by_alps(StageState& stage, const std::vector<AlpsLayer>& layers, double damping, const AlpsOptions& options,
                   const ResolveOptions& resolving) {
  if (layers.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  std::vector<at::Tensor> weights_OI;
  std::vector<KeepRule> rules;
  for (const AlpsLayer& each : layers) {
    weights_OI.push_back(each.layer->weight_OI);
    rules.push_back(each.rule);
  }
  std::vector<AlpsResult> chosen = alps(weights_OI, rules, stage.normalized(damping), options, resolving);
  for (size_t i = 0; i < layers.size(); ++i) {
    keep_pruned(stage, layers[i].pattern, std::move(chosen[i].pruned), *layers[i].layer);
    layers[i].layer->record.damping = damping;
  }
  const double seconds = seconds_since(start) / static_cast<double>(layers.size());
  for (const AlpsLayer& each : layers) each.layer->record.seconds += seconds;
}

void keep_pruned(const StageState& stage, const SparsePattern& pattern, PrunedWeight pruned, LayerState& layer) {
  const at::Tensor& hessian_II = stage.statistics.hessian_II;
  layer.weight_OI = pruned.weight_OI.contiguous();
  layer.sparsity = Sparsity{pattern, pruned.kept_OI};
  layer.stored = OwnedWeight{};
  if (hessian_II.defined()) {
    measure_error_with_hessian(hessian_II, layer);
  } else {
    measure_error(stage.statistics.hessian_diagonal_I, layer);
  }
}

}  // namespace pare
