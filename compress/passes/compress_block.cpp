#include "compress/passes/compress_block.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "quant/awq.h"
#include "quant/smoothquant.h"

namespace pare {

std::vector<const PlannedLayer*> compressed_layers(const std::vector<PlannedLayer>& layers, Stage stage) {
  std::vector<const PlannedLayer*> found;
  for (const PlannedLayer& layer : layers) {
    if (layer.stage == stage && layer.options) found.push_back(&layer);
  }
  return found;
}

namespace {

// What a scaling pass found for a stage's input; scales_I undefined: s = 1.
struct FoundScales {
  at::Tensor scales_I;
  std::string what;  // in words
};

FoundScales search_awq(const PlannedRun& plan, Stage stage, const std::vector<const PlannedLayer*>& layers,
                       const std::optional<GptqFactor>& factor, const ModelDescription& model,
                       const LayerStatistics& statistics, const DecoderBlock& block) {
  AwqStage awq;
  for (const PlannedLayer* layer : layers) awq.weights_OI.push_back(block.weight(stage, layer->index));
  awq.hessian_II = statistics.hessian_II;
  awq.mean_abs_I = statistics.mean_abs_I;
  if (factor) awq.conditional_I = factor->conditional_I;
  AwqOptions options = std::get<AwqOptions>(*plan.scaling);
  if (folds_into_linear(stage)) {
    options.powers_of_two = true;
    awq.producer_I = producer_channels(model, block.description(), stage);
  }
  const AwqResult result = search_awq_scales(awq, options, layers.front()->options->gptq.grid);
  if (!result.scaled) return {{}, "awq: s = 1"};
  char text[96];
  std::snprintf(text, sizeof(text), "awq a=%.2f%s, cost x %.4f", result.exponent, result.duo_scaling ? " duo" : "",
                result.cost_before > 0.0 ? result.cost_after / result.cost_before : 1.0);
  return {result.scales_I.contiguous(), text};
}

// The sampled rows count as one sequence: a range over a sequence is then that of all of them.
FoundScales search_smoothquant(const PlannedRun& plan, Stage stage, const std::vector<const PlannedLayer*>& layers,
                               const ModelDescription& model, const LayerStatistics& statistics,
                               const DecoderBlock& block) {
  const LayerOptions& layer_options = *layers.front()->options;
  SmoothInput input{.absmax_I = absmax(statistics), .rows_RI = statistics.sample_RI, .weights_OI = {}};
  for (const PlannedLayer* layer : layers) input.weights_OI.push_back(block.weight(stage, layer->index));
  SmoothQuantOptions options = std::get<SmoothQuantOptions>(*plan.scaling);
  options.grid = layer_options.gptq.grid;
  // With 8 bits a weight's scale hardly matters beside its input's: searching it for every candidate is not worth it.
  if (options.grid.bits == 8) options.grid.scales = ScaleSearch::minmax;
  if (folds_into_linear(stage)) {
    options.power_of_two = true;
    input.producer_I = producer_channels(model, block.description(), stage);
  }
  const auto round_input = [&](at::Tensor& x_RI, const at::Tensor& scales_I) {
    LayerStatistics scaled;
    scaled.min_I = statistics.min_I.div(scales_I);
    scaled.max_I = statistics.max_I.div(scales_I);
    const InputFormat format = resolve_input(layer_options, scaled).format;
    fake_quantize(format, {x_RI.data_ptr<float>(), static_cast<size_t>(x_RI.numel())}, x_RI.size(1));
  };
  const Smoothing result = smooth(input, round_input, options);
  if (!result.chosen.alpha) return {{}, "smoothquant: s = 1"};
  char text[96];
  std::snprintf(text, sizeof(text), "smoothquant alpha=%.2f, output error x %.4f", *result.chosen.alpha,
                result.plain_error > 0.0 ? result.chosen.error / result.plain_error : 1.0);
  return {result.scales_I.contiguous(), text};
}

// What the expert was calibrated on, where that was too little. A range that only calibration tells cannot be made up.
void note_tokens(Stage stage, const LayerStatistics& statistics, const std::vector<const PlannedLayer*>& layers,
                 BlockWork& work) {
  const LinearDescription& linear = layers.front()->linear;
  if (!is_starved(statistics.num_tokens, linear.num_in)) return;
  const LayerOptions& options = *layers.front()->options;
  const bool needs_range =
      options.input.range == InputRange::fixed ||
      (options.method == Method::llm_int8 &&
       (options.llm_int8.time == OutlierTime::fixed || options.llm_int8.measure == OutlierMeasure::median_absmax));
  if (statistics.num_tokens == 0 && needs_range) {
    throw UnusableInput(linear.name +
                        ": no calibration token goes to this expert, so that the range of its input is unknown: "
                        "calibrate on more text, or with 'calibration: {experts: all}'");
  }
  work.starved.push_back({stage.expert, statistics.num_tokens, linear.num_in, work.layers.size()});
}

// Searches the scales of the stage's input and folds them. Afterwards block, walk and statistics are those of the
// divided input. Returns what was done, in words.
std::string scale_stage(const PlannedRun& plan, Stage stage, const std::vector<const PlannedLayer*>& layers,
                        const std::optional<GptqFactor>& factor, const Checkpoint& checkpoint,
                        LayerStatistics& statistics, BlockWalk* walk, BlockWork& work) {
  const ModelDescription& model = checkpoint.description();
  const FoundScales found = std::holds_alternative<AwqOptions>(*plan.scaling)
                                ? search_awq(plan, stage, layers, factor, model, statistics, work.block)
                                : search_smoothquant(plan, stage, layers, model, statistics, work.block);
  if (!found.scales_I.defined()) return found.what;

  std::vector<float> used =
      fold(checkpoint, stage, {found.scales_I.const_data_ptr<float>(), static_cast<size_t>(found.scales_I.numel())},
           work.block, work.layers, work.changed);
  if (walk != nullptr) walk->divide_inputs(stage, used);
  const at::Tensor used_I = at::from_blob(used.data(), {static_cast<int64_t>(used.size())}, at::kFloat);
  for (const PlannedLayer* layer : layers) {
    const at::Tensor weight_OI = work.block.weight(stage, layer->index);
    weight_OI.copy_(scale_columns(weight_OI, used_I));
  }
  if (statistics.hessian_II.defined()) {
    statistics.hessian_II = scale_hessian(statistics.hessian_II, used_I);
    statistics.hessian_diagonal_I = statistics.hessian_II.diagonal().contiguous();
  } else {
    statistics.hessian_diagonal_I = statistics.hessian_diagonal_I.div(used_I).div_(used_I);
  }
  for (at::Tensor* range : {&statistics.min_I, &statistics.max_I, &statistics.mean_abs_I, &statistics.sample_RI}) {
    *range = range->div(used_I);
  }
  return found.what;
}

}  // namespace

void compress_stage(const PlannedRun& plan, int64_t block_index, Stage stage, const Checkpoint& checkpoint,
                    LayerStatistics statistics, BlockWalk* walk, BlockWork& work) {
  const std::vector<const PlannedLayer*> layers =
      compressed_layers(plan.blocks[static_cast<size_t>(block_index)], stage);
  if (layers.empty()) return;
  throw_if_interrupted();
  const auto start = std::chrono::steady_clock::now();
  std::optional<GptqFactor> factor;
  std::string scaling;
  const bool is_unseen = statistics.min_I.defined() && statistics.num_tokens == 0;
  if (plan.is_scaled(block_index, stage) && is_unseen) {
    scaling = "s = 1: no token was seen";
  } else if (plan.is_scaled(block_index, stage)) {
    if (std::holds_alternative<AwqOptions>(*plan.scaling)) factor = factor_of(layers, statistics.hessian_II);
    const at::Tensor before_II = statistics.hessian_II;
    scaling = scale_stage(plan, stage, layers, factor, checkpoint, statistics, walk, work);
    if (!before_II.is_same(statistics.hessian_II)) factor.reset();
  }
  if (!factor) factor = factor_of(layers, statistics.hessian_II);
  if (stage.expert != Stage::kNoExpert && statistics.min_I.defined()) {
    note_tokens(stage, statistics, layers, work);
  }
  compress_layers(layers, statistics, factor, scaling, start, work.block, work.layers);
}

void report_starved(BlockWork& work) {
  if (work.starved.empty()) return;
  std::string experts;
  int64_t num_experts = 0;
  for (size_t i = 0; i < work.starved.size(); ++i) {
    const StarvedExpert& starved = work.starved[i];
    if (i > 0 && work.starved[i - 1].expert == starved.expert) continue;  // its other stage: the same tokens
    ++num_experts;
    experts += (experts.empty() ? "" : ", ") + std::to_string(starved.expert) + " (" +
               std::to_string(starved.num_tokens) + " of " + std::to_string(starved.width) +
               (starved.num_tokens == 0 ? ": rounded to nearest)" : ")");
  }
  work.layers[work.starved.front().first_layer].record.events.push_back(
      std::to_string(num_experts) + " of " + std::to_string(work.block.description().experts.size()) +
      " experts of this block are starved: they saw fewer calibration tokens than their inputs have channels: " +
      experts + "; calibrate on more text, or with 'calibration: {experts: all}'");
}

std::vector<LayerRecord> commit_layers(int64_t part, std::vector<CompressedLayer> layers,
                                       std::vector<OwnedTensor> changed, Artifact& artifact) {
  std::vector<StreamedTensor> tensors;
  std::vector<LayerRecord> records;
  for (CompressedLayer& layer : layers) {
    layer.record.sha256 = content_hash(layer.stored);
    Artifact::append_packed(layer.stored, layer.record, tensors);
    records.push_back(std::move(layer.record));
  }
  for (OwnedTensor& tensor : changed) Artifact::append(std::move(tensor), tensors);
  artifact.commit(part, std::move(tensors), records);
  return records;
}

std::vector<LayerRecord> commit_block(int64_t part, BlockWork work, Artifact& artifact) {
  return commit_layers(part, std::move(work.layers), std::move(work.changed), artifact);
}

RemainingBlocks remaining_blocks(const PlannedRun& plan, const Artifact& artifact) {
  RemainingBlocks remaining;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const bool is_committed = artifact.committed(part_of_block(static_cast<int64_t>(b))) != nullptr;
    const bool is_untouched = std::none_of(plan.blocks[b].begin(), plan.blocks[b].end(),
                                           [](const PlannedLayer& layer) { return layer.options.has_value(); });
    remaining.num_committed += is_committed;
    remaining.is_done.push_back(is_committed || is_untouched);
    if (!remaining.is_done.back()) remaining.last = static_cast<int64_t>(b) + 1;
  }
  return remaining;
}

void restore_block(const std::vector<PlannedLayer>& layers, int64_t part, const Artifact& artifact,
                   const Checkpoint& checkpoint, DecoderBlock& block) {
  restore_layers(layers, part, artifact, block);
  for (const OwnedTensor& tensor : artifact.read_changed(part, checkpoint)) restore_changed(tensor, block);
}

}  // namespace pare
