#include "compress/walk/block_walk.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
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

}  // namespace

BlockWalk::BlockWalk(const runtime::ModelDescription& model, const runtime::TokenWindows& windows,
                     const runtime::LinearWeights& embedding, uint64_t sample_seed, Spill spill,
                     const std::filesystem::path& spill_directory, int num_workers, ExpertTokens expert_tokens,
                     const runtime::LinearWeights* original_embedding, bool keeps_block_inputs,
                     const EmbeddingRest& rest)
    : model_(model),
      num_windows_(windows.num_windows),
      num_tokens_(windows.num_tokens),
      layout_(model, num_windows_, num_tokens_, spill, num_workers, original_embedding != nullptr, keeps_block_inputs),
      sample_seed_(sample_seed),
      expert_tokens_(expert_tokens),
      hidden_(layout_.hidden, spill_directory),
      inputs_(layout_.inputs, spill_directory),
      group_x_(at::empty({layout_.group_x}, at::kFloat)) {
  if (layout_.sums) {
    sums_.emplace(*layout_.sums, spill_directory);
    routing_N_.resize(static_cast<size_t>(num_windows_));
    tokens_N_.resize(static_cast<size_t>(num_windows_));
  }
  if (layout_.block_inputs) block_inputs_.emplace(*layout_.block_inputs, spill_directory);
  for (const int32_t id : windows.ids_NT) {
    if (id < 0 || id >= model.vocabulary_size) {
      throw std::invalid_argument("calibration: token id " + std::to_string(id) + "; the model's vocabulary has " +
                                  std::to_string(model.vocabulary_size));
    }
  }
  for_each_window([&](int64_t window) {
    at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
    embed(embedding, model_.embedding_scale, windows.window(window), hidden_TD.data_ptr<float>());
    finish_embedding(rest, num_tokens_, hidden_TD.data_ptr<float>());
    hidden_.release(window, 1, model_.hidden_size);
  });
  if (original_embedding != nullptr) {
    original_.emplace(model, windows, *original_embedding, rest, sample_seed, layout_, spill_directory);
  }
}

void BlockWalk::for_each_window(const std::function<void(int64_t)>& work) const {
  for (int64_t first = 0; first < num_windows_; first += layout_.group_windows) {
    quant::for_row_chunks(
        std::min(layout_.group_windows, num_windows_ - first), 1, [&](int64_t index, int64_t) { work(first + index); },
        layout_.num_workers);
  }
}

void BlockWalk::check_original(const DecoderBlock* original) const {
  if (original_.has_value() == (original != nullptr)) return;
  throw std::invalid_argument(original_ ? "a walk that carries the original's states needs its block"
                                        : "the walk does not carry the original's states");
}

at::Tensor BlockWalk::input_rows(runtime::Stage stage, int64_t first, int64_t count, int64_t width) const {
  const int64_t chunk_first = first / chunk_windows(num_tokens_) * chunk_windows(num_tokens_);
  const auto row_of = [&](int64_t window) { return first_row_N_[static_cast<size_t>(window)]; };
  const int64_t offset = row_of(first) - row_of(chunk_first), num_rows = row_of(first + count) - row_of(first);
  if (is_output_stage(stage)) {
    return inputs_.windows(chunk_first, first + count - chunk_first, width).narrow(0, offset, num_rows);
  }
  const int64_t row = chunk_first % layout_.group_windows * num_tokens_ + offset;
  return group_x_.narrow(0, row * width, num_rows * width).view({num_rows, width});
}

void BlockWalk::add_output(const DecoderBlock& block, runtime::Stage stage, int64_t window) const {
  const int64_t width = runtime::stage_width(block.description(), stage);
  at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
  block.functions().add_output_of(stage, inputs_.windows(window, 1, width), hidden_TD, layout_.token_block);
  inputs_.release(window, 1, width);
}

void BlockWalk::enter_mixture(const DecoderBlock& block) {
  for_each_window([&](int64_t window) {
    add_output(block, runtime::Stage::attention_output, window);
    const BlockFunctions functions = block.functions();
    const at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
    routing_N_[static_cast<size_t>(window)] =
        functions.route(functions.normalized(runtime::Stage::feed_forward_input, hidden_TD).value());
    hidden_.release(window, 1, model_.hidden_size);
    sums_->windows(window, 1, model_.hidden_size).zero_();
    sums_->release(window, 1, model_.hidden_size);
  });
}

void BlockWalk::finish_expert(const DecoderBlock& block) {
  const runtime::Stage stage(runtime::Stage::feed_forward_output, expert_);
  const int64_t width = runtime::stage_width(block.description(), stage);
  for_each_window([&](int64_t window) {
    const ExpertRows rows = routing_N_[static_cast<size_t>(window)].rows_of(expert_);
    if (rows.rows_S.size(0) == 0) return;
    const BlockFunctions functions = block.functions();
    at::Tensor sum_TD = sums_->windows(window, 1, model_.hidden_size);
    if (expert_tokens_ == ExpertTokens::routed) {
      const StageInput activated_SF = StageInput::plain(input_rows(stage, window, 1, width));
      BlockFunctions::add_expert(rows, functions.output(stage, activated_SF), sum_TD);
    } else {  // what was kept is of all tokens
      const at::Tensor x_SD = hidden_.windows(window, 1, model_.hidden_size).index_select(0, rows.rows_S);
      const StageInput input = functions.normalized(runtime::Stage::feed_forward_input, x_SD);
      BlockFunctions::add_expert(rows, functions.output(stage, functions.activation(expert_, input)), sum_TD);
      hidden_.release(window, 1, model_.hidden_size);
    }
    sums_->release(window, 1, model_.hidden_size);
  });
}

void BlockWalk::choose_tokens(runtime::Stage stage) {
  first_row_N_.assign(1, 0);
  for (int64_t n = 0; n < num_windows_; ++n) {
    int64_t num_rows = num_tokens_;
    if (stage.expert != runtime::Stage::kNoExpert) {
      at::Tensor& tokens_S = tokens_N_[static_cast<size_t>(n)];
      tokens_S = expert_tokens_ == ExpertTokens::routed
                     ? routing_N_[static_cast<size_t>(n)].rows_of(stage.expert).rows_S
                     : at::arange(num_tokens_, at::kLong);
      num_rows = tokens_S.size(0);
    }
    first_row_N_.push_back(first_row_N_.back() + num_rows);
  }
}

void BlockWalk::produce(const DecoderBlock& block, runtime::Stage stage, int64_t window, at::Tensor& x_TI) const {
  const BlockFunctions functions = block.functions();
  at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
  if (stage.kind == runtime::Stage::query_latent || stage.kind == runtime::Stage::key_value_latent)
    return functions.latent(stage, hidden_TD).write(x_TI);
  if (stage.kind == runtime::Stage::attention_output)
    return functions.write_attention(hidden_TD, x_TI, layout_.token_block);
  // A parallel block's halves both read what it got. What they add is made when the walk leaves the block.
  const bool is_parallel = block.description().is_parallel;
  if (stage.kind == runtime::Stage::feed_forward_input && stage.expert == runtime::Stage::kNoExpert && !is_parallel) {
    add_output(block, runtime::Stage::attention_output, window);
  }
  if (stage.expert != runtime::Stage::kNoExpert)
    hidden_TD = hidden_TD.index_select(0, tokens_N_[static_cast<size_t>(window)]);
  if (stage.kind == runtime::Stage::feed_forward_output) {
    return functions.write_activation(stage.expert, hidden_TD, x_TI, layout_.token_block);
  }
  const bool is_attention = stage.kind == runtime::Stage::attention_input;
  functions.normalized(is_attention ? runtime::Stage::attention_input : runtime::Stage::feed_forward_input, hidden_TD)
      .write(x_TI);
}

LayerStatistics BlockWalk::reach(const DecoderBlock& block, runtime::Stage stage, StatisticsNeed need,
                                 const DecoderBlock* original) {
  check_original(original);
  if (block_inputs_ && stage.kind == runtime::Stage::attention_input) {
    for_each_window([&](int64_t window) {
      block_inputs_->windows(window, 1, model_.hidden_size).copy_(hidden_.windows(window, 1, model_.hidden_size));
      block_inputs_->release(window, 1, model_.hidden_size);
      hidden_.release(window, 1, model_.hidden_size);
    });
  }
  return move_to(block, stage, need, original);
}

LayerStatistics BlockWalk::move_to(const DecoderBlock& block, runtime::Stage stage, StatisticsNeed need,
                                   const DecoderBlock* original) {
  const int64_t width = runtime::stage_width(block.description(), stage);
  Stopwatch stopwatch;
  if (stage.kind == runtime::Stage::feed_forward_input && stage.expert == 0) {
    enter_mixture(block);
  } else if (stage.kind == runtime::Stage::feed_forward_input && stage.expert > 0) {
    finish_expert(block);
  }
  expert_ = stage.expert;
  choose_tokens(stage);
  const bool compares =
      original != nullptr && need == StatisticsNeed::original && stage.expert == runtime::Stage::kNoExpert;
  if (compares) original_->begin(stage, width);
  // H is the original stream's where it compares: of its windows, with its weights.
  need = std::min(need, compares ? StatisticsNeed::hessian_diagonal : StatisticsNeed::hessian);
  std::optional<StatisticsAccumulator> accumulator;
  if (need != StatisticsNeed::none) {
    accumulator.emplace(block.description().name + ", " + runtime::stage_name(stage), width, first_row_N_,
                        chunk_windows(num_tokens_), draw_sorted(first_row_N_.back(), kNumSampleRows, sample_seed_),
                        need);
  }
  std::vector<double> observing(static_cast<size_t>(omp_get_max_threads()));  // seconds of each thread
  for (int64_t first = 0; first < num_windows_; first += layout_.group_windows) {
    runtime::throw_if_interrupted();
    const int64_t count = std::min(layout_.group_windows, num_windows_ - first);
    const auto pass = [&](int64_t index, int64_t) {
      const int64_t window = first + index;
      const auto thread = static_cast<size_t>(omp_get_thread_num());
      at::Tensor x_TI = input_rows(stage, window, 1, width);
      if (x_TI.size(0) > 0) produce(block, stage, window, x_TI);
      hidden_.release(window, 1, model_.hidden_size);
      if (original != nullptr) {
        const at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
        const OriginalStream::Compared compared{block, hidden_TD, x_TI};
        original_->pass(*original, stage, window, compares ? &compared : nullptr);
        if (compares) hidden_.release(window, 1, model_.hidden_size);
      }
      Stopwatch observation;
      if (accumulator) accumulator->observe(window, x_TI);
      observing[thread] += observation.lap();
    };
    quant::for_row_chunks(count, 1, pass, layout_.num_workers);
    seconds_.forward += stopwatch.lap();
    for (int64_t chunk = first; accumulator && chunk < first + count; chunk += chunk_windows(num_tokens_)) {
      const int64_t num_windows = std::min(chunk_windows(num_tokens_), first + count - chunk);
      accumulator->accumulate(chunk, num_windows, input_rows(stage, chunk, num_windows, width));
    }
    if (compares) original_->accumulate(first, count);
    if (is_output_stage(stage)) inputs_.release(first, count, width);
    seconds_.statistics += stopwatch.lap();
  }
  if (!accumulator) return {};
  const double mean_observing = std::accumulate(observing.begin(), observing.end(), 0.0) /
                                static_cast<double>(std::min(static_cast<int>(observing.size()), layout_.num_workers));
  seconds_.forward -= mean_observing;
  seconds_.statistics += mean_observing;
  LayerStatistics statistics = accumulator->finish();
  if (compares) original_->finish(statistics);
  seconds_.statistics += stopwatch.lap();
  return statistics;
}

void BlockWalk::divide_inputs(runtime::Stage stage, std::span<const float> scales_I) {
  if (!is_output_stage(stage)) return;
  const auto width = static_cast<int64_t>(scales_I.size());
  for_each_window([&](int64_t window) {
    const at::Tensor rows = input_rows(stage, window, 1, width);
    float* x = rows.data_ptr<float>();
    for (int64_t t = 0; t < rows.size(0); ++t) {
      for (int64_t i = 0; i < width; ++i) x[t * width + i] /= scales_I[static_cast<size_t>(i)];
    }
    inputs_.release(window, 1, width);
  });
}

void BlockWalk::leave(const DecoderBlock& block, const DecoderBlock* original) {
  check_original(original);
  move_through(block, original);
}

void BlockWalk::with_states(int64_t window, const UseStates& use) const {
  if (!block_inputs_ || !original_) throw std::logic_error("the walk does not keep the states around a block");
  use(block_inputs_->windows(window, 1, model_.hidden_size), original_->states(window));
  block_inputs_->release(window, 1, model_.hidden_size);
  original_->release(window);
}

void BlockWalk::redo(const DecoderBlock& block) {
  if (!block_inputs_) throw std::logic_error("the walk does not keep the states in front of a block");
  for_each_window([&](int64_t window) {
    hidden_.windows(window, 1, model_.hidden_size).copy_(block_inputs_->windows(window, 1, model_.hidden_size));
    block_inputs_->release(window, 1, model_.hidden_size);
    hidden_.release(window, 1, model_.hidden_size);
  });
  for (const runtime::Stage stage : runtime::block_stages(block.description()))
    move_to(block, stage, StatisticsNeed::none, nullptr);
  move_through(block, nullptr);
}

void BlockWalk::move_through(const DecoderBlock& block, const DecoderBlock* original) {
  Stopwatch stopwatch;
  const bool is_mixture = block.description().is_mixture();
  if (is_mixture) finish_expert(block);
  for_each_window([&](int64_t window) {
    if (is_mixture) {
      at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
      block.add_output(runtime::Stage::feed_forward_output, sums_->windows(window, 1, model_.hidden_size), hidden_TD);
      sums_->release(window, 1, model_.hidden_size);
    } else if (block.description().is_parallel) {
      at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
      block.forward(hidden_TD);
    } else {
      add_output(block, runtime::Stage::feed_forward_output, window);
    }
    hidden_.release(window, 1, model_.hidden_size);
    if (original != nullptr) original_->leave(*original, window);
  });
  seconds_.forward += stopwatch.lap();
}

}  // namespace pare::compress
