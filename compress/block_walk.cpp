#include "compress/block_walk.h"

#include <ATen/ops/empty.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "quant/row_chunks.h"
#include "runtime/interrupt.h"

namespace pare {
namespace {

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int64_t widest_input(const ModelDescription& model) {
  return std::max(model.num_heads * model.head_size, model.feed_forward_size);
}

// Whole chunks of H, and at least a window for every worker.
int64_t windows_per_group(int64_t num_windows, int64_t num_tokens, int num_threads) {
  const int64_t chunk = chunk_windows(num_tokens);
  const int64_t chunks = (num_threads + chunk - 1) / chunk;
  return std::min(num_windows, chunk * chunks);
}

std::optional<std::filesystem::path> spill_path(bool spilled, const std::filesystem::path& directory) {
  return spilled ? std::optional(directory) : std::nullopt;
}

bool is_output_stage(Stage stage) {
  return stage == Stage::attention_output || stage == Stage::feed_forward_output;
}

}  // namespace

BlockWalk::BlockWalk(const ModelDescription& model, const TokenWindows& windows, const LinearWeights& embedding,
                     uint64_t sample_seed, Spill spill, const std::filesystem::path& spill_directory, int num_threads)
    : model_(model),
      num_windows_(windows.num_windows),
      num_tokens_(windows.num_tokens),
      group_windows_(windows_per_group(num_windows_, num_tokens_, num_threads)),
      sample_rows_(draw_sorted(num_windows_ * num_tokens_, kNumSampleRows, sample_seed)),
      hidden_(num_windows_, num_tokens_, model.hidden_size, spill_path(spill == Spill::all, spill_directory)),
      inputs_(num_windows_, num_tokens_, widest_input(model), spill_path(spill != Spill::none, spill_directory)),
      group_x_RD_(at::empty({group_windows_ * num_tokens_, model.hidden_size}, at::kFloat)) {
  for (int worker = 0; worker < num_threads; ++worker) scratch_.emplace_back(model, num_tokens_);
  for (const int32_t id : windows.ids_NT) {
    if (id < 0 || id >= model.vocabulary_size) {
      throw std::invalid_argument("calibration: token id " + std::to_string(id) + "; the model's vocabulary has " +
                                  std::to_string(model.vocabulary_size));
    }
  }
  for_row_chunks(num_windows_, 1, [&](int64_t window, int64_t) {
    at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
    embed(embedding, model_.embedding_scale, windows.window(window), hidden_TD.data_ptr<float>());
    hidden_.release(window, 1, model_.hidden_size);
  });
}

BlockWalk::Footprint BlockWalk::footprint(const ModelDescription& model, int64_t num_windows, int64_t num_tokens,
                                          Spill spill, int num_threads) {
  const int64_t hidden = HiddenStore::size_bytes(num_windows, num_tokens, model.hidden_size);
  const int64_t inputs = HiddenStore::size_bytes(num_windows, num_tokens, widest_input(model));
  Footprint footprint;
  (spill == Spill::all ? footprint.spill_bytes : footprint.memory_bytes) += hidden;
  (spill == Spill::none ? footprint.memory_bytes : footprint.spill_bytes) += inputs;
  footprint.memory_bytes += num_threads * BlockScratch::size_bytes(model, num_tokens);
  footprint.memory_bytes +=
      HiddenStore::size_bytes(windows_per_group(num_windows, num_tokens, num_threads), num_tokens, model.hidden_size);
  return footprint;
}

at::Tensor BlockWalk::input_rows(Stage stage, int64_t first, int64_t count, int64_t width) const {
  if (is_output_stage(stage)) return inputs_.windows(first, count, width);
  return group_x_RD_.narrow(0, first % group_windows_ * num_tokens_, count * num_tokens_);
}

// From the previous stage's input to this one's, for one window.
void BlockWalk::produce(const DecoderBlock& block, Stage stage, int64_t window, BlockScratch& scratch,
                        at::Tensor& x_TI) const {
  at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
  switch (stage) {
    case Stage::attention_input:
      block.attention_input(hidden_TD, x_TI);
      break;
    case Stage::attention_output:
      block.attention_input(hidden_TD, scratch.x_TD);
      block.attention(scratch.x_TD, scratch, x_TI);
      break;
    case Stage::feed_forward_input: {
      const int64_t mixed_width = model_.num_heads * model_.head_size;
      block.add_attention_output(inputs_.windows(window, 1, mixed_width), scratch, hidden_TD);
      inputs_.release(window, 1, mixed_width);
      block.feed_forward_input(hidden_TD, x_TI);
      break;
    }
    case Stage::feed_forward_output:
      block.feed_forward_input(hidden_TD, scratch.x_TD);
      block.feed_forward(scratch.x_TD, scratch, x_TI);
      break;
  }
  hidden_.release(window, 1, model_.hidden_size);
}

LayerStatistics BlockWalk::reach(const DecoderBlock& block, Stage stage, StatisticsNeed need) {
  const int64_t width = stage_width(block.description(), stage);
  const std::string where = block.description().name + ", " + std::string(stage_name(stage));
  std::optional<StatisticsAccumulator> accumulator;
  if (need != StatisticsNeed::none) {
    accumulator.emplace(where, width, num_windows_, num_tokens_, sample_rows_, need);
  }
  Stopwatch stopwatch;
  std::vector<double> observing(scratch_.size());  // seconds of each worker
  for (int64_t first = 0; first < num_windows_; first += group_windows_) {
    throw_if_interrupted();
    const int64_t count = std::min(group_windows_, num_windows_ - first);
    for_row_chunks(count, 1, [&](int64_t index, int64_t) {
      const int64_t window = first + index;
      const auto worker = static_cast<size_t>(omp_get_thread_num());
      at::Tensor x_TI = input_rows(stage, window, 1, width);
      produce(block, stage, window, scratch_.at(worker), x_TI);
      Stopwatch observation;
      if (accumulator) accumulator->observe(window, x_TI);
      observing[worker] += observation.lap();
    });
    seconds_.forward += stopwatch.lap();
    if (accumulator) accumulator->accumulate(first, input_rows(stage, first, count, width));
    if (is_output_stage(stage)) inputs_.release(first, count, width);
    seconds_.statistics += stopwatch.lap();
  }
  if (!accumulator) return {};
  const double mean_observing =
      std::accumulate(observing.begin(), observing.end(), 0.0) / static_cast<double>(observing.size());
  seconds_.forward -= mean_observing;
  seconds_.statistics += mean_observing;
  LayerStatistics statistics = accumulator->finish();
  seconds_.statistics += stopwatch.lap();
  return statistics;
}

void BlockWalk::divide_inputs(Stage stage, std::span<const float> scales_I) {
  if (!is_output_stage(stage)) return;
  const auto width = static_cast<int64_t>(scales_I.size());
  for_row_chunks(num_windows_, 1, [&](int64_t window, int64_t) {
    float* x = inputs_.windows(window, 1, width).data_ptr<float>();
    for (int64_t t = 0; t < num_tokens_; ++t) {
      for (int64_t i = 0; i < width; ++i) x[t * width + i] /= scales_I[static_cast<size_t>(i)];
    }
    inputs_.release(window, 1, width);
  });
}

void BlockWalk::leave(const DecoderBlock& block) {
  Stopwatch stopwatch;
  for_row_chunks(num_windows_, 1, [&](int64_t window, int64_t) {
    at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
    block.add_feed_forward_output(inputs_.windows(window, 1, model_.feed_forward_size),
                                  scratch_.at(static_cast<size_t>(omp_get_thread_num())), hidden_TD);
    inputs_.release(window, 1, model_.feed_forward_size);
    hidden_.release(window, 1, model_.hidden_size);
  });
  seconds_.forward += stopwatch.lap();
}

}  // namespace pare
