#include "compress/walk/encoder_walk.h"

#include <ATen/ops/empty.h>

#include <array>
#include <stdexcept>

#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// Values of each token: the states, what attention makes, what the activation does, and norms of states.
std::array<int64_t, 4> widths(const runtime::EncoderDescription& model) {
  return {model.hidden_size, model.hidden_size, model.feed_forward_size,
          model.blocks.front().normalizes_first ? model.hidden_size : 0};
}

}  // namespace

EncoderWalk::EncoderWalk(const runtime::Checkpoint& checkpoint, const CalibrationTexts& texts, uint64_t sample_seed) {
  const runtime::EncoderDescription& model = checkpoint.encoder();
  first_row_.push_back(0);
  for (const auto& ids : texts) first_row_.push_back(first_row_.back() + static_cast<int64_t>(ids.size()));
  const int64_t num_rows = first_row_.back(), num_counted = num_rows / kGroupRows * kGroupRows;
  if (num_counted == 0) {
    throw std::invalid_argument("calibration: the texts have " + std::to_string(num_rows) +
                                " tokens; expected at least " + std::to_string(kGroupRows));
  }
  sample_rows_ = draw_sorted(num_counted, kNumSampleRows, sample_seed);
  const auto [hidden, mixed, activated, normed] = widths(model);
  if (normed > 0) normed_RD_ = at::empty({num_rows, normed}, at::kFloat);
  hidden_RD_ = at::empty({num_rows, hidden}, at::kFloat);
  mixed_RD_ = at::empty({num_rows, mixed}, at::kFloat);
  activated_RF_ = at::empty({num_rows, activated}, at::kFloat);
  const EncoderEmbedding embedding(checkpoint);
  quant::for_row_chunks(static_cast<int64_t>(texts.size()), 1, [&](int64_t text, int64_t) {
    at::Tensor hidden_TD = rows(hidden_RD_, static_cast<size_t>(text));
    embedding.embed(texts[static_cast<size_t>(text)], hidden_TD);
  });
}

int64_t EncoderWalk::size_bytes(const runtime::EncoderDescription& model, int64_t num_tokens) {
  const auto [hidden, mixed, activated, normed] = widths(model);
  return num_tokens * (hidden + mixed + activated + normed) * static_cast<int64_t>(sizeof(float));
}

at::Tensor EncoderWalk::rows(const at::Tensor& all_RI, size_t text) const {
  return all_RI.narrow(0, first_row_[text], first_row_[text + 1] - first_row_[text]);
}

LayerStatistics EncoderWalk::reach(const EncoderBlock& block, runtime::Stage stage, StatisticsNeed need) {
  runtime::throw_if_interrupted();
  const auto for_each_text = [&](const auto& produce) {
    quant::for_row_chunks(static_cast<int64_t>(first_row_.size()) - 1, 1,
                          [&](int64_t text, int64_t) { produce(static_cast<size_t>(text)); });
  };
  if (stage == runtime::Stage::attention_output) {
    for_each_text(
        [&](size_t text) { rows(mixed_RD_, text).copy_(block.functions().attention(rows(hidden_RD_, text))); });
  } else if (stage == runtime::Stage::feed_forward_input) {
    for_each_text([&](size_t text) {
      const at::Tensor hidden_TD = rows(hidden_RD_, text);
      hidden_TD.copy_(block.functions().add_output(runtime::Stage::attention_output, rows(mixed_RD_, text), hidden_TD));
    });
  } else if (stage == runtime::Stage::feed_forward_output) {
    for_each_text(
        [&](size_t text) { rows(activated_RF_, text).copy_(block.functions().activation(rows(hidden_RD_, text))); });
  }
  if (need == StatisticsNeed::none) return {};

  if (!runtime::folds_into_linear(stage) && normed_RD_.defined()) {
    for_each_text(
        [&](size_t text) { rows(normed_RD_, text).copy_(block.functions().input(stage, rows(hidden_RD_, text))); });
  }
  const at::Tensor& x_RI = stage == runtime::Stage::attention_output      ? mixed_RD_
                           : stage == runtime::Stage::feed_forward_output ? activated_RF_
                           : normed_RD_.defined()                         ? normed_RD_
                                                                          : hidden_RD_;
  const int64_t num_groups = x_RI.size(0) / kGroupRows;
  StatisticsAccumulator accumulator(block.description().name + ", " + std::string(runtime::stage_name(stage)),
                                    x_RI.size(1), num_groups, kGroupRows, sample_rows_, need);
  quant::for_row_chunks(num_groups, 1, [&](int64_t group, int64_t) {
    accumulator.observe(group, x_RI.narrow(0, group * kGroupRows, kGroupRows));
  });
  accumulator.accumulate(0, x_RI.narrow(0, 0, num_groups * kGroupRows));
  return accumulator.finish();
}

void EncoderWalk::leave(const EncoderBlock& block) {
  quant::for_row_chunks(static_cast<int64_t>(first_row_.size()) - 1, 1, [&](int64_t index, int64_t) {
    const auto text = static_cast<size_t>(index);
    const at::Tensor hidden_TD = rows(hidden_RD_, text);
    hidden_TD.copy_(
        block.functions().add_output(runtime::Stage::feed_forward_output, rows(activated_RF_, text), hidden_TD));
  });
}

}  // namespace pare::compress
