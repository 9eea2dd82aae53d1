// `gguf:` rounds weights to blocks of GGUF column by column, and later ones make up for the errors of earlier ones.
#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"
#include "quant/gguf/gguf_blocks.h"

namespace pare::compress {

std::optional<InputScaling> apply_gguf(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<GgufPass>(layers);
  set_input({}, runtime::DType::F16, stage);
  const quant::GptqFactor& factor = stage.factor(shared.gptq);
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const GgufPass&>(options);
    const quant::BlockOptions blocks{.type = static_cast<runtime::GgufType>(pass.type->gguf_type),
                                     .block_size = pass.gptq.block_size,
                                     .damping = pass.gptq.damping,
                                     .act_order = pass.gptq.act_order,
                                     .sweeps = pass.refine.sweeps,
                                     .sweep_damping = pass.refine.damping};
    quant::GptqResult rounded = quant::gptq_to_blocks(layer.weight_OI, layer.target_OI, factor, blocks, kept_of(layer));
    layer.stored = std::move(rounded.weight);
    use_stored_weight(stage, layer);
    layer.record.error_measure = "hessian";
    layer.record.relative_error = rounded.relative_error;
    layer.record.act_order = runtime::StoredActOrder::weight;
    layer.record.damping = rounded.events.damping_used;
    list_events(rounded.events, pass.gptq.damping, "rounding", layer.record.events);
  });
  return std::nullopt;
}

}  // namespace pare::compress
