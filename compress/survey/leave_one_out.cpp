#include "compress/survey/leave_one_out.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <numeric>
#include <stdexcept>

#include "quant/row_chunks.h"
#include "runtime/engine/memory_need.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

std::vector<at::Tensor> copies(const at::Tensor& tensor, size_t count) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < count; ++i) all.push_back(tensor.clone());
  return all;
}

double mean(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Changes a stage for the time of a measurement.
class ChangedStage {
 public:
  ChangedStage(DecoderBlock& block, const StageChange& change) : block_(block), change_(change) {
    block.set_input_format(change.stage, change.input);
    for (size_t i = 0; i < change.weights_OI.size(); ++i) {
      originals_.push_back(change.weights_OI[i].empty() ? at::Tensor() : block.weight(change.stage, i).clone());
      if (originals_[i].defined()) block.set_weight(change.stage, i, change.weights_OI[i]);
    }
  }
  ChangedStage(const ChangedStage&) = delete;
  ChangedStage& operator=(const ChangedStage&) = delete;
  ~ChangedStage() {
    block_.set_input_format(change_.stage, {});
    for (size_t i = 0; i < originals_.size(); ++i) {
      if (originals_[i].defined()) block_.weight(change_.stage, i).copy_(originals_[i]);
    }
  }

 private:
  DecoderBlock& block_;
  const StageChange& change_;
  std::vector<at::Tensor> originals_;
};

}  // namespace

LeaveOneOut::LeaveOneOut(const runtime::Checkpoint& checkpoint, const runtime::ScoredWindows& data,
                         runtime::Backend& backend, size_t num_travellers, std::vector<RoundedSite> sites)
    : checkpoint_(checkpoint),
      model_(checkpoint.description()),
      data_(data),
      backend_(backend),
      block_(checkpoint, 0, data.windows.num_tokens),
      final_norm_(read_final_norm(checkpoint)),
      sites_(std::move(sites)),
      hidden_NTD_(at::empty({data.windows.num_windows, data.windows.num_tokens, model_.hidden_size}, at::kFloat)),
      reference_(backend.allocate(hidden_NTD_.numel())),
      changed_(backend.allocate(hidden_NTD_.numel())) {
  const runtime::TokenWindows& windows = data.windows;
  if (windows.num_tokens > model_.context_length) {
    throw std::invalid_argument(data.source + ": windows of " + std::to_string(windows.num_tokens) +
                                " tokens; the model's context is " + std::to_string(model_.context_length));
  }
  for (const int32_t id : windows.ids_NT) {
    if (id < 0 || id >= model_.vocabulary_size) {
      throw std::invalid_argument(data.source + ": token id " + std::to_string(id) + "; the model's vocabulary has " +
                                  std::to_string(model_.vocabulary_size));
    }
  }
  const runtime::LinearWeights embedding = checkpoint.linear(checkpoint.embedding());
  const EmbeddingRest rest = read_embedding_rest(checkpoint);
  quant::for_row_chunks(windows.num_windows, 1, [&](int64_t n, int64_t) {
    embed(embedding, model_.embedding_scale, windows.window(n), hidden_NTD_[n].data_ptr<float>());
    finish_embedding(rest, windows.num_tokens, hidden_NTD_[n].data_ptr<float>());
  });
  travellers_ = copies(hidden_NTD_, num_travellers + sites_.size());
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (sites_[i].site != runtime::ActivationSite::embedding_sum) continue;
    const at::Tensor& embedded_NTD = travellers_[num_travellers + i];
    runtime::fake_quantize(sites_[i].format,
                           {embedded_NTD.data_ptr<float>(), static_cast<size_t>(embedded_NTD.numel())},
                           model_.hidden_size);
  }
  const runtime::LinearWeights head = checkpoint.linear(checkpoint.head());
  head_ = backend.pack({&head, 1});

  std::vector<at::Tensor> unchanged = copies(hidden_NTD_, 1);
  for (int64_t b = 0; b < static_cast<int64_t>(model_.blocks.size()); ++b) {
    runtime::throw_if_interrupted();
    if (b == 0) {
      forward(block_, unchanged);
    } else {
      forward(DecoderBlock(checkpoint, b, windows.num_tokens), unchanged);
    }
  }
  finish(unchanged[0], reference_.get());
  const int64_t num_scored = data.predictions_per_window();
  std::vector<float> nll(static_cast<size_t>(num_scored));
  std::vector<uint8_t> top1(nll.size());
  for (int64_t n = 0; n < windows.num_windows; ++n) {
    const float* x_RD = reference_.get() + (n * windows.num_tokens + data.first_scored) * model_.hidden_size;
    backend.cross_entropy(*head_, x_RD, targets(n), model_.logit_softcap, nll.data(), top1.data());
    baseline_nll_ += mean(nll) / static_cast<double>(windows.num_windows);
  }
  if (!std::isfinite(baseline_nll_)) {
    throw std::runtime_error(data.source + ": the uncompressed model's loss is not finite: its weights are damaged");
  }
}

std::span<const int32_t> LeaveOneOut::targets(int64_t window) const {
  return data_.windows.window(window).subspan(static_cast<size_t>(data_.first_scored + 1));
}

void LeaveOneOut::forward(const DecoderBlock& block, std::span<at::Tensor> hidden_NTD) {
  const int64_t num_windows = data_.windows.num_windows;
  quant::for_row_chunks(static_cast<int64_t>(hidden_NTD.size()) * num_windows, 1, [&](int64_t index, int64_t) {
    at::Tensor hidden_TD = hidden_NTD[static_cast<size_t>(index / num_windows)][index % num_windows];
    block.forward(hidden_TD);
  });
}

void LeaveOneOut::finish(const at::Tensor& hidden_NTD, float* final_RD) const {
  const int64_t num_values = hidden_NTD.size(1) * model_.hidden_size;
  for (int64_t n = 0; n < hidden_NTD.size(0); ++n) {
    const at::Tensor final_TD = final_norm_(hidden_NTD[n]);
    backend_.upload<float>({final_TD.const_data_ptr<float>(), static_cast<size_t>(num_values)},
                           final_RD + n * num_values);
  }
}

std::vector<WindowLosses> LeaveOneOut::measure(std::span<const StageChange> changes) {
  if (changes.empty()) return {};
  std::vector<at::Tensor> hidden_NTD = copies(hidden_NTD_, changes.size());
  for (size_t i = 0; i < changes.size(); ++i) {
    const ChangedStage changed(block_, changes[i]);
    forward(block_, {&hidden_NTD[i], 1});
  }
  for (int64_t b = index_ + 1; b < static_cast<int64_t>(model_.blocks.size()); ++b) {
    runtime::throw_if_interrupted();
    forward(DecoderBlock(checkpoint_, b, data_.windows.num_tokens), hidden_NTD);
  }

  std::vector<WindowLosses> losses;
  for (size_t i = 0; i < changes.size(); ++i) {
    losses.push_back(score(hidden_NTD[i], block().name + ", " + runtime::stage_name(changes[i].stage)));
  }
  return losses;
}

WindowLosses LeaveOneOut::score(const at::Tensor& hidden_NTD, const std::string& where) {
  runtime::throw_if_interrupted();
  const auto num_scored = static_cast<size_t>(data_.predictions_per_window());
  std::vector<float> kl(num_scored), nll(num_scored), reference_nll(num_scored);
  std::vector<uint8_t> same_top1(num_scored);
  WindowLosses losses;
  finish(hidden_NTD, changed_.get());
  for (int64_t n = 0; n < data_.windows.num_windows; ++n) {
    const int64_t offset = (n * data_.windows.num_tokens + data_.first_scored) * model_.hidden_size;
    backend_.compare(*head_, reference_.get() + offset, model_.logit_softcap, *head_, changed_.get() + offset,
                     model_.logit_softcap, targets(n), kl.data(), same_top1.data(), reference_nll.data(), nll.data());
    losses.increase.push_back(mean(nll) - mean(reference_nll));
    losses.kl.push_back(mean(kl));
    if (std::isfinite(losses.increase.back()) && std::isfinite(losses.kl.back())) continue;
    throw std::runtime_error(where + ": rounded, the loss of window " + std::to_string(n) + " of " + data_.source +
                             " is not finite; leave these layers out with 'layers: {exclude: ...}'");
  }
  return losses;
}

void LeaveOneOut::advance(std::span<const std::vector<StageChange>> changes) {
  forward(block_, {&hidden_NTD_, 1});
  const size_t first_site = travellers_.size() - sites_.size();
  for (size_t i = 0; i < first_site; ++i) {
    std::list<ChangedStage> changed;
    if (i < changes.size()) {
      for (const StageChange& change : changes[i]) changed.emplace_back(block_, change);
    }
    forward(block_, {&travellers_[i], 1});
  }
  for (size_t i = 0; i < sites_.size(); ++i) {
    block_.round_site(sites_[i]);
    forward(block_, {&travellers_[first_site + i], 1});
    block_.round_no_site();
  }
  ++index_;
  if (index_ < static_cast<int64_t>(model_.blocks.size())) {
    block_ = DecoderBlock(checkpoint_, index_, data_.windows.num_tokens);
  }
}

std::vector<WindowLosses> LeaveOneOut::arrived() {
  std::vector<WindowLosses> losses;
  for (const at::Tensor& hidden_NTD : travellers_) losses.push_back(score(hidden_NTD, "a group of layers"));
  return losses;
}

int64_t LeaveOneOut::size_bytes(const runtime::Checkpoint& checkpoint, const Extent& extent, int num_threads) {
  const runtime::ModelDescription& model = checkpoint.description();
  const int64_t num_tokens = extent.num_tokens;
  const int64_t hidden = extent.num_windows * num_tokens * model.hidden_size * static_cast<int64_t>(sizeof(float));
  const runtime::LinearDescription head = checkpoint.head();
  const int64_t head_bytes = runtime::packed_weight_bytes(
      head, runtime::dense_scheme(), checkpoint.layout(head.name + ".weight").dtype, /*on_host=*/true);
  // It holds the states, their copies for each change, the travellers and both final states. The unchanged model's pass
  // takes one copy as well. It also holds the current block, the next one, and the changes of this block and, for
  // travellers, of their groups.
  const int64_t num_copies = std::max<int64_t>(extent.changes_per_block, 1);
  return hidden * (1 + num_copies + extent.num_travellers + 2) + head_bytes + 3 * largest_block(model) * 4 +
         num_threads * BlockFunctions::forward_bytes(model, num_tokens);
}

double LeaveOneOut::num_operations(const runtime::ModelDescription& model, const Extent& extent) {
  const auto num_rows = static_cast<double>(extent.num_windows * extent.num_tokens);
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  const double head = static_cast<double>(model.vocabulary_size) * static_cast<double>(model.hidden_size);
  double sum = num_rows * 2.0 * head;
  for (int64_t b = 0; b < num_blocks; ++b) {
    double weights = static_cast<double>(extent.num_tokens * model.num_heads * model.head_size);  // the causal half
    const runtime::BlockDescription& block = model.blocks[static_cast<size_t>(b)];
    for (const runtime::Stage stage : runtime::block_stages(block)) {
      for (const runtime::LinearDescription& linear : runtime::stage_layers(block, stage)) {
        weights += static_cast<double>(linear.num_out) * static_cast<double>(linear.num_in) *
                   runtime::token_share(block, stage);
      }
    }
    // There is one pass for the unchanged model, one to move on and one for each traveller. There is one for every
    // change of this block and of earlier ones.
    const int64_t num_passes = 2 + extent.num_travellers + extent.changes_per_block * (b + 1);
    sum += num_rows * 2.0 * weights * static_cast<double>(num_passes);
    sum += num_rows * 4.0 * head * static_cast<double>(extent.changes_per_block);
  }
  sum += num_rows * 4.0 * head * static_cast<double>(extent.num_travellers);
  return sum;
}

}  // namespace pare::compress
