#include "compress/passes/compress_stage.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "compress/artifact/checked_file.h"
#include "compress/passes/fit_stage.h"
#include "compress/passes/fold.h"
#include "quant/awq.h"
#include "quant/smoothquant.h"
#include "runtime/containers/container_table.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

std::string count_text(int64_t count, const char* what) {
  return std::to_string(count) + " " + what;
}

// The mean square of smaller inputs may leave the range of float32, in which H is stored, whatever the number of
// tokens.
constexpr double kSmallInput = 1e-15;

// Returns events about the input itself. They are collected before any step, because a fold divides H by squares of its
// scales. What has left the range of float32 stays 0 however large the divided input is. A column that is dead in the
// tokens of H may fire in those that are held out.
std::vector<std::string> dead_column_events(const StageState& state) {
  const LayerStatistics& statistics = state.statistics;
  if (!statistics.hessian_diagonal_I.defined() || state.is_unseen()) return {};
  const at::Tensor& diagonal_I = statistics.hessian_diagonal_I;
  const at::Tensor absmax_I = absmax(statistics);
  const at::Tensor small_I = absmax_I.gt(0.0)
                                 .logical_and_(absmax_I.lt(kSmallInput))
                                 .logical_and_(diagonal_I.lt(std::numeric_limits<float>::min()));
  const int64_t num_small = small_I.sum().item<int64_t>();
  const int64_t num_dead = diagonal_I.eq(0).logical_and_(small_I.logical_not()).sum().item<int64_t>();
  std::vector<std::string> events;
  if (num_dead > 0) events.push_back(count_text(num_dead, "dead columns: inputs that are always 0"));
  if (num_small > 0) {
    events.push_back(count_text(num_small,
                                "columns whose inputs are too small: their squares leave the range of float32, and "
                                "the calibration takes them for 0; scale the weights that produce them"));
  }
  return events;
}

// Notes that the stage was calibrated on too few tokens for a Hessian of full rank. Throws UnusableInput where a range
// is needed that only calibration gives and no token came.
void note_tokens(StageState& state, BlockWork& work) {
  if (!state.statistics.min_I.defined()) return;
  const runtime::LinearDescription& linear = state.layers.front().plan->linear;
  const int64_t num_tokens = state.statistics.num_tokens;
  if (!is_starved(num_tokens, linear.num_in)) return;
  if (state.stage.expert == runtime::Stage::kNoExpert) {
    if (!state.statistics.hessian_II.defined()) return;
    state.layers.front().record.events.push_back(
        "calibrated on " + count_text(num_tokens, "tokens") + ", fewer than its " +
        count_text(linear.num_in, "inputs: H does not have full rank; calibrate on more text"));
    return;
  }
  const PassOptions* rounding = state.layers.front().plan->step(PassKind::rounds);
  if (num_tokens == 0 && rounding != nullptr && rounding->needs_range()) {
    throw UnusableInput(linear.name +
                        ": no calibration token goes to this expert, so the range of its input is unknown: "
                        "calibrate on more text, or with 'calibration: {experts: all}'");
  }
  work.starved.push_back({state.stage.expert, num_tokens, linear.num_in, work.layers.size()});
}

// Folds the scales into what produces the stage's input. Afterwards block, walk, statistics and weights are those of
// the divided input.
void fold_scales(const at::Tensor& scales_I, const runtime::Checkpoint& checkpoint, ModelWalk& walk, BlockWork& work,
                 StageState& state) {
  auto& block = dynamic_cast<DecoderBlock&>(work.block);  // an encoder's plan has no scaling step
  std::vector<float> used =
      fold(checkpoint, state.stage, {scales_I.const_data_ptr<float>(), static_cast<size_t>(scales_I.numel())}, block,
           work.layers, work.changed);
  walk.divide_inputs(state.stage, used);
  const at::Tensor used_I = at::from_blob(used.data(), {static_cast<int64_t>(used.size())}, at::kFloat);
  for (LayerState& layer : state.layers) {
    const bool is_shared = layer.target_OI.is_same(layer.weight_OI);
    layer.weight_OI.copy_(quant::scale_columns(layer.weight_OI, used_I));
    if (!is_shared) layer.target_OI.copy_(quant::scale_columns(layer.target_OI, used_I));
  }
  LayerStatistics& statistics = state.statistics;
  if (statistics.hessian_II.defined()) {
    statistics.hessian_II = quant::scale_hessian(statistics.hessian_II, used_I);
    statistics.hessian_diagonal_I = statistics.hessian_II.diagonal().contiguous();
  } else {
    statistics.hessian_diagonal_I = statistics.hessian_diagonal_I.div(used_I).div_(used_I);
  }
  for (at::Tensor* range : {&statistics.min_I, &statistics.max_I, &statistics.mean_abs_I, &statistics.sample_RI}) {
    *range = range->div(used_I);
  }
  state.forget_factor();
}

// Returns the error that rounding weight and input together causes in the outputs of the sampled rows.
double output_error(const StageState& state, const LayerState& layer) {
  const at::Tensor& sample_RI = state.statistics.sample_RI;
  at::Tensor rounded_RI = sample_RI.clone();
  runtime::fake_quantize(state.input, {rounded_RI.data_ptr<float>(), static_cast<size_t>(rounded_RI.numel())},
                         rounded_RI.size(1));
  return quant::relative_output_error(sample_RI, rounded_RI, layer.target_OI, layer.weight_OI);
}

// Returns a weight that is not codes, in the source's type.
runtime::OwnedTensor owned_tensor(const runtime::Checkpoint& checkpoint, const LayerState& layer) {
  const std::string name = layer.plan->linear.name + ".weight";
  const runtime::TensorLayout source = checkpoint.layout(name);
  runtime::OwnedTensor tensor{name, source.dtype, source.shape,
                              std::vector<std::byte>(static_cast<size_t>(source.num_bytes()))};
  const at::Tensor values_OI = layer.weight_OI.contiguous();
  runtime::convert_from_float(source.dtype, {values_OI.const_data_ptr<float>(), static_cast<size_t>(values_OI.numel())},
                              tensor.data);
  return tensor;
}

// Returns the layer in the form in which it is stored. From here on weight_OI is the weight that the walk uses.
CompressedLayer finish_layer(const runtime::Checkpoint& checkpoint, const StageState& state, LayerState& layer,
                             std::vector<runtime::OwnedTensor>& changed) {
  const LayerPlan& plan = *layer.plan;
  CompressedLayer result{stored_linear(state, layer), {}};
  if (plan.is_reconstructed()) result.kept_OI = kept_of(layer);
  result.stored.weight.pattern = plan.scheme.pattern;
  if (std::holds_alternative<OwnedWeight>(layer.stored)) {
    runtime::OwnedTensor tensor = owned_tensor(checkpoint, layer);
    runtime::convert_to_float(tensor.dtype, tensor.data,
                              {layer.weight_OI.data_ptr<float>(), static_cast<size_t>(layer.weight_OI.numel())});
    if (plan.scheme.pattern.is_dense()) {
      changed.push_back(std::move(tensor));
    } else {
      result.stored.dense_dtype = tensor.dtype;
      result.stored.dense_OI = std::move(tensor.data);
    }
  }
  LayerRecord& record = layer.record;
  if (layer.sparsity) {
    record.pattern = layer.sparsity->pattern;
    record.num_zeros = layer.weight_OI.eq(0.0).sum().item<int64_t>();
  }
  if (!state.input.keeps_values() && state.statistics.sample_RI.defined() && state.statistics.sample_RI.size(0) > 0) {
    record.output_error = output_error(state, layer);
  }
  if (!state.input_event.empty()) record.events.push_back(state.input_event);
  record.name = plan.linear.name;
  record.num_out = plan.linear.num_out;
  record.num_in = plan.linear.num_in;
  for (const Step& step : plan.steps) {
    const PassKind kind = step.options->kind();
    const bool names_method = kind != PassKind::drops_inputs || record.method.empty();
    if (scope_of(kind) == PassScope::stage && names_method) record.method = step.row->key;
  }
  record.sparsity_threshold = static_cast<double>(state.input.sparsity_threshold);
  record.scheme = plan.scheme;
  record.scheme.input = runtime::input_scheme(state.input);
  if (!record.is_plain()) runtime::container_format(record.scheme.container).adapt(result.stored, record.scheme);
  record.scale_dtype = result.stored.weight.scale_dtype;
  result.record = std::move(record);
  return result;
}

// Returns the hash of the stored layer, or of the tensor that replaces the source's for a weight that is not codes.
std::string hash_of(const CompressedLayer& layer, const std::vector<runtime::OwnedTensor>& changed) {
  if (layer.record.is_plain()) {
    for (const runtime::OwnedTensor& tensor : changed) {
      if (tensor.name == layer.record.name + ".weight") return runtime::sha256_hex(tensor.data);
    }
  }
  return content_hash(layer.stored);
}

// Of passes that need tokens, and that a survey of what rounding costs leaves out.
bool only_with_tokens(PassKind kind) {
  return kind == PassKind::scales_inputs || kind == PassKind::drops_inputs;
}

// Checks that every pruned weight is still zero after a later pass.
void check_zeros(std::string_view pass, const StageState& state) {
  for (const LayerState& layer : state.layers) {
    if (!layer.sparsity) continue;
    const at::Tensor pruned_OI = layer.sparsity->kept_OI.logical_not();
    if (layer.weight_OI.ne(0.0).logical_and_(pruned_OI).any().item<bool>()) {
      throw std::logic_error(layer.plan->linear.name + ": the pass '" + std::string(pass) +
                             "' gave a pruned weight a value");
    }
  }
}

}  // namespace

StageState make_stage(const std::vector<const LayerPlan*>& layers, const Block& block, LayerStatistics statistics) {
  StageState state;
  state.stage = layers.front()->stage;
  state.statistics = std::move(statistics);
  for (const LayerPlan* plan : layers) {
    LayerState& layer = state.layers.emplace_back();
    layer.plan = plan;
    layer.weight_OI = layer.target_OI = block.weight(plan->stage, plan->index);
    if (plan->kept_zeros) {
      layer.sparsity = Sparsity{*plan->kept_zeros, layer.weight_OI.ne(0.0), /*of_source=*/true};
    }
  }
  return state;
}

void apply_steps(StageState& state, const FoldScales& fold) {
  size_t last_pass = 0;
  for (const LayerState& layer : state.layers) last_pass = std::max(last_pass, layer.plan->steps.back().pass);
  for (size_t pass = 0; pass <= last_pass; ++pass) {
    SteppedLayers stepped;
    const PassRow* row = nullptr;
    for (LayerState& layer : state.layers) {
      for (const Step& step : layer.plan->steps) {
        if (step.pass != pass || scope_of(step.options->kind()) != PassScope::stage) continue;
        if (!fold && only_with_tokens(step.options->kind())) continue;
        row = step.row;
        stepped.layers.push_back({&layer, step.options.get()});
      }
    }
    if (row == nullptr) continue;
    runtime::throw_if_interrupted();
    const std::optional<InputScaling> scaling = row->apply(state, stepped);
    if (scaling && fold) fold(*scaling, state);
    check_zeros(row->key, state);
  }
}

void compress_stage(const RunPlan& plan, int64_t block_index, runtime::Stage stage,
                    const runtime::Checkpoint& checkpoint, LayerStatistics statistics, ModelWalk& walk,
                    BlockWork& work) {
  const std::vector<const LayerPlan*> layers = plan.stage_layers(block_index, stage);
  if (layers.empty()) return;
  StageState state = make_stage(layers, work.block, std::move(statistics));
  const auto* const block = dynamic_cast<const DecoderBlock*>(&work.block);
  state.scales_are_powers_of_two = block != nullptr && folds_powers_of_two(block->description(), stage);
  if (block != nullptr && runtime::folds_into_linear(stage)) {
    state.producer_I = producer_channels(checkpoint.description(), block->description(), stage);
    if (layers.front()->step(PassKind::scales_inputs) != nullptr) {
      state.scale_bounds = producer_bounds(checkpoint, stage, block->description(), work.layers, work.changed);
    }
  }
  note_tokens(state, work);
  const std::vector<std::string> dead_columns = dead_column_events(state);
  fit_to_original(state);
  const auto say = [&](const std::string& what) {
    for (LayerState& layer : state.layers) layer.record.scaling = what;
  };
  if (state.is_unseen() && layers.front()->step(PassKind::scales_inputs) != nullptr) {
    say("s = 1: no token was seen");
    apply_steps(state, nullptr);
  } else {
    apply_steps(state, [&](const InputScaling& scaling, StageState& scaled) {
      if (scaling.scales_I.defined()) fold_scales(scaling.scales_I, checkpoint, walk, work, scaled);
      say(scaling.what);
    });
  }
  for (LayerState& layer : state.layers) {
    layer.record.events.insert(layer.record.events.end(), dead_columns.begin(), dead_columns.end());
  }
  work.block.set_input_format(stage, state.input);
  for (LayerState& layer : state.layers) {
    CompressedLayer done = finish_layer(checkpoint, state, layer, work.changed);
    if (!std::holds_alternative<UnchangedWeight>(layer.stored)) {
      const at::Tensor values_OI = layer.weight_OI.contiguous();
      work.block.set_weight(stage, layer.plan->index,
                            {values_OI.const_data_ptr<float>(), static_cast<size_t>(values_OI.numel())});
    }
    work.layers.push_back(std::move(done));
  }
}

void report_starved(const std::vector<LayerPlan>& layers, BlockWork& work) {
  if (work.starved.empty()) return;
  std::string experts;
  int64_t num_starved = 0, num_experts = 0;
  for (const LayerPlan& layer : layers) num_experts = std::max(num_experts, layer.stage.expert + 1);
  for (size_t i = 0; i < work.starved.size(); ++i) {
    const StarvedExpert& starved = work.starved[i];
    if (i > 0 && work.starved[i - 1].expert == starved.expert) continue;  // its other stage has seen the same tokens
    ++num_starved;
    const bool is_rounded = std::any_of(layers.begin(), layers.end(), [&](const LayerPlan& layer) {
      return layer.stage.expert == starved.expert && layer.step(PassKind::rounds) != nullptr;
    });
    const std::string unseen = is_rounded ? ": rounded to nearest)" : ": pruned by magnitude)";
    experts += (experts.empty() ? "" : ", ") + std::to_string(starved.expert) + " (" +
               std::to_string(starved.num_tokens) + " of " + std::to_string(starved.width) +
               (starved.num_tokens == 0 ? unseen : ")");
  }
  work.layers[work.starved.front().first_layer].record.events.push_back(
      std::to_string(num_starved) + " of " + std::to_string(num_experts) +
      " experts of this block are starved: they saw fewer calibration tokens than their inputs have channels: " +
      experts + "; calibrate on more text, or with 'calibration: {experts: all}'");
}

std::vector<LayerRecord> commit_layers(int64_t part, std::vector<CompressedLayer> layers,
                                       std::vector<runtime::OwnedTensor> changed, Artifact& artifact) {
  std::vector<runtime::StreamedTensor> tensors;
  std::vector<LayerRecord> records;
  for (CompressedLayer& layer : layers) {
    layer.record.sha256 = hash_of(layer, changed);
    if (!layer.record.is_plain()) Artifact::append_packed(layer.stored, layer.record, tensors);
    records.push_back(std::move(layer.record));
  }
  for (runtime::OwnedTensor& tensor : changed) Artifact::append(std::move(tensor), tensors);
  artifact.commit(part, std::move(tensors), records);
  return records;
}

RemainingBlocks remaining_blocks(const RunPlan& plan, const Artifact& artifact) {
  RemainingBlocks remaining;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const bool is_committed = artifact.committed(part_of_block(static_cast<int64_t>(b))) != nullptr;
    const bool is_untouched = std::none_of(plan.blocks[b].begin(), plan.blocks[b].end(),
                                           [](const LayerPlan& layer) { return layer.is_compressed(); });
    remaining.num_committed += is_committed;
    remaining.is_done.push_back(is_committed || is_untouched);
    if (!remaining.is_done.back()) remaining.last = static_cast<int64_t>(b) + 1;
  }
  return remaining;
}

void restore_block(const std::vector<LayerPlan>& layers, int64_t part, const Artifact& artifact,
                   const runtime::Checkpoint& checkpoint, Block& block) {
  for (const LayerRecord& record : *artifact.committed(part)) {
    const auto layer = std::find_if(layers.begin(), layers.end(),
                                    [&](const LayerPlan& planned) { return planned.linear.name == record.name; });
    if (layer == layers.end()) continue;
    runtime::InputFormat input;
    if (!record.is_plain()) {
      const runtime::StoredLinear stored = artifact.read_layer(part, record);
      if (!record.scheme.has_own_tensor())
        block.set_weight(layer->stage, layer->index, runtime::effective_weight(stored));
      input = stored.input;
    }
    input.sparsity_threshold = static_cast<float>(record.sparsity_threshold);
    if (!input.keeps_values()) block.set_input_format(layer->stage, input);
  }
  for (const runtime::OwnedTensor& tensor : artifact.read_changed(part, checkpoint)) {
    if (tensor.shape != checkpoint.layout(tensor.name).shape) throw damaged_file(artifact.record_file(part));
    const auto layer = std::find_if(layers.begin(), layers.end(), [&](const LayerPlan& planned) {
      return planned.linear.name + ".weight" == tensor.name;
    });
    if (layer == layers.end()) {
      auto* const decoder = dynamic_cast<DecoderBlock*>(&block);
      if (decoder == nullptr) throw damaged_file(artifact.record_file(part));  // nothing folds into an encoder
      restore_changed(tensor, *decoder);
      continue;
    }
    std::vector<float> values(tensor.data.size() / runtime::dtype_size_bytes(tensor.dtype));
    runtime::convert_to_float(tensor.dtype, tensor.data, values);
    block.set_weight(layer->stage, layer->index, values);
  }
}

}  // namespace pare::compress
