#include "compress/passes/prune_layer.h"

#include <chrono>

#include "prune/alps.h"
#include "prune/resolve.h"
#include "runtime/system/progress.h"

namespace pare::compress {

void note_unseen(LayerState& layer) {
  layer.record.events.push_back("no calibration token was seen: pruned by magnitude");
}

prune::KeepRule rule_of(const PrunePass& pass) {
  if (const runtime::SparsePattern pattern = pass.pattern(); !pattern.is_dense()) return pattern;
  switch (pass.sparsity.allocation) {
    case prune::Allocation::layer:
      return prune::KeepOfLayer{pass.pruned_share()};
    case prune::Allocation::global:
      return prune::KeepAbove{static_cast<float>(pass.share.threshold), pass.share.num_equal};
    case prune::Allocation::row:
    case prune::Allocation::owl:
      break;
  }
  return prune::KeepOfRows{pass.pruned_share()};
}

bool has_zeros_for(const LayerState& layer, const prune::KeepRule& rule) {
  if (!layer.sparsity) return false;
  const at::Tensor& kept_OI = layer.sparsity->kept_OI;
  if (const auto* pattern = std::get_if<runtime::SparsePattern>(&rule)) return prune::has_pattern(kept_OI, *pattern);
  if (const auto* of_layer = std::get_if<prune::KeepOfLayer>(&rule)) {
    return kept_OI.sum().item<int64_t>() <= prune::num_kept_of(kept_OI.numel(), of_layer->ratio);
  }
  if (const auto* of_rows = std::get_if<prune::KeepOfRows>(&rule)) {
    return kept_OI.sum(1).max().item<int64_t>() <= prune::num_kept_of(kept_OI.size(1), of_rows->ratio);
  }
  return false;  // a threshold fixes the number of kept weights only over all layers together
}

prune::PrunedWeight pruned_beside_source(const LayerState& layer, const prune::KeepRule& rule,
                                         const std::function<prune::PrunedWeight()>& choose) {
  if (has_zeros_for(layer, rule)) return {layer.weight_OI.clone(), layer.sparsity->kept_OI};
  prune::PrunedWeight pruned = choose();
  if (!layer.sparsity) return pruned;
  const at::Tensor kept_OI = pruned.kept_OI.logical_and(layer.sparsity->kept_OI);
  return {prune::masked(pruned.weight_OI, kept_OI), kept_OI};
}

void prune_layer(StageState& stage, const PrunePass& pass, prune::PrunedWeight pruned, LayerState& layer) {
  if (pass.resolves() && !stage.is_unseen()) {
    pruned.weight_OI = prune::resolve(layer.target_OI, pruned.weight_OI, pruned.kept_OI,
                                      stage.normalized(pass.resolve.damping), pass.resolve)
                           .weight_OI;
  }
  keep_pruned(stage, pass.pattern(), std::move(pruned), layer);
}

void prune_by_alps(StageState& stage, const std::vector<AlpsLayer>& layers, double damping,
                   const prune::AlpsOptions& options, const prune::ResolveOptions& resolving) {
  if (layers.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  std::vector<const AlpsLayer*> open;
  std::vector<at::Tensor> weights_OI, allowed_OI;
  std::vector<prune::KeepRule> rules;
  for (const AlpsLayer& each : layers) {
    if (has_zeros_for(*each.layer, each.rule)) {
      const at::Tensor& kept_OI = each.layer->sparsity->kept_OI;
      const prune::ResolveResult solved = prune::resolve(each.layer->target_OI, each.layer->weight_OI, kept_OI,
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
    std::vector<prune::AlpsResult> chosen =
        prune::alps(weights_OI, rules, stage.normalized(damping), options, resolving, allowed_OI);
    for (size_t i = 0; i < open.size(); ++i) {
      keep_pruned(stage, open[i]->pattern, std::move(chosen[i].pruned), *open[i]->layer);
      open[i]->layer->record.damping = damping;
    }
  }
  const double seconds = runtime::seconds_since(start) / static_cast<double>(layers.size());
  for (const AlpsLayer& each : layers) each.layer->record.seconds += seconds;
}

void keep_pruned(const StageState& stage, const runtime::SparsePattern& pattern, prune::PrunedWeight pruned,
                 LayerState& layer) {
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

}  // namespace pare::compress
