#include "compress/predict_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "compress/train/functional_model.h"
#include "compress/train/train_step.h"
#include "compress/train/training_device.h"
#include "compress/train/training_state.h"
#include "runtime/system/progress.h"

namespace pare {
namespace {

constexpr double kFloatBytes = 4.0;

double num_weights_of(const LinearDescription& linear) {
  return static_cast<double>(linear.num_out) * static_cast<double>(linear.num_in);
}

// Experts of a mixture that a token does not meet.
int64_t num_idle_experts(const BlockDescription& block) {
  if (!block.is_mixture()) return 0;
  return static_cast<int64_t>(block.experts.size()) - block.routing.experts_per_token;
}

std::vector<LinearDescription> expert_linears(const FeedForwardDescription& expert) {
  return {expert.gate, expert.up, expert.down};
}

double num_weights(const ModelDescription& model) {
  double sum = 0.0;
  for (const LinearDescription& linear : block_linears(model)) sum += num_weights_of(linear);
  return sum;
}

double num_weights_of_a_token(const ModelDescription& model) {
  double sum = num_weights(model);
  for (const BlockDescription& block : model.blocks) {
    for (const LinearDescription& linear : expert_linears(block.experts.front())) {
      sum -= static_cast<double>(num_idle_experts(block)) * num_weights_of(linear);
    }
  }
  return sum;
}

double table_size(const ModelDescription& model) {
  return static_cast<double>(model.vocabulary_size) * static_cast<double>(model.hidden_size);
}

double bytes_of(at::ScalarType compute) {
  return compute == at::kBFloat16 ? 2.0 : kFloatBytes;
}

// What a token leaves in a block's graph: inputs and outputs of its linears, half of the inputs being shared.
double kept_of_a_token(const BlockDescription& block, int64_t hidden_size, double compute_bytes) {
  const auto of_linear = [&](const LinearDescription& linear) {
    return compute_bytes * static_cast<double>(linear.num_out + linear.num_in / 2);
  };
  double bytes = kFloatBytes * static_cast<double>(hidden_size) * 3.0;
  for (const LinearDescription& linear : linears_of(block)) bytes += of_linear(linear);
  const FeedForwardDescription& expert = block.experts.front();
  for (const LinearDescription& linear : expert_linears(expert)) {
    bytes -= static_cast<double>(num_idle_experts(block)) * of_linear(linear);
  }
  // What the last linear of each multiplies is computed again.
  const double num_met = static_cast<double>(block.experts.size()) - static_cast<double>(num_idle_experts(block));
  return bytes - compute_bytes * num_met * static_cast<double>(expert.down.num_in) / 2.0;
}

// Tokens of one sequence that goes through the model with gradients.
double sequence_length(const TrainingExtent& extent) {
  const int64_t window = extent.windows.training.windows.num_tokens;
  if (extent.options.loss.loss != DistillLoss::minillm) return static_cast<double>(window);
  const int64_t sample = extent.options.prompt_tokens + extent.options.sampled_tokens;
  const bool reads_text = extent.options.minillm.language_model_weight > 0.0;
  return static_cast<double>(reads_text ? std::max(window, sample) : sample);
}

// Of a linear's weight, as a step holds it.
double held_bytes(const Checkpoint& checkpoint, const LinearDescription& linear, const TrainingExtent& extent) {
  if (checkpoint.stored_scheme(linear).value_or(PackScheme{.format = StoredFormat::dense}).is_dense()) {
    return static_cast<double>(c10::elementSize(held_type(checkpoint.linear(linear), extent.compute, extent.device)));
  }
  return bytes_of(extent.compute);
}

bool samples(const TrainingExtent& extent) {
  return extent.options.loss.loss == DistillLoss::minillm;
}

double teacher_bytes(const TrainingExtent& extent) {
  double bytes = 0.0;
  for (const LinearDescription& linear : block_linears(extent.teacher->description())) {
    bytes += num_weights_of(linear) *
             (samples(extent) ? bytes_of(extent.compute) : held_bytes(*extent.teacher, linear, extent));
  }
  return bytes;
}

// Of the student's linears: parameters with gradients and moments, codes with their offsets, and, unless they are made
// for each block anew, what the forward pass multiplies.
double student_bytes(const TrainingExtent& extent) {
  const TrainedParts& parts = extent.options.train;
  double bytes = 0.0;
  for (const LinearDescription& linear : block_linears(extent.student.description())) {
    const std::optional<PackScheme> scheme = extent.student.stored_scheme(linear);
    const bool is_code = scheme && !scheme->is_dense();
    double of_weight = 0.0;
    if (is_code) {  // the code, its offset, the sum of gradients, the offset's moments
      of_weight = 1.0 + kFloatBytes + (parts.weights || parts.scales ? kFloatBytes : 0.0) +
                  (parts.weights ? 2.0 * kFloatBytes : 0.0);
    } else {
      of_weight = parts.weights ? 4.0 * kFloatBytes : held_bytes(extent.student, linear, extent);
    }
    const bool is_made = is_code || parts.weights;
    if (is_made && !extent.options.recompute) of_weight += held_bytes(extent.student, linear, extent);
    bytes += of_weight * num_weights_of(linear);
  }
  return bytes;
}

double peak_bytes(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const ModelDescription& model = extent.student.description();
  const double compute_bytes = bytes_of(extent.compute);
  const bool has_threads = extent.device.is_cpu() && !samples(extent) &&
                           works_on_threads(options.batch / options.micro_batch, limits.num_threads);
  const double at_once = has_threads ? limits.num_threads : 1;
  const double micro_tokens = at_once * static_cast<double>(options.micro_batch) * sequence_length(extent);
  const double hidden = kFloatBytes * static_cast<double>(model.hidden_size);
  double activations = 0.0;  // of one token
  for (const BlockDescription& block : model.blocks) {
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
  const double tables = (model.tied_head ? 1.0 : 2.0) * table_size(model);
  double memory = student_bytes(extent) + tables * compute_bytes + activations * micro_tokens + head;
  // What samples is made once for all of a sequence's tokens. Where activations are kept, they come later and are more.
  if (samples(extent) && options.recompute) memory += num_weights(model) * compute_bytes;
  // Parameters with gradients and moments, and the sum of each micro-batch.
  if (options.train.embedding) memory += (4.0 + at_once) * kFloatBytes * tables;
  if (extent.teacher != nullptr) {
    const ModelDescription& own = extent.teacher->description();
    // A table of the same values is held once: a student of the teacher's width was made of it.
    const bool shares_table = !options.train.embedding && own.hidden_size == model.hidden_size;
    memory += teacher_bytes(extent) + (shares_table ? 0.0 : table_size(own)) * compute_bytes;
  }
  return static_cast<double>(limits.held_bytes + limits.num_threads * kThreadBytes) + kHeapShare * memory;
}

double seconds_of(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const ModelDescription& model = extent.student.description();
  const double weights = num_weights_of_a_token(model);
  const double table = table_size(model);
  double operations = 6.0 * weights + 4.0 * table + (options.train.embedding ? 2.0 * table : 0.0) +
                      (options.recompute ? 2.0 * weights : 0.0);
  if (extent.teacher != nullptr) {
    const ModelDescription& own = extent.teacher->description();
    operations += 2.0 * (num_weights_of_a_token(own) + table_size(own));
  }
  const double of_window = tokens_of_window(options, static_cast<double>(extent.windows.training.windows.num_tokens));
  const int64_t num_steps = num_training_steps(options, of_window);
  const double tokens = static_cast<double>(num_steps * options.batch) * sequence_length(extent);
  const TokenWindows& validation = extent.windows.validation.windows;
  const double validated =
      static_cast<double>((options.validations + 1) * validation.num_windows * validation.num_tokens);
  // Products in bfloat16 take about half the time of float32.
  const double rate = extent.device.is_cpu() ? limits.matmul_rate * (extent.compute == at::kBFloat16 ? 2.0 : 1.0)
                                             : measure_gpu_rate(extent.device);
  // Attention, norms and losses beside the products: measured on SmolLM2, about a third of the time.
  return 1.5 * (tokens * operations + validated * 2.0 * (weights + table)) / rate;
}

}  // namespace

Prediction predict_training(const TrainingExtent& extent, const RunLimits& limits) {
  const DistillOptions& options = extent.options;
  const ModelDescription& model = extent.student.description();
  const bool is_cpu = extent.device.is_cpu();
  Prediction prediction;
  prediction.stages.push_back({is_cpu ? "train" : "train (memory of the GPU)", seconds_of(extent, limits),
                               static_cast<int64_t>(peak_bytes(extent, limits))});
  prediction.output_bytes = 0;
  for (const std::filesystem::path& file : extent.student.weight_files()) {
    prediction.output_bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  const double trained = (options.train.weights ? num_weights(model) : 0.0) +
                         (options.train.embedding ? (model.tied_head ? 1.0 : 2.0) * table_size(model) : 0.0);
  prediction.disk_bytes = TrainingStore::size_bytes(static_cast<int64_t>(trained)) + 2 * prediction.output_bytes;
  if (is_cpu && prediction.peak_memory_bytes() > limits.max_memory_bytes) {
    throw std::invalid_argument("training needs about " + format_bytes(prediction.peak_memory_bytes()) +
                                " of memory, allowed are " + format_bytes(limits.max_memory_bytes) +
                                ": lower 'micro_batch', set 'recompute: true', or give more with --max-memory");
  }
  return prediction;
}

}  // namespace pare
