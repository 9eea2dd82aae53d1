// `sparsegpt:` what is pruned is chosen by what it costs once the kept weights have made up for it.
#include "prune/sparsegpt.h"

#include <chrono>

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "prune/alps.h"
#include "prune/magnitude.h"
#include "runtime/system/progress.h"

namespace pare {
namespace {

PrunedWeight sweep(StageState& stage, const SparseGptPass& pass, LayerState& layer) {
  GptqOptions options;
  options.damping = pass.damping;
  options.act_order = ActOrder::none;
  const GptqFactor& factor = stage.factor(options);
  ColumnMask mask;
  mask.pattern = pass.pattern();
  if (mask.pattern.is_dense()) mask.ratio = pass.pruned_share();
  SparseGptResult result = sparsegpt(layer.weight_OI, factor, mask, pass.block_size);
  layer.record.damping = result.events.damping_used;
  list_events(result.events, pass.damping, "Wanda's scores", layer.record.events);
  return {result.weight_OI, result.kept_OI};
}

}  // namespace

std::optional<InputScaling> apply_sparsegpt(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<SparseGptPass>(layers);
  if (stage.is_unseen() || shared.chooser == MaskChooser::sweep) {
    for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
      const auto& pass = static_cast<const SparseGptPass&>(options);
      if (stage.is_unseen()) note_unseen(layer);
      prune_layer(stage, pass,
                  stage.is_unseen() ? magnitude(layer.weight_OI, rule_of(pass)) : sweep(stage, pass, layer), layer);
    });
    return std::nullopt;
  }
  // All layers at once: they share the factorizations.
  const auto start = std::chrono::steady_clock::now();
  std::vector<at::Tensor> weights_OI;
  std::vector<KeepRule> rules;
  for (const SteppedLayer& layer : layers.layers) {
    weights_OI.push_back(layer.state->weight_OI);
    rules.push_back(rule_of(static_cast<const SparseGptPass&>(*layer.options)));
  }
  std::vector<AlpsResult> chosen =
      alps(weights_OI, rules, stage.normalized(shared.damping), shared.alps, shared.resolve);
  const double seconds = seconds_since(start) / static_cast<double>(layers.layers.size());
  size_t next = 0;
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    keep_pruned(stage, static_cast<const SparseGptPass&>(options), std::move(chosen[next++].pruned), layer);
    layer.record.damping = shared.damping;
    layer.record.seconds += seconds;
  });
  return std::nullopt;
}

}  // namespace pare
