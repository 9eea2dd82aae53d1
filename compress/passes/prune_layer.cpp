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

bool has_zeros_for(const LayerState& layer, const KeepRule& rule) {
  if (!layer.sparsity) return false;
  const at::Tensor& kept_OI = layer.sparsity->kept_OI;
  if (const auto* pattern = std::get_if<SparsePattern>(&rule)) return has_pattern(kept_OI, *pattern);
  if (const auto* of_layer = std::get_if<KeepOfLayer>(&rule)) {
    return kept_OI.sum().item<int64_t>() <= num_kept_of(kept_OI.numel(), of_layer->ratio);
  }
  if (const auto* of_rows = std::get_if<KeepOfRows>(&rule)) {
    return kept_OI.sum(1).max().item<int64_t>() <= num_kept_of(kept_OI.size(1), of_rows->ratio);
  }
  return false;  // a threshold fixes the number of kept weights only over all layers together
}

PrunedWeight pruned_beside_source(const LayerState& layer, const KeepRule& rule,
                                  const std::function<PrunedWeight()>& choose) {
  if (has_zeros_for(layer, rule)) return {layer.weight_OI.clone(), layer.sparsity->kept_OI};
  PrunedWeight pruned = choose();
  if (!layer.sparsity) return pruned;
  const at::Tensor kept_OI = pruned.kept_OI.logical_and(layer.sparsity->kept_OI);
  return {masked(pruned.weight_OI, kept_OI), kept_OI};
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
  std::vector<const AlpsLayer*> open;
  std::vector<at::Tensor> weights_OI, allowed_OI;
  std::vector<KeepRule> rules;
  for (const AlpsLayer& each : layers) {
    if (has_zeros_for(*each.layer, each.rule)) {
      const at::Tensor& kept_OI = each.layer->sparsity->kept_OI;
      const ResolveResult solved = resolve(each.layer->target_OI, each.layer->weight_OI, kept_OI,
                                           stage.normalized(resolving.damping), resolving);
      keep_pruned(stage, each.pattern, {solved.weight_OI, kept_OI}, *each.layer);
      continue;
    }
    open.push_back(&each);
    weights_OI.push_back(each.layer->weight_OI);
    allowed_OI.push_back(kept_of(*each.layer));
    rules.push_back(each.rule);
  }
  if (!open.empty()) {
    std::vector<AlpsResult> chosen = alps(weights_OI, rules, stage.normalized(damping), options, resolving, allowed_OI);
    for (size_t i = 0; i < open.size(); ++i) {
      keep_pruned(stage, open[i]->pattern, std::move(chosen[i].pruned), *open[i]->layer);
      open[i]->layer->record.damping = damping;
    }
  }
  const double seconds = seconds_since(start) / static_cast<double>(layers.size());
  for (const AlpsLayer& each : layers) each.layer->record.seconds += seconds;
}

void keep_pruned(const StageState& stage, const SparsePattern& pattern, PrunedWeight pruned, LayerState& layer) {
  const at::Tensor& hessian_II = stage.statistics.hessian_II;
  layer.weight_OI = pruned.weight_OI.contiguous();
  // The pattern of a source still holds after a ratio has pruned more of its weights.
  const bool keeps_pattern = pattern.is_dense() && layer.sparsity;
  layer.sparsity = Sparsity{keeps_pattern ? layer.sparsity->pattern : pattern, pruned.kept_OI};
  layer.stored = OwnedWeight{};
  if (hessian_II.defined()) {
    measure_error_with_hessian(hessian_II, layer);
  } else {
    measure_error(stage.statistics.hessian_diagonal_I, layer);
  }
}

}  // namespace pare
