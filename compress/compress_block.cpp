#include "compress/compress_block.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "quant/awq.h"
#include "runtime/interrupt.h"

namespace pare {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<const PlannedLayer*> compressed_layers(const std::vector<PlannedLayer>& layers, Stage stage) {
  std::vector<const PlannedLayer*> found;
  for (const PlannedLayer& layer : layers) {
    if (layer.stage == stage && layer.options) found.push_back(&layer);
  }
  return found;
}

// The first layer that GPTQ rounds speaks for all: damping and order are the pass's.
std::optional<GptqFactor> factor_of(const std::vector<const PlannedLayer*>& layers, const at::Tensor& hessian_II) {
  for (const PlannedLayer* layer : layers) {
    if (layer->options->method != Method::gptq) continue;
    try {
      return factorize(hessian_II, layer->options->gptq);
    } catch (const std::invalid_argument& error) {
      throw UnusableInput(layer->linear.name + ": " + error.what());
    }
  }
  return std::nullopt;
}

std::string describe(const AwqResult& result) {
  char text[96];
  std::snprintf(text, sizeof(text), "awq a=%.2f%s, cost x %.4f", result.exponent, result.duo_scaling ? " duo" : "",
                result.cost_before > 0.0 ? result.cost_after / result.cost_before : 1.0);
  return text;
}

// Searches the scales of the stage's input and folds them. Afterwards block, walk and statistics are those of the
// divided input. Returns what was done, in words.
std::string scale_stage(const PlannedRun& plan, Stage stage, const std::vector<const PlannedLayer*>& layers,
                        const std::optional<GptqFactor>& factor, const Checkpoint& checkpoint,
                        LayerStatistics& statistics, BlockWalk* walk, BlockWork& work) {
  AwqStage awq;
  for (const PlannedLayer* layer : layers) awq.weights_OI.push_back(work.block.weight(stage, layer->index));
  awq.hessian_II = statistics.hessian_II;
  awq.mean_abs_I = statistics.mean_abs_I;
  if (factor) awq.conditional_I = factor->conditional_I;
  AwqOptions options = *plan.scaling;
  if (folds_into_linear(stage)) {
    options.powers_of_two = true;
    awq.producer_I = producer_channels(checkpoint.description(), stage);
  }
  const AwqResult result = search_awq_scales(awq, options, layers.front()->options->gptq.grid);
  if (!result.scaled) return "awq: s = 1";

  const at::Tensor wanted_I = result.scales_I.contiguous();
  std::vector<float> used =
      fold(checkpoint, stage, {wanted_I.const_data_ptr<float>(), static_cast<size_t>(wanted_I.numel())}, work.block,
           work.layers, work.changed);
  if (walk != nullptr) walk->divide_inputs(stage, used);
  const at::Tensor used_I = at::from_blob(used.data(), {static_cast<int64_t>(used.size())}, at::kFloat);
  for (const PlannedLayer* layer : layers) {
    const at::Tensor weight_OI = work.block.weight(stage, layer->index);
    weight_OI.copy_(scale_columns(weight_OI, used_I));
  }
  statistics.hessian_II = scale_hessian(statistics.hessian_II, used_I);
  statistics.hessian_diagonal_I = statistics.hessian_II.diagonal().contiguous();
  for (at::Tensor* range : {&statistics.min_I, &statistics.max_I, &statistics.mean_abs_I, &statistics.sample_RI}) {
    *range = range->div(used_I);
  }
  return describe(result);
}

}  // namespace

void compress_stage(const PlannedRun& plan, int64_t block_index, Stage stage, const Checkpoint& checkpoint,
                    LayerStatistics statistics, BlockWalk* walk, BlockWork& work) {
  const std::vector<const PlannedLayer*> layers =
      compressed_layers(plan.blocks[static_cast<size_t>(block_index)], stage);
  if (layers.empty()) return;
  throw_if_interrupted();
  auto start = Clock::now();
  std::optional<GptqFactor> factor = factor_of(layers, statistics.hessian_II);
  std::string scaling;
  if (plan.is_scaled(block_index, stage)) {
    const at::Tensor before_II = statistics.hessian_II;
    scaling = scale_stage(plan, stage, layers, factor, checkpoint, statistics, walk, work);
    if (!before_II.is_same(statistics.hessian_II)) factor = factor_of(layers, statistics.hessian_II);
  }
  for (const PlannedLayer* layer : layers) {
    throw_if_interrupted();
    CompressedLayer compressed = compress_layer(*layer, work.block.weight(stage, layer->index), statistics, factor);
    work.block.set_weight(stage, layer->index, dequantize(compressed.weight));
    compressed.record.scaling = scaling;
    compressed.record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    work.layers.push_back(std::move(compressed));
    start = Clock::now();
  }
}

std::vector<LayerRecord> commit_block(int64_t part, BlockWork work, Artifact& artifact) {
  std::vector<StreamedTensor> tensors;
  std::vector<LayerRecord> records;
  for (CompressedLayer& layer : work.layers) {
    layer.record.sha256 = content_hash(layer.weight);
    Artifact::append_packed(layer.weight, layer.record.name, tensors);
    records.push_back(std::move(layer.record));
  }
  for (OwnedTensor& tensor : work.changed) Artifact::append(std::move(tensor), tensors);
  artifact.commit(part, std::move(tensors), records);
  return records;
}

void restore_block(const std::vector<PlannedLayer>& layers, int64_t part, const Artifact& artifact,
                   const Checkpoint& checkpoint, DecoderBlock& block) {
  for (const LayerRecord& record : *artifact.committed(part)) {
    const auto layer = std::find_if(layers.begin(), layers.end(),
                                    [&](const PlannedLayer& planned) { return planned.linear.name == record.name; });
    if (layer == layers.end()) continue;
    block.set_weight(layer->stage, layer->index, dequantize(artifact.read_weight(part, record)));
  }
  for (const OwnedTensor& tensor : artifact.read_changed(part, checkpoint)) restore_changed(tensor, block);
}

}  // namespace pare
