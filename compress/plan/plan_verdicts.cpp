#include "compress/plan/plan_verdicts.h"

#include <optional>

namespace pare::compress {
namespace {

runtime::JudgedModel judged(const RunPlan& plan, bool source_drops_inputs) {
  runtime::JudgedModel model;
  model.has_coded_tables = !plan.tables.empty();
  model.drops_inputs = source_drops_inputs;
  for (const auto& layers : plan.blocks) {
    std::vector<runtime::JudgedLayer>& block = model.blocks.emplace_back();
    for (const LayerPlan& layer : layers) {
      const bool is_stored = (layer.is_compressed() || layer.is_taken_over) && !layer.scheme.is_plain();
      block.push_back({layer.linear, layer.stage, is_stored ? std::optional(layer.scheme) : std::nullopt});
      model.drops_inputs = model.drops_inputs || layer.step(PassKind::drops_inputs) != nullptr;
    }
  }
  return model;
}

}  // namespace

std::vector<EngineVerdict> judge_engines(const RunPlan& plan, const runtime::ModelDescription& model,
                                         bool source_drops_inputs) {
  return runtime::judge_engines(judged(plan, source_drops_inputs), model);
}

std::vector<EngineVerdict> judge_encoder_engines(const RunPlan& plan, const runtime::EncoderDescription& model) {
  return runtime::judge_encoder_engines(judged(plan, false), model);
}

}  // namespace pare::compress
