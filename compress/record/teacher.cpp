#include "compress/record/teacher.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "distill/rows.h"
#include "distill/teacher_logits.h"

namespace pare {
namespace {

// Logits in memory at a time: enough rows for one call of a head's kernel to be efficient.
constexpr int64_t kChunkFloats = int64_t{1} << 22;
// Of float32 [rows, V] that truncate_logits and the label hold beside the logits at their highest point, and a copy of
// these without padding.
constexpr int64_t kCopies = 7;

int64_t chunk_rows(int64_t num_vocabulary) {
  return std::max<int64_t>(1, kChunkFloats / num_vocabulary);
}

void cap_logits(float* logits, int64_t count, float cap) {
  if (cap == 0.0f) return;
  for (int64_t i = 0; i < count; ++i) logits[i] = cap * std::tanh(logits[i] / cap);
}

constexpr int32_t kNoLabel = -1;

// ln p of each row's label; 0 where there is none.
std::vector<float> label_log_probs(const at::Tensor& logits_RV, std::span<const int32_t> labels_R) {
  const at::Tensor log_sums_R = log_sum_exp_of_rows(logits_RV);
  const float* logits = logits_RV.const_data_ptr<float>();
  const float* log_sums = log_sums_R.const_data_ptr<float>();
  std::vector<float> values(labels_R.size(), 0.0f);
  for (size_t row = 0; row < labels_R.size(); ++row) {
    if (labels_R[row] == kNoLabel) continue;
    const float logit = logits[static_cast<int64_t>(row) * logits_RV.size(1) + labels_R[row]];
    values[row] = std::min(logit - log_sums[row], 0.0f);  // rounding may leave it above
  }
  return values;
}

}  // namespace

Teacher::Teacher(Transformer& model, int64_t num_tokens, int64_t num_kept, std::vector<double> temperatures)
    : model_(model),
      num_tokens_(num_tokens),
      num_kept_(num_kept),
      temperatures_(std::move(temperatures)),
      logits_RV_(model.backend().allocate(chunk_rows(model.description().vocabulary_size) *
                                          model.description().vocabulary_size)),
      host_logits_RV_(static_cast<size_t>(logits_RV_.size())) {}

int64_t Teacher::batch_sequences(int64_t num_tokens) {
  return std::max<int64_t>(1, Transformer::kBatchRows / num_tokens);
}

int64_t Teacher::logit_bytes(int64_t num_vocabulary) {
  return chunk_rows(num_vocabulary) * num_vocabulary * static_cast<int64_t>(sizeof(float)) * (2 + kCopies);
}

void Teacher::append(std::span<const RecordedSequence> sequences, int64_t first_sequence, LogitShardWriter& writer) {
  const ModelDescription& description = model_.description();
  const int64_t num_vocabulary = description.vocabulary_size, width = description.hidden_size;
  std::vector<int32_t> ids, labels;
  for (const RecordedSequence& sequence : sequences) {
    if (sequence.ids.size() != sequences.front().ids.size()) {
      throw std::invalid_argument("sequences of different lengths in one batch");
    }
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    labels.insert(labels.end(), sequence.ids.begin() + 1, sequence.ids.end());
    labels.push_back(kNoLabel);
  }
  const auto num_rows = static_cast<int64_t>(ids.size());
  const int64_t num_tokens = num_rows / static_cast<int64_t>(sequences.size());
  if (num_rows > num_hidden_rows_) {
    hidden_RD_ = model_.backend().allocate(num_rows * width);
    num_hidden_rows_ = num_rows;
  }
  model_.prefill_windows(ids, static_cast<int64_t>(sequences.size()), hidden_RD_.get());
  for (int64_t first = 0; first < num_rows; first += chunk_rows(num_vocabulary)) {
    const int64_t count = std::min(chunk_rows(num_vocabulary), num_rows - first);
    model_.backend().linear(model_.head(), hidden_RD_.get() + first * width, count, logits_RV_.get());
    const std::span host_logits = std::span(host_logits_RV_).first(static_cast<size_t>(count * num_vocabulary));
    model_.backend().download<float>(logits_RV_.get(), host_logits);
    cap_logits(host_logits.data(), count * num_vocabulary, description.logit_softcap);
    const at::Tensor logits_RV =
        at::from_blob(host_logits.data(), {count, num_vocabulary}, at::kFloat).narrow(1, 0, num_tokens_).contiguous();
    const auto bad = std::find_if(host_logits.begin(), host_logits.end(), [](float x) { return !std::isfinite(x); });
    if (bad != host_logits.end()) {
      const int64_t row = first + (bad - host_logits.begin()) / num_vocabulary;
      throw std::runtime_error("sequence " + std::to_string(first_sequence + row / num_tokens) + ", position " +
                               std::to_string(row % num_tokens) +
                               ": a logit is not finite: the weights are damaged or the model overflows float32");
    }
    writer.append(
        truncate_logits(logits_RV, num_kept_, temperatures_),
        label_log_probs(logits_RV, std::span(labels).subspan(static_cast<size_t>(first), static_cast<size_t>(count))));
  }
}

RecordedSequence continue_prompt(Transformer& model, std::span<const int32_t> prompt,
                                 const GenerationOptions& options) {
  const Generation generation = generate(model, prompt, options);
  RecordedSequence sequence{.ids = {prompt.begin(), prompt.end()}, .label_mask = {}};
  sequence.ids.insert(sequence.ids.end(), generation.ids.begin(), generation.ids.end());
  if (generation.reached_end) sequence.ids.push_back(generation.end_token);
  sequence.label_mask.assign(sequence.ids.size(), 0);
  std::fill(sequence.label_mask.begin() + static_cast<int64_t>(prompt.size()) - 1, sequence.label_mask.end() - 1,
            uint8_t{1});
  return sequence;
}

RecordedSequence whole_window(std::span<const int32_t> ids) {
  RecordedSequence sequence{.ids = {ids.begin(), ids.end()}, .label_mask = std::vector<uint8_t>(ids.size(), 1)};
  sequence.label_mask.back() = 0;
  return sequence;
}

}  // namespace pare
