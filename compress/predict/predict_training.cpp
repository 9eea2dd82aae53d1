#include "compress/predict/predict_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "compress/model/decoder_functions.h"
#include "compress/recipe/measured_costs.h"
#include "compress/train/train_step.h"
#include "compress/train/training_device.h"
#include "compress/train/training_state.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

constexpr double kFloatBytes = 4.0;

double num_weights_of(const runtime::LinearDescription& linear) {
  return static_cast<double>(linear.num_out) * static_cast<double>(linear.num_in);
}

// Experts of a mixture that a token does not meet.
int64_t num_idle_experts(const runtime::BlockDescription& block) {
  if (!block.is_mixture()) return 0;
  return block.num_routed() - block.routing.routed_per_token();
}

std::vector<runtime::LinearDescription> expert_linears(const runtime::FeedForwardDescription& expert) {
  if (!expert.is_gated()) return {expert.up, expert.down};
  return {expert.gate, expert.up, expert.down};
}

double num_weights(const runtime::ModelDescription& model) {
  double sum = 0.0;
  for (const runtime::LinearDescription& linear : runtime::block_linears(model)) sum += num_weights_of(linear);
  return sum;
}

double num_weights_of_a_token(const runtime::ModelDescription& model) {
  double sum = num_weights(model);
  for (const runtime::BlockDescription& block : model.blocks) {
    for (const runtime::LinearDescription& linear : expert_linears(block.experts.front())) {
      sum -= static_cast<double>(num_idle_experts(block)) * num_weights_of(linear);
    }
  }
  return sum;
}

double table_size(const runtime::ModelDescription& model) {
  return static_cast<double>(model.vocabulary_size) * static_cast<double>(model.hidden_size);
}

double bytes_of(at::ScalarType compute) {
  return compute == at::kBFloat16 ? 2.0 : kFloatBytes;
}

// What a token leaves in a block's graph: inputs and outputs of its linears, half of the inputs being shared.
double kept_of_a_token(const runtime::BlockDescription& block, int64_t hidden_size, double compute_bytes) {
  const auto of_linear = [&](const runtime::LinearDescription& linear) {
    const int64_t half_of_inputs = linear.num_in / 2;
    return compute_bytes * static_cast<double>(linear.num_out + half_of_inputs);
  };
  double bytes = kFloatBytes * static_cast<double>(hidden_size) * 3.0;
  for (const runtime::LinearDescription& linear : linears_of(block)) bytes += of_linear(linear);
  const runtime::FeedForwardDescription& expert = block.experts.front();
  for (const runtime::LinearDescription& linear : expert_linears(expert)) {
    bytes -= static_cast<double>(num_idle_experts(block)) * of_linear(linear);
  }
  // What the last linear of each multiplies is computed again.
  const int64_t num_met = block.is_mixture() ? block.routing.routed_per_token() : 1;
  int64_t inner = num_met * expert.down.num_in;
  if (block.routing.has_shared) inner += block.experts.back().down.num_in;
  return bytes - compute_bytes * static_cast<double>(inner) / 2.0;
}

// Tokens of one sequence that goes through the model with gradients.
double sequence_length(const TrainingExtent& extent) {
  const int64_t window = extent.windows.training.windows.num_tokens;
  if (extent.options.loss.loss != distill::DistillLoss::minillm) return static_cast<double>(window);
  const int64_t sample = extent.options.prompt_tokens + extent.options.sampled_tokens;
  const bool reads_text = extent.options.minillm.language_model_weight > 0.0;
  return static_cast<double>(reads_text ? std::max(window, sample) : sample);
}

// Of a linear's weight, as it is held for products in the type `compute`.
double held_bytes(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear,
                  at::ScalarType compute, at::Device device) {
  const runtime::PackScheme scheme = checkpoint.stored_scheme(linear).value_or(runtime::dense_scheme());
  if (scheme.has_own_tensor()) {
    return static_cast<double>(
        c10::elementSize(held_type(checkpoint.layout(linear.name + ".weight").dtype, compute, device)));
  }
  if (scheme.is_dense()) {
    return static_cast<double>(c10::elementSize(held_type(checkpoint.linear(linear), compute, device)));
  }
  return bytes_of(compute);
}

bool samples(const TrainingExtent& extent) {
  return extent.options.loss.loss == distill::DistillLoss::minillm;
}

double teacher_bytes(const TrainingExtent& extent) {
  double bytes = 0.0;
  for (const runtime::LinearDescription& linear : runtime::block_linears(extent.teacher->description())) {
    bytes +=
        num_weights_of(linear) * (samples(extent) ? bytes_of(extent.compute)
                                                  : held_bytes(*extent.teacher, linear, extent.compute, extent.device));
  }
  return bytes;
}

bool is_code(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
  const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
  return scheme && !scheme->is_dense();
}

// What a frozen tensor of the student holds beside its values in the compute type: those of its file, where bfloat16
// has other ones (StudentModel::frozen).
double exact_bytes(const runtime::LinearDescription& linear, const TrainingExtent& extent) {
  if (extent.compute == at::kFloat) return 0.0;
  const at::ScalarType exact = held_type(extent.student.linear(linear), at::kFloat, at::kCPU);
  return exact == extent.compute ? 0.0 : static_cast<double>(c10::elementSize(exact));
}

// Of the student's linears: parameters with gradients and moments, codes with their offsets.
double parameter_bytes(const TrainingExtent& extent) {
  const TrainedParts& parts = extent.options.train;
  double bytes = 0.0;
  for (const runtime::LinearDescription& linear : runtime::block_linears(extent.student.description())) {
    double of_weight = 0.0;
    if (is_code(extent.student, linear)) {  // the code, its offset, the sum of gradients, the offset's moments
      of_weight = 1.0 + kFloatBytes + (parts.weights || parts.scales ? kFloatBytes : 0.0) +
                  (parts.weights ? 2.0 * kFloatBytes : 0.0);
    } else if (parts.weights) {
      of_weight = 4.0 * kFloatBytes;
    } else {
      of_weight = held_bytes(extent.student, linear, extent.compute, extent.device) + exact_bytes(linear, extent);
    }
    bytes += of_weight * num_weights_of(linear);
  }
  return bytes;
}

// Beside them, what the forward pass multiplies in the type `compute`, unless it is made for each block anew.
double made_bytes(const TrainingExtent& extent, at::ScalarType compute) {
  if (extent.options.recompute) return 0.0;
  double bytes = 0.0;
  for (const runtime::LinearDescription& linear : runtime::block_linears(extent.student.description())) {
    // A frozen one is there in the type that is trained with, or, on a CPU, as its file has it.
    const bool is_made = is_code(extent.student, linear) || extent.options.train.weights ||
                         (compute != extent.compute && !extent.device.is_cpu());
    if (is_made) bytes += held_bytes(extent.student, linear, compute, extent.device) * num_weights_of(linear);
  }
  return bytes;
}

double num_tables(const runtime::ModelDescription& model) {
  return model.tied_head ? 1.0 : 2.0;
}

// While held-out windows go through the model, in float32 and without gradients.
double validation_bytes(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const runtime::ModelDescription& model = extent.student.description();
  const runtime::TokenWindows& windows = extent.windows.validation.windows;
  const int64_t num_parts = (windows.num_windows + options.micro_batch - 1) / options.micro_batch;
  const double at_once =
      extent.device.is_cpu() && works_on_threads(num_parts, limits.num_threads) ? limits.num_threads : 1;
  const double tokens = static_cast<double>(options.micro_batch * windows.num_tokens);
  double of_token = 0.0;
  for (const runtime::BlockDescription& block : model.blocks) {
    of_token = std::max(of_token, kept_of_a_token(block, model.hidden_size, kFloatBytes));
  }
  if (options.loss.hidden_weight > 0.0 && extent.teacher != nullptr) {
    of_token += kFloatBytes * static_cast<double>(model.hidden_size) *
                static_cast<double>(extent.teacher->description().blocks.size());
  }
  // The products, their logarithms, the teacher's, and what a loss makes of a few rows.
  const double head = static_cast<double>(model.vocabulary_size) * kFloatBytes *
                      (3.0 * std::min(static_cast<double>(kHeadTokens), tokens) +
                       kTensorsOfLoss * std::min(static_cast<double>(kLossTokens), tokens));
  // Tables in float32, where they are trained in another type.
  const double tables = extent.compute == at::kFloat ? 0.0 : kFloatBytes * num_tables(model) * table_size(model);
  return made_bytes(extent, at::kFloat) + tables + at_once * (of_token * tokens + head);
}

double peak_bytes(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const runtime::ModelDescription& model = extent.student.description();
  const double compute_bytes = bytes_of(extent.compute);
  const bool has_threads = extent.device.is_cpu() && !samples(extent) &&
                           works_on_threads(options.batch / options.micro_batch, limits.num_threads);
  const double at_once = has_threads ? limits.num_threads : 1;
  const double micro_tokens = at_once * static_cast<double>(options.micro_batch) * sequence_length(extent);
  const double hidden = kFloatBytes * static_cast<double>(model.hidden_size);
  double activations = 0.0;  // of one token
  for (const runtime::BlockDescription& block : model.blocks) {
    const double own = kept_of_a_token(block, model.hidden_size, compute_bytes);
    activations = options.recompute ? std::max(activations, own) : activations + own;
  }
  if (options.recompute) activations += hidden * static_cast<double>(model.blocks.size());
  if (options.loss.hidden_weight > 0.0 && extent.teacher != nullptr) {
    activations += hidden * static_cast<double>(extent.teacher->description().blocks.size());
  }
  // Products, in whose place their gradient comes, and the teacher's of kHeadTokens, and what a loss makes of
  // kLossTokens of them in float32.
  const double head =
      at_once * static_cast<double>(model.vocabulary_size) *
      (2.0 * compute_bytes * std::min(static_cast<double>(kHeadTokens), micro_tokens / at_once) +
       kTensorsOfLoss * kFloatBytes * std::min(static_cast<double>(kLossTokens), micro_tokens / at_once));
  const double tables = num_tables(model) * table_size(model);
  double at_step = made_bytes(extent, extent.compute) + activations * micro_tokens + head;
  // What samples is made once for all of a sequence's tokens. Where activations are kept, they come later and are more.
  if (samples(extent) && options.recompute) at_step += num_weights(model) * compute_bytes;
  double memory =
      parameter_bytes(extent) + tables * compute_bytes + std::max(at_step, validation_bytes(extent, limits));
  if (!options.train.embedding) {
    memory += exact_bytes(extent.student.embedding(), extent) * table_size(model);
    if (!model.tied_head) memory += exact_bytes(extent.student.head(), extent) * table_size(model);
  }
  // Parameters with gradients and moments, and the sum of each micro-batch.
  if (options.train.embedding) memory += (4.0 + at_once) * kFloatBytes * tables;
  if (extent.teacher != nullptr) {
    const runtime::ModelDescription& own = extent.teacher->description();
    // A table of the same values is held once: a student of the teacher's width was made of it.
    const bool shares_table = !options.train.embedding && own.hidden_size == model.hidden_size;
    memory += teacher_bytes(extent) + (shares_table ? 0.0 : table_size(own)) * compute_bytes;
  }
  return static_cast<double>(limits.held_bytes + limits.num_threads * kThreadBytes) + kHeapShare * memory;
}

double seconds_of(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const runtime::ModelDescription& model = extent.student.description();
  const double weights = num_weights_of_a_token(model);
  const double table = table_size(model);
  double operations = 6.0 * weights + 4.0 * table + (options.train.embedding ? 2.0 * table : 0.0) +
                      (options.recompute ? 2.0 * weights : 0.0);
  const runtime::ModelDescription* const teacher = extent.teacher == nullptr ? nullptr : &extent.teacher->description();
  const double of_teacher = teacher == nullptr ? 0.0 : 2.0 * (num_weights_of_a_token(*teacher) + table_size(*teacher));
  operations += of_teacher;
  const double of_window = tokens_of_window(options, static_cast<double>(extent.windows.training.windows.num_tokens));
  const int64_t num_steps = num_training_steps(options, of_window);
  const double tokens = static_cast<double>(num_steps * options.batch) * sequence_length(extent);
  const LabelledWindows& validation = extent.windows.validation;
  const double validated =
      static_cast<double>((options.validations + 1) * validation.windows.num_windows) * mean_length(validation);
  // Products in bfloat16 take about half the time of float32.
  const double rate = extent.device.is_cpu() ? limits.matmul_rate : measure_gpu_rate(extent.device);
  const double trained_rate = extent.device.is_cpu() && extent.compute == at::kBFloat16 ? 2.0 * rate : rate;
  // Held-out windows meet the student in float32.
  const double of_validation =
      2.0 * (weights + table) / rate + (held_out_loss(options) ? of_teacher / trained_rate : 0.0);
  // Attention, norms and losses beside the products: measured on SmolLM2, about a third of the time.
  return 1.5 * (tokens * operations / trained_rate + validated * of_validation);
}

}  // namespace

Prediction predict_training(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const runtime::ModelDescription& model = extent.student.description();
  const bool is_cpu = extent.device.is_cpu();
  Prediction prediction;
  prediction.stages.push_back({is_cpu ? "train" : "train (memory of the GPU)", seconds_of(extent, limits),
                               static_cast<int64_t>(peak_bytes(extent, limits))});
  prediction.output_bytes = 0;
  for (const std::filesystem::path& file : extent.student.weight_files()) {
    prediction.output_bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  const double trained = (options.train.weights ? num_weights(model) : 0.0) +
                         (options.train.embedding ? num_tables(model) * table_size(model) : 0.0);
  prediction.disk_bytes = TrainingStore::size_bytes(static_cast<int64_t>(trained)) + 2 * prediction.output_bytes;
  if (is_cpu && prediction.peak_memory_bytes() > limits.max_memory_bytes) {
    throw std::invalid_argument("training needs about " + runtime::format_bytes(prediction.peak_memory_bytes()) +
                                " of memory, allowed are " + runtime::format_bytes(limits.max_memory_bytes) +
                                ": lower 'micro_batch', set 'recompute: true', or give more with --max-memory");
  }
  return prediction;
}

}  // namespace pare::compress
