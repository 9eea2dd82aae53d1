#include "compress/predict/predict.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "compress/recipe/measured_costs.h"
#include "compress/recipe/pass_options.h"
#include "compress/reconstruct/reconstruct_block.h"
#include "compress/survey/leave_one_out.h"
#include "compress/walk/encoder_walk.h"
#include "compress/walk/statistics.h"
#include "quant/smoothquant.h"
#include "runtime/containers/container_table.h"
#include "runtime/engine/encoder.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/lane_memory.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

// Returns what the process holds whatever it works on.
int64_t process_bytes(int64_t base_bytes, int num_threads, int64_t widest) {
  return base_bytes + kLibraryBytes + num_threads * (kWorkerBytes + kWorkerColumnBytes * widest);
}
int64_t widest_of(const runtime::ModelDescription& model) {
  return std::max({widest_made_input(model), model.feed_forward_size, model.num_heads * model.value_size});
}

const quant::GridOptions* grid_of(const LayerPlan& layer) {
  const PassOptions* rounding = layer.step(PassKind::rounds);
  return rounding == nullptr ? nullptr : rounding->grid();
}

// The form in which the runtime takes the inputs of a model's linears.
struct RuntimeInputs {
  bool as_codes = false;         // some linear multiplies its input as codes
  bool whole_sequences = false;  // some input is rounded by a range over its whole sequence
};

struct Sizes {
  int64_t source_bytes = 0;
  int64_t output_bytes = 0;
  int64_t parts_bytes = 0;          // bytes that are committed before the artifact is assembled
  int64_t block_weights = 0;        // weights of all blocks
  int64_t largest_block = 0;        // weights of the largest block
  int64_t table_weights = 0;        // weights of the embedding and the untied head
  int64_t packed_excess_bytes = 0;  // the excess of the output's weights in the runtime's memory over their stored size
  std::optional<int64_t> evaluated_bytes;  // as in Workload
  RuntimeInputs output_inputs;             // the source's are floats
};

// Finds the first way in which a walk keeps within the memory: activations go to disk before threads wait. workers are
// the numbers of windows at work that are possible, the most first. memory(spill, workers) returns the bytes. Returns
// false where no way does; the last is set then.
template <typename Memory>
bool choose_walk(Prediction& prediction, std::span<const int> workers, int64_t max_memory_bytes, const Memory& memory) {
  prediction.walk_workers = workers.front();
  const auto fits = [&] { return memory(prediction.spill, prediction.walk_workers) <= max_memory_bytes; };
  for (const Spill spill : {Spill::none, Spill::inputs, Spill::all}) {
    prediction.spill = spill;
    if (fits()) return true;
  }
  for (const int fewer : workers.subspan(1)) {
    prediction.walk_workers = fewer;
    prediction.has_few_workers = true;
    if (fits()) return true;
  }
  return false;
}

// Returns a guess of the number of outlier columns, which calibration will find later.
int64_t expected_outlier_columns(const runtime::PackScheme& scheme, int64_t num_in) {
  return scheme.input.outliers == runtime::OutlierRule::columns ? num_in / kExpectedOutlierShare : 0;
}

// linear_bytes are those of all blocks' linears, where a budget fixes them.
Sizes measure_sizes(const RunPlan& plan, const runtime::Checkpoint& checkpoint, std::optional<int64_t> linear_bytes) {
  Sizes sizes;
  for (const std::string& name : checkpoint.tensor_names()) {
    sizes.source_bytes += checkpoint.layout(name).num_bytes();
  }
  sizes.output_bytes = sizes.source_bytes;
  const auto replace = [&](const runtime::LinearDescription& linear, const runtime::PackScheme& scheme,
                           runtime::DType scale_dtype) {
    const runtime::StoredExtent extent{.scale_dtype = scale_dtype,
                                       .input_scale_dtype = input_scale_dtype(scheme.input, scale_dtype),
                                       .num_outlier_columns = expected_outlier_columns(scheme, linear.num_in),
                                       .outlier_dtype = checkpoint.layout(linear.name + ".weight").dtype,
                                       .dense_dtype = checkpoint.layout(linear.name + ".weight").dtype};
    const int64_t stored =
        runtime::container_format(scheme.container).stored_bytes(scheme, linear.num_out, linear.num_in, extent);
    sizes.parts_bytes += stored;
    sizes.output_bytes += stored;
    sizes.output_inputs.as_codes |= scheme.input.type == runtime::InputType::int8;
    sizes.output_inputs.whole_sequences |= !scheme.input.is_rowwise();
    if (!scheme.has_own_tensor()) {
      sizes.output_bytes -= checkpoint.layout(linear.name + ".weight").num_bytes();
      const int64_t packed = runtime::packed_weight_bytes(linear, scheme, extent.dense_dtype, /*on_host=*/true);
      sizes.packed_excess_bytes += std::max<int64_t>(packed - stored, 0);
    }
  };
  for (const auto& layers : plan.blocks) {
    int64_t block = 0;
    for (const LayerPlan& layer : layers) {
      block += layer.linear.num_out * layer.linear.num_in;
      if (linear_bytes) {
        sizes.output_bytes -= checkpoint.layout(layer.linear.name + ".weight").num_bytes();
      } else if (layer.is_compressed() && !layer.scheme.is_plain()) {
        const quant::GridOptions* grid = grid_of(layer);
        replace(layer.linear, layer.scheme, grid != nullptr ? grid->scale_dtype : runtime::DType::BF16);
      }
    }
    sizes.block_weights += block;
    sizes.largest_block = std::max(sizes.largest_block, block);
  }
  sizes.output_bytes += linear_bytes.value_or(0);
  sizes.parts_bytes += linear_bytes.value_or(0);
  for (const TablePlan& table : plan.tables) {
    replace(table.linear, table.scheme, table.grid.scale_dtype);
  }
  if (checkpoint.is_encoder()) return sizes;
  const runtime::ModelDescription& model = checkpoint.description();
  sizes.table_weights = model.vocabulary_size * model.hidden_size * (model.tied_head ? 1 : 2);
  return sizes;
}

// Return the memory of a stage of the walk with the original's states. fit_sums_bytes is that of its sums: H and the
// sums of both kinds of windows. fit_bytes is what its layers' steps add to H and the working copies: the factor and
// the space that it is made in.
int64_t fit_sums_bytes(const runtime::ModelDescription& model, int64_t width, int64_t num_windows) {
  return StatisticsAccumulator::size_bytes(width, num_windows, StatisticsNeed::hessian_diagonal) +
         OriginalStream::sums_bytes(model, width);
}
int64_t fit_bytes(const runtime::ModelDescription& model, runtime::Stage stage, int64_t width) {
  const int64_t missing_width = is_output_stage(stage) ? model.hidden_size : width;
  return width * width * kFitElementBytes + width * kFactorColumnBytes + 2 * missing_width * width * 4;
}

// Returns the bytes of H, its factor, and the space that the factor is made in.
int64_t factor_bytes(int64_t width) {
  return width * width * kFactorElementBytes + width * kFactorColumnBytes;
}

// Returns the operations that the steps of one stage take, without the factor of H.
double step_operations(const RunPlan& plan, int64_t block, runtime::Stage stage, PassKind kind) {
  double operations = 0.0;
  const std::vector<const LayerPlan*> layers = plan.stage_layers(block, stage);
  if (layers.empty()) return operations;
  if (kind == PassKind::scales_inputs) {  // searched once, for all layers
    const PassOptions* scaling = layers.front()->step(kind);
    if (scaling == nullptr) return operations;
    StageExtent extent{.width = layers.front()->linear.num_in, .rounding = layers.front()->step(PassKind::rounds)};
    for (const LayerPlan* layer : layers) extent.num_out.push_back(layer->linear.num_out);
    return scaling->operations(extent);
  }
  for (const LayerPlan* layer : layers) {
    for (const Step& step : layer->steps) {
      if (step.options->kind() == PassKind::scales_inputs) continue;
      operations += step.options->operations({.width = layer->linear.num_in, .num_out = {layer->linear.num_out}});
    }
  }
  return operations;
}

// Floating-point operations of the walk over all blocks, by kind.
struct Operations {
  double forward = 0.0, statistics = 0.0, compress = 0.0, scaling = 0.0, reconstruct = 0.0;
};

Operations count_operations(const RunPlan& plan, const runtime::ModelDescription& model, const Workload& workload) {
  Operations operations;
  const auto num_rows = static_cast<double>(workload.num_windows * workload.num_tokens);
  // The original's states go along where they are needed, and a walk that decides shares first counts once more.
  const double num_models = (plan.carries_original() ? 2.0 : 1.0) + (plan.walks_before() ? 1.0 : 0.0);
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    double token_weights = 0.0;  // the weights that one token meets
    for (const LayerPlan& layer : plan.blocks[b]) {
      const double weights = static_cast<double>(layer.linear.num_out) * static_cast<double>(layer.linear.num_in);
      token_weights += weights * runtime::token_share(model.blocks[b], layer.stage);
      const double share = runtime::token_share(model.blocks[b], layer.stage);
      // The inputs of down are made once. With all tokens, the statistics also need those of tokens that go elsewhere.
      const bool sees_all =
          layer.stage.kind == runtime::Stage::feed_forward_input && workload.experts == ExpertTokens::all;
      if (workload.walks()) {
        operations.forward += 2.0 * num_rows * weights * (num_models * share + (sees_all ? 1.0 : 0.0));
      }
      if (layer.fit() == nullptr) continue;
      // One more product gives what the output lacks of the original.
      if (is_output_stage(layer.stage)) operations.forward += 2.0 * num_rows * weights;
      operations.compress += weights * static_cast<double>(layer.linear.num_in) * kFitOpsPerWeight;
    }
    if (const ReconstructOptions* const training = plan.reconstruction(static_cast<int64_t>(b)); training != nullptr) {
      const double window =
          2.0 * static_cast<double>(workload.num_tokens) *
          (token_weights + static_cast<double>(workload.num_tokens * model.num_heads * model.head_size));
      operations.reconstruct += reconstruction_operations(*training, workload.num_windows, window);
    }
    operations.forward += 2.0 * num_models * num_rows * static_cast<double>(workload.num_tokens) *
                          static_cast<double>(model.num_heads * model.head_size);  // causal: half of the scores
    for (const runtime::Stage stage : runtime::block_stages(model.blocks[b])) {
      operations.scaling += step_operations(plan, static_cast<int64_t>(b), stage, PassKind::scales_inputs);
      operations.compress += step_operations(plan, static_cast<int64_t>(b), stage, PassKind::rounds);
      const StatisticsNeed need = plan.need(static_cast<int64_t>(b), stage);
      if (need < StatisticsNeed::hessian) continue;
      const int64_t width = runtime::stage_width(model.blocks[b], stage);
      const double stage_rows =
          num_rows * (workload.experts == ExpertTokens::all ? 1.0 : runtime::token_share(model.blocks[b], stage));
      const std::vector<int64_t> bounds = tile_bounds(width);
      for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        operations.statistics +=
            2.0 * stage_rows * static_cast<double>((bounds[i + 1] - bounds[i]) * (width - bounds[i]));
      }
      operations.compress += factor_operations(width);
      if (need < StatisticsNeed::original) continue;
      operations.statistics += 2.0 * num_rows * static_cast<double>(model.hidden_size * width);
      operations.compress += factor_operations(width);
    }
  }
  return operations;
}

// Returns the bytes that a stage's layers take beside the block's weights: the memory in which the steps work, and
// changed weights and their masks until they are stored.
int64_t layers_bytes(const RunPlan& plan, int64_t block, runtime::Stage stage, int num_threads) {
  StageExtent extent{.num_threads = num_threads};
  bool is_changed = false;
  const std::vector<const LayerPlan*> layers = plan.stage_layers(block, stage);
  for (const LayerPlan* layer : layers) {
    extent.width = layer->linear.num_in;
    extent.num_out.push_back(layer->linear.num_out);
    is_changed |=
        layer->fit() != nullptr || layer->step(PassKind::changes_weights) != nullptr || layer->kept_zeros.has_value();
  }
  int64_t working = 0;
  for (const LayerPlan* layer : layers) {
    for (const Step& step : layer->steps) working = std::max(working, step.options->working_bytes(extent));
  }
  const int64_t num_out = std::accumulate(extent.num_out.begin(), extent.num_out.end(), int64_t{0});
  return working + (is_changed ? num_out * extent.width * (4 + 1) : 0);
}

// Returns the bytes while a stage's layers are compressed: H and its factor, then the largest layer's working copies.
int64_t compress_bytes(const RunPlan& plan, const runtime::ModelDescription& model, const Workload& workload) {
  const int64_t num_windows = workload.num_windows;
  int64_t largest = 0;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (const runtime::Stage stage : runtime::block_stages(model.blocks[b])) {
      const StatisticsNeed need = plan.need(static_cast<int64_t>(b), stage);
      const int64_t width = runtime::stage_width(model.blocks[b], stage);
      const int64_t square = width * width;
      int64_t statistics = 0;
      int64_t factor = 0;
      if (need == StatisticsNeed::original) {
        statistics = fit_sums_bytes(model, width, num_windows);
      } else if (need != StatisticsNeed::none) {
        statistics = StatisticsAccumulator::size_bytes(width, num_windows, need);
      }
      if (need >= StatisticsNeed::hessian) factor = factor_bytes(width);
      if (need == StatisticsNeed::original) {
        const std::vector<const LayerPlan*> layers = plan.stage_layers(static_cast<int64_t>(b), stage);
        const bool keeps_zeros = std::any_of(layers.begin(), layers.end(),
                                             [](const LayerPlan* layer) { return layer->kept_zeros.has_value(); });
        factor = std::max(factor,
                          fit_bytes(model, stage, width) + (keeps_zeros ? square * 4 : 0));  // H in normalized columns
      }
      largest = std::max({largest, statistics + square * 4,
                          factor + layers_bytes(plan, static_cast<int64_t>(b), stage, workload.num_threads)});
    }
  }
  return largest;
}

// Returns the bytes of a model's weights in the runtime, as memory_need computes them. Weights in codes count as they
// are packed, where that is more than their file. A sixteenth is added for what stands beside them.
int64_t weights_bytes(int64_t stored_bytes, int64_t packed_excess_bytes = 0) {
  return (stored_bytes + packed_excess_bytes) * 17 / 16;
}

// Each model keeps its weights and its working memory, unless the models work in turn, when they have the larger one's.
int64_t evaluation_bytes(const runtime::ModelDescription& model, const Sizes& sizes,
                         const runtime::EvaluationExtent& evaluation) {
  runtime::DeviceWorkload workload = evaluation.workload;
  workload.on_host = true;
  const auto work_bytes = [&](const RuntimeInputs& inputs) {
    return runtime::cache_bytes(model, workload) +
           runtime::forward_work_bytes(model, workload, inputs.as_codes, inputs.whole_sequences);
  };
  const int64_t own_bytes = work_bytes(sizes.output_inputs);
  const int64_t own_weights = sizes.evaluated_bytes ? weights_bytes(*sizes.evaluated_bytes)
                                                    : weights_bytes(sizes.output_bytes, sizes.packed_excess_bytes);
  const int64_t bytes = own_weights + own_bytes + evaluation.held_bytes +
                        std::min(workload.most_roof_bytes,
                                 std::max(own_weights, evaluation.reference ? weights_bytes(sizes.source_bytes) : 0));
  if (!evaluation.reference) return bytes;
  workload.kv_bits = runtime::kKvFloatBits;
  const int64_t reference_bytes = work_bytes(RuntimeInputs{});
  return bytes + weights_bytes(sizes.source_bytes) +
         (evaluation.in_turn ? std::max<int64_t>(reference_bytes - own_bytes, 0) : reference_bytes);
}

// Texts take the matrix product's rate for each of these weights, and new tokens the rate of reading all.
double evaluation_seconds(int64_t num_weights, const Sizes& sizes, const runtime::EvaluationExtent& evaluation,
                          double matmul_rate) {
  const double num_models = evaluation.reference ? 2.0 : 1.0;
  const int64_t read_bytes =
      sizes.evaluated_bytes.value_or(sizes.output_bytes) + (evaluation.reference ? sizes.source_bytes : 0);
  return 2.0 * num_models * static_cast<double>(evaluation.num_tokens) * static_cast<double>(num_weights) /
             matmul_rate / kEvaluationEfficiency +
         static_cast<double>(evaluation.num_new_tokens) * static_cast<double>(read_bytes) / kWeightBytesPerSecond;
}

}  // namespace

Prediction predict(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const Workload& workload,
                   int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate) {
  const runtime::ModelDescription& model = checkpoint.description();
  Sizes sizes = measure_sizes(plan, checkpoint, workload.linear_bytes);
  sizes.evaluated_bytes = workload.evaluated_bytes;
  const Operations operations = count_operations(plan, model, workload);
  const int64_t survey_memory =
      workload.survey ? LeaveOneOut::size_bytes(checkpoint, workload.survey->extent, workload.num_threads) : 0;
  const int64_t libraries = process_bytes(base_bytes, workload.num_threads, widest_of(model));
  // The block is there in float32, as codes and packed, and the original's block in float32.
  const int64_t block_bytes = sizes.largest_block * (4 + 1 + 1 + (plan.carries_original() ? 4 : 0));
  int64_t work_bytes = compress_bytes(plan, model, workload);
  if (plan.reconstructs()) {
    work_bytes = std::max(work_bytes, reconstruction_bytes(model, workload.num_tokens, workload.num_threads) +
                                          workload.num_threads * kGradientThreadBytes);
  }
  if (plan.walks_before()) work_bytes = std::max(work_bytes, sizes.largest_block * 4);  // the scores of a block

  const auto walk_memory = [&](Spill spill, int num_workers) {
    int64_t bytes = libraries + block_bytes + work_bytes + survey_memory;
    if (workload.walks()) {
      bytes += WalkLayout(model, workload.num_windows, workload.num_tokens, spill, num_workers, plan.carries_original(),
                          plan.reconstructs(), sizes.output_inputs.whole_sequences)
                   .footprint()
                   .memory_bytes;
    }
    return bytes;
  };

  Prediction prediction;
  prediction.output_bytes = sizes.output_bytes;
  int64_t evaluation_memory = 0;
  double evaluating_seconds = 0.0;
  const int64_t evaluated_weights = sizes.block_weights + model.vocabulary_size * model.hidden_size;
  for (const runtime::EvaluationExtent& evaluation : workload.evaluations) {
    evaluation_memory = std::max(evaluation_memory, evaluation_bytes(model, sizes, evaluation));
    evaluating_seconds += evaluation_seconds(evaluated_weights, sizes, evaluation, matmul_rate);
  }
  if (evaluation_memory > 0) evaluation_memory += libraries;

  int64_t table_memory = 0;
  if (!plan.tables.empty()) table_memory = libraries + sizes.table_weights * 2;  // codes and packed codes
  const std::vector<int> workers = workload.walks()
                                       ? WalkLayout::possible_workers(workload.num_tokens, workload.num_threads)
                                       : std::vector<int>{workload.num_threads};
  const bool fits = choose_walk(prediction, workers, max_memory_bytes, walk_memory);
  const int64_t memory = walk_memory(prediction.spill, prediction.walk_workers);
  const int64_t least = std::max({memory, table_memory, evaluation_memory});
  if (!fits || least > max_memory_bytes) {
    throw std::invalid_argument("--max-memory " + runtime::format_bytes(max_memory_bytes) +
                                " is too little: this run needs " + runtime::format_bytes(least) +
                                " even with all activations on disk; allow that much" +
                                (evaluation_memory == least ? ", or leave out 'evaluate' or its reference" : ""));
  }
  int64_t spill_bytes = 0;
  if (workload.walks()) {
    spill_bytes = WalkLayout(model, workload.num_windows, workload.num_tokens, prediction.spill,
                             prediction.walk_workers, plan.carries_original(), plan.reconstructs())
                      .footprint()
                      .spill_bytes;
  }
  prediction.disk_bytes = sizes.parts_bytes + std::max(spill_bytes, sizes.output_bytes);

  // A thread without a window does nothing for the forward pass.
  const double waiting =
      std::max(1.0, static_cast<double>(workload.num_threads) / static_cast<double>(prediction.walk_workers));
  if (workload.survey) {
    const SurveyExtent& survey = *workload.survey;
    const double measuring = LeaveOneOut::num_operations(model, survey.extent);
    const double predicting = static_cast<double>(sizes.block_weights * survey.num_candidates) * kSearchOpsPerWeight;
    prediction.stages.push_back(
        {"survey",
         (operations.forward / kForwardEfficiency + operations.statistics / kStatisticsEfficiency +
          operations.compress + measuring / kForwardEfficiency + predicting) /
             matmul_rate,
         memory});
  }
  if (!plan.tables.empty()) {
    prediction.stages.push_back({"embedding and head",
                                 static_cast<double>(sizes.table_weights) * kTableOpsPerWeight / matmul_rate,
                                 table_memory});
  }
  if (workload.walks()) {
    prediction.stages.push_back({"forward", waiting * operations.forward / matmul_rate / kForwardEfficiency, memory});
    prediction.stages.push_back({"statistics", operations.statistics / matmul_rate / kStatisticsEfficiency, memory});
  }
  prediction.stages.push_back({"compress", (operations.compress + operations.scaling) / matmul_rate, memory});
  if (plan.reconstructs()) {
    prediction.stages.push_back({"reconstruct", operations.reconstruct / matmul_rate / kReconstructEfficiency, memory});
  }
  prediction.stages.push_back({"write and verify",
                               static_cast<double>(2 * sizes.source_bytes + 5 * sizes.output_bytes) / kBytesPerSecond,
                               libraries});
  if (!workload.evaluations.empty()) prediction.stages.push_back({"evaluate", evaluating_seconds, evaluation_memory});
  return prediction;
}

Prediction predict_encoder(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const EncoderWorkload& workload,
                           int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate) {
  const runtime::EncoderDescription& model = checkpoint.encoder();
  const Sizes sizes = measure_sizes(plan, checkpoint, std::nullopt);
  const auto num_tokens = static_cast<double>(workload.calibration_tokens);
  Operations operations;
  int64_t work_bytes = 0;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (const LayerPlan& layer : plan.blocks[b]) {
      const double weights = static_cast<double>(layer.linear.num_out) * static_cast<double>(layer.linear.num_in);
      const int64_t width = layer.linear.num_in;
      operations.forward += 2.0 * num_tokens * weights;
      if (!layer.is_compressed()) continue;
      for (const Step& step : layer.steps) {
        operations.compress += step.options->operations({.width = width, .num_out = {layer.linear.num_out}});
      }
      const StatisticsNeed need = plan.need(static_cast<int64_t>(b), layer.stage);
      int64_t bytes = layers_bytes(plan, static_cast<int64_t>(b), layer.stage, workload.num_threads);
      if (need != StatisticsNeed::none) {
        bytes += StatisticsAccumulator::size_bytes(width, workload.calibration_tokens / EncoderWalk::kGroupRows, need);
      }
      if (need == StatisticsNeed::hessian) {
        bytes += factor_bytes(width);
        if (layer.index == 0) {
          operations.statistics += num_tokens * static_cast<double>(width * width);  // the upper triangle
          operations.compress += factor_operations(width);
        }
      }
      work_bytes = std::max(work_bytes, bytes);
    }
  }
  const int64_t libraries =
      process_bytes(base_bytes, workload.num_threads, std::max(model.hidden_size, model.feed_forward_size));
  const int64_t walk_bytes =
      libraries + sizes.largest_block * (4 + 1 + 1) + work_bytes +
      EncoderWalk::size_bytes(model, workload.calibration_tokens) +
      workload.num_threads * (EncoderFunctions::forward_bytes(model, workload.longest_text) + kWalkingHeapBytes);
  int64_t num_evaluated = 0;  // texts, of each model
  double evaluating_seconds = 0.0;
  for (const runtime::EvaluationExtent& evaluation : workload.evaluations) {
    num_evaluated += evaluation.num_texts * (evaluation.reference ? 2 : 1);
    evaluating_seconds += evaluation_seconds(sizes.block_weights, sizes, evaluation, matmul_rate);
  }
  const int64_t batch_bytes = std::max(runtime::Encoder::kBatchRows, model.context_length) *
                              (model.hidden_size * 4 + runtime::encoder_row_bytes(model));
  const int64_t evaluation_bytes = libraries + workload.evaluated_bytes.value_or(sizes.output_bytes) +
                                   sizes.source_bytes + 2 * batch_bytes + 2 * num_evaluated * model.hidden_size * 4;
  const int64_t least = std::max(walk_bytes, num_evaluated > 0 ? evaluation_bytes : 0);
  if (least > max_memory_bytes) {
    throw std::invalid_argument("--max-memory " + runtime::format_bytes(max_memory_bytes) +
                                " is too little: this run needs " + runtime::format_bytes(least) +
                                "; allow that much, or calibrate on fewer samples");
  }
  Prediction prediction;
  prediction.output_bytes = sizes.output_bytes;
  prediction.disk_bytes = sizes.parts_bytes + sizes.output_bytes;
  if (workload.calibration_tokens > 0) {
    prediction.stages = {{"forward", operations.forward / matmul_rate / kForwardEfficiency, walk_bytes},
                         {"statistics", operations.statistics / matmul_rate / kStatisticsEfficiency, walk_bytes}};
  }
  prediction.stages.push_back({"compress", operations.compress / matmul_rate, walk_bytes});
  prediction.stages.push_back({"write and verify",
                               static_cast<double>(2 * sizes.source_bytes + 5 * sizes.output_bytes) / kBytesPerSecond,
                               libraries});
  if (num_evaluated > 0) prediction.stages.push_back({"evaluate", evaluating_seconds, evaluation_bytes});
  return prediction;
}

Prediction predict_calibration(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const Workload& workload,
                               int64_t file_bytes, int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate) {
  const runtime::ModelDescription& model = checkpoint.description();
  int64_t largest_stage = 0;
  for (const runtime::BlockDescription& block : model.blocks) {
    for (const runtime::Stage stage : runtime::block_stages(block)) {
      const int64_t width = runtime::stage_width(block, stage);
      largest_stage = std::max(
          largest_stage,
          StatisticsAccumulator::size_bytes(width, workload.num_windows, StatisticsNeed::hessian) + width * width * 4);
    }
  }
  const auto memory = [&](Spill spill, int num_workers) {
    return process_bytes(base_bytes, workload.num_threads, widest_of(model)) + largest_block(model) * 4 +
           largest_stage +
           WalkLayout(model, workload.num_windows, workload.num_tokens, spill, num_workers).footprint().memory_bytes;
  };
  Prediction prediction;
  const std::vector<int> workers = WalkLayout::possible_workers(workload.num_tokens, workload.num_threads);
  const bool fits = choose_walk(prediction, workers, max_memory_bytes, memory);
  const int64_t held = memory(prediction.spill, prediction.walk_workers);
  if (!fits) {
    throw std::invalid_argument("--max-memory " + runtime::format_bytes(max_memory_bytes) +
                                " is too little: this needs " + runtime::format_bytes(held) +
                                " even with all activations on disk; allow that much");
  }
  prediction.output_bytes = file_bytes;
  prediction.disk_bytes = file_bytes + WalkLayout(model, workload.num_windows, workload.num_tokens, prediction.spill,
                                                  prediction.walk_workers)
                                           .footprint()
                                           .spill_bytes;
  const Operations operations = count_operations(plan, model, workload);
  prediction.stages = {{"forward", operations.forward / matmul_rate / kForwardEfficiency, held},
                       {"statistics", operations.statistics / matmul_rate / kStatisticsEfficiency, held},
                       {"write", 2.0 * static_cast<double>(file_bytes) / kBytesPerSecond, held}};
  return prediction;
}

Prediction predict_recording(const runtime::Checkpoint& checkpoint, const RecordingExtent& extent, int64_t base_bytes,
                             double matmul_rate) {
  const runtime::ModelDescription& model = checkpoint.description();
  Sizes sizes;
  for (const std::string& name : checkpoint.tensor_names()) {
    sizes.source_bytes += checkpoint.layout(name).num_bytes();
  }
  sizes.output_bytes = sizes.source_bytes;  // evaluation_bytes counts this one model
  int64_t num_weights = model.head.num_out * model.head.num_in;
  for (const runtime::BlockDescription& block : model.blocks) {
    for (const runtime::Stage stage : runtime::block_stages(block)) {
      for (const runtime::LinearDescription& linear : runtime::stage_layers(block, stage)) {
        num_weights += static_cast<int64_t>(static_cast<double>(linear.num_out * linear.num_in) *
                                            runtime::token_share(block, stage));
      }
    }
  }
  const runtime::EvaluationExtent recorded = {
      .workload = {.num_rows = extent.longest_sequence, .num_tokens = extent.longest_sequence},
      .held_bytes = extent.longest_sequence * 2 * 4};
  const int64_t memory = process_bytes(base_bytes, extent.num_threads, widest_of(model)) + extent.logit_bytes +
                         evaluation_bytes(model, sizes, recorded);
  // Each text that grows together with others has keys and values, its logits on both sides, and the candidates drawn
  // from.
  const int64_t lanes_bytes =
      runtime::lane_cache_bytes(model, runtime::kKvFloatBits, extent.num_lanes, extent.longest_sequence,
                                /*in_pages=*/true) +
      extent.num_lanes * model.vocabulary_size * (2 * 4 + static_cast<int64_t>(sizeof(runtime::Sampler::Candidate)));
  Prediction prediction;
  prediction.output_bytes = prediction.disk_bytes = extent.file_bytes;
  const double token_operations = 2.0 * static_cast<double>(num_weights) / kEvaluationEfficiency;
  if (extent.num_sampled_tokens > 0) {  // one token of each lane reads all weights once
    // A text that grows is half as long on average as in the end.
    const double pooled = 2.0 * static_cast<double>(runtime::kLaneCacheBytes) /
                          static_cast<double>(runtime::pooled_bytes(model, extent.longest_sequence));
    const double together = std::clamp(pooled, 1.0, static_cast<double>(extent.num_lanes));
    const double token_bytes = static_cast<double>(sizes.source_bytes) / together;
    const double token_seconds = token_bytes / kWeightBytesPerSecond + token_operations / matmul_rate;
    prediction.stages.push_back(
        {"sample", static_cast<double>(extent.num_sampled_tokens) * token_seconds, memory + lanes_bytes});
  }
  const double operations = static_cast<double>(extent.num_tokens) * token_operations;
  // There is one sum for the probabilities, and at each temperature one over all tokens and one over the tail.
  const double sums = static_cast<double>(extent.num_tokens) * static_cast<double>(1 + 2 * extent.num_temperatures);
  const double truncation = sums * static_cast<double>(model.head.num_out) * kTruncateOpsPerLogit;
  prediction.stages.push_back({"record", (operations + truncation) / matmul_rate, memory});
  prediction.stages.push_back({"write", 2.0 * static_cast<double>(extent.file_bytes) / kBytesPerSecond, memory});
  return prediction;
}

}  // namespace pare::compress
