#include "compress/record/teacher.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/teacher_logits.h"

namespace pare::compress {
namespace {

// The logits in memory at a time. Their rows are enough for one call of a head's kernel to be efficient.
constexpr int64_t kChunkFloats = int64_t{1} << 22;

int64_t chunk_rows(int64_t num_vocabulary) {
  return std::max<int64_t>(1, kChunkFloats / num_vocabulary);
}

// Applies the soft cap to consecutive rows of logits. Returns the first row with a logit that is not finite, or the
// number of rows.
int64_t cap_rows(std::span<float> logits_RV, int64_t num_vocabulary, float cap) {
  const int64_t num_rows = static_cast<int64_t>(logits_RV.size()) / num_vocabulary;
  std::vector<uint8_t> is_bad(static_cast<size_t>(num_rows), 0);
  at::parallel_for(0, num_rows, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* logits_V = logits_RV.data() + row * num_vocabulary;
      uint32_t num_bad = 0;
      for (int64_t id = 0; id < num_vocabulary; ++id) {
        if (cap != 0.0f) logits_V[id] = cap * std::tanh(logits_V[id] / cap);
        num_bad += !(std::abs(logits_V[id]) <= std::numeric_limits<float>::max());
      }
      is_bad[static_cast<size_t>(row)] = num_bad > 0;
    }
  });
  return std::find(is_bad.begin(), is_bad.end(), 1) - is_bad.begin();
}

constexpr int32_t kNoLabel = -1;

// Returns ln p of each row's label, or 0 where there is none.
std::vector<float> label_log_probs(const at::Tensor& logits_RV, const at::Tensor& log_sums_R,
                                   std::span<const int32_t> labels_R) {
  const float* logits = logits_RV.const_data_ptr<float>();
  const float* log_sums = log_sums_R.const_data_ptr<float>();
  std::vector<float> values(labels_R.size(), 0.0f);
  for (size_t row = 0; row < labels_R.size(); ++row) {
    if (labels_R[row] == kNoLabel) continue;
    const float logit = logits[static_cast<int64_t>(row) * logits_RV.stride(0) + labels_R[row]];
    values[row] = std::min(logit - log_sums[row], 0.0f);  // rounding may leave it above 0
  }
  return values;
}

}  // namespace

RecordingTeacher::RecordingTeacher(runtime::Transformer& model, int64_t num_tokens, int64_t num_kept,
                                   std::vector<double> temperatures)
    : model_(model),
      num_tokens_(num_tokens),
      num_kept_(num_kept),
      temperatures_(std::move(temperatures)),
      logits_RV_(model.backend().allocate(chunk_rows(model.description().vocabulary_size) *
                                          model.description().vocabulary_size)),
      host_logits_RV_(static_cast<size_t>(logits_RV_.size())) {}

int64_t RecordingTeacher::batch_sequences(int64_t num_tokens) {
  return std::max<int64_t>(1, runtime::Transformer::kBatchRows / num_tokens);
}

int64_t RecordingTeacher::logit_bytes(int64_t num_vocabulary, int num_threads) {
  const int64_t num_rows = chunk_rows(num_vocabulary);
  return 2 * num_rows * num_vocabulary * static_cast<int64_t>(sizeof(float)) +
         distill::truncation_bytes(num_rows, num_vocabulary, num_threads);
}

void RecordingTeacher::append(std::span<const RecordedSequence> sequences, int64_t first_sequence,
                              LogitShardWriter& writer) {
  const runtime::ModelDescription& description = model_.description();
  const int64_t num_vocabulary = description.vocabulary_size, width = description.hidden_size;
  std::vector<int32_t> ids, labels;
  std::vector<int64_t> lengths;  // one for each document
  for (const RecordedSequence& sequence : sequences) {
    if (sequence.ids.size() != sequences.front().ids.size()) {
      throw std::invalid_argument("sequences of different lengths in one batch");
    }
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    labels.insert(labels.end(), sequence.ids.begin() + 1, sequence.ids.end());
    labels.push_back(kNoLabel);
    int64_t first = 0;
    for (const int32_t start : sequence.starts) {
      labels[labels.size() - sequence.ids.size() + static_cast<size_t>(start) - 1] = kNoLabel;
      lengths.push_back(start - std::exchange(first, start));
    }
    lengths.push_back(static_cast<int64_t>(sequence.ids.size()) - first);
  }
  const auto num_rows = static_cast<int64_t>(ids.size());
  const int64_t num_tokens = num_rows / static_cast<int64_t>(sequences.size());
  if (num_rows > num_hidden_rows_) {
    hidden_RD_ = model_.backend().allocate(num_rows * width);
    num_hidden_rows_ = num_rows;
  }
  model_.prefill_sequences(ids, lengths, hidden_RD_.get());
  for (int64_t first = 0; first < num_rows; first += chunk_rows(num_vocabulary)) {
    const int64_t count = std::min(chunk_rows(num_vocabulary), num_rows - first);
    model_.backend().linear(model_.head(), hidden_RD_.get() + first * width, count, logits_RV_.get());
    const std::span host_logits = std::span(host_logits_RV_).first(static_cast<size_t>(count * num_vocabulary));
    model_.backend().download<float>(logits_RV_.get(), host_logits);
    const int64_t bad = cap_rows(host_logits, num_vocabulary, description.logit_softcap);
    if (bad != count) {
      const int64_t row = first + bad;
      throw std::runtime_error("sequence " + std::to_string(first_sequence + row / num_tokens) + ", position " +
                               std::to_string(row % num_tokens) +
                               ": a logit is not finite: the weights are damaged or the model overflows float32");
    }
    const at::Tensor logits_RV =
        at::from_blob(host_logits.data(), {count, num_vocabulary}, at::kFloat).narrow(1, 0, num_tokens_);
    at::Tensor log_sums_R;
    const distill::TruncatedLogits truncated =
        distill::truncate_logits(logits_RV, num_kept_, temperatures_, &log_sums_R);
    const std::span labels_R = std::span(labels).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    writer.append(truncated, label_log_probs(logits_RV, log_sums_R, labels_R));
  }
}

std::vector<RecordedSequence> continue_prompts(runtime::Transformer& model,
                                               std::span<const runtime::GenerationRequest> requests) {
  std::vector<RecordedSequence> sequences;
  // A record says whether its texts grew in pages. A shard that grew otherwise would have other last bits.
  const std::vector<runtime::Generation> generations =
      runtime::generate_together(model, requests, {.needs_pages = true});
  for (size_t n = 0; n < requests.size(); ++n) {
    const std::span<const int32_t> prompt = requests[n].prompt;
    const runtime::Generation& generation = generations[n];
    RecordedSequence sequence{.ids = {prompt.begin(), prompt.end()}, .label_mask = {}};
    sequence.ids.insert(sequence.ids.end(), generation.ids.begin(), generation.ids.end());
    if (generation.reached_end) sequence.ids.push_back(generation.end_token);
    sequence.label_mask.assign(sequence.ids.size(), 0);
    std::fill(sequence.label_mask.begin() + static_cast<int64_t>(prompt.size()) - 1, sequence.label_mask.end() - 1,
              uint8_t{1});
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

RecordedSequence window_of_documents(std::span<const int32_t> ids, const std::vector<int32_t>& starts) {
  RecordedSequence sequence{
      .ids = {ids.begin(), ids.end()}, .label_mask = std::vector<uint8_t>(ids.size(), 1), .starts = starts};
  sequence.label_mask.back() = 0;
  for (const int32_t start : starts) sequence.label_mask[static_cast<size_t>(start) - 1] = 0;
  return sequence;
}

}  // namespace pare::compress
