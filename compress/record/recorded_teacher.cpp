#include "compress/record/recorded_teacher.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/losses.h"

namespace pare::compress {
namespace {

class RecordedTeacher : public Teacher {
 public:
  RecordedTeacher(const LogitStore& store, std::vector<int64_t> stored, int64_t num_vocabulary)
      : store_(store), stored_(std::move(stored)), num_vocabulary_(num_vocabulary) {
    const int64_t recorded = store.origin().num_vocabulary;
    if (std::abs(recorded - num_vocabulary) <= kMaxPadding) return;
    throw std::invalid_argument("'" + store.path().string() + "' holds logits of a vocabulary of " +
                                std::to_string(recorded) + " entries, the student's has " +
                                std::to_string(num_vocabulary) + ": they must have the same tokenizer");
  }

  std::unique_ptr<Teacher> for_another_thread() const override {
    auto other = std::make_unique<RecordedTeacher>(store_, stored_, num_vocabulary_);
    other->reading_ = reading_;
    return other;
  }

  at::Tensor label_losses(int64_t first, const at::Tensor& labels_R) override {
    at::Tensor losses_R = at::zeros({labels_R.size(0)}, at::kFloat);
    const at::Tensor host_labels_R = labels_R.to(at::kCPU).contiguous();
    const int64_t* const labels = host_labels_R.const_data_ptr<int64_t>();
    int64_t row = 0;
    for_parts(first, labels_R.size(0), [&](int64_t sequence, int64_t token, int64_t num_rows, int64_t num_filled) {
      const std::vector<float> log_probs = [&] {
        const std::lock_guard lock(*reading_);
        return store_.label_log_probs(sequence);
      }();
      for (int64_t i = 0; i < num_rows; ++i) {
        if (labels[row + i] == distill::kIgnoredLabel) continue;
        losses_R.data_ptr<float>()[row + i] = -log_probs[static_cast<size_t>(token + i)];
      }
      row += num_rows + num_filled;
    });
    return losses_R.to(labels_R.device());
  }

 private:
  void look_at(const TokenBatch& batch) override {
    sequences_.clear();
    for (const int64_t n : batch.sequences) sequences_.push_back(stored_.at(static_cast<size_t>(n)));
    num_tokens_ = batch.ids_BT.size(1);
    device_ = batch.ids_BT.device();
  }

  distill::TeacherLogits make_logits(int64_t first, int64_t count) override {
    std::vector<at::Tensor> ids, log_probs, log_tails;
    distill::TruncatedLogits joined;
    for_parts(first, count, [&](int64_t sequence, int64_t token, int64_t num_rows, int64_t num_filled) {
      const auto add = [&](distill::TruncatedLogits part) {
        ids.push_back(part.ids_TK);
        log_probs.push_back(part.log_probs_TK);
        log_tails.push_back(part.log_tails_TN);
        joined.temperatures = std::move(part.temperatures);
      };
      if (num_rows > 0) add(read(sequence, token, num_rows));
      // Behind a sequence's end nothing is predicted; its first row fills the place.
      for (int64_t i = 0; i < num_filled; ++i) add(read(sequence, 0, 1));
    });
    joined.num_vocabulary = num_vocabulary_;
    joined.ids_TK = at::cat(ids, 0).to(device_);
    joined.log_probs_TK = at::cat(log_probs, 0).to(device_);
    joined.log_tails_TN = at::cat(log_tails, 0).to(device_);
    return distill::TeacherLogits(std::move(joined));
  }

  distill::TruncatedLogits read(int64_t sequence, int64_t first, int64_t count) const {
    const std::lock_guard lock(*reading_);
    return store_.read(sequence, first, count);
  }

  // Rows [first, first + count) of the batch, sequence by sequence: those that the store has, and how many follow them
  // behind the sequence's end.
  template <typename Work>
  void for_parts(int64_t first, int64_t count, const Work& work) const {
    while (count > 0) {
      const int64_t sequence = sequences_.at(static_cast<size_t>(first / num_tokens_));
      const int64_t token = first % num_tokens_;
      const int64_t num_here = std::min(count, num_tokens_ - token);
      const int64_t num_rows = std::clamp<int64_t>(store_.length(sequence) - token, 0, num_here);
      work(sequence, token, num_rows, num_here - num_rows);
      first += num_here;
      count -= num_here;
    }
  }

  const LogitStore& store_;
  std::shared_ptr<std::mutex> reading_ = std::make_shared<std::mutex>();  // of the store, by one thread at a time
  std::vector<int64_t> stored_;
  int64_t num_vocabulary_;
  std::vector<int64_t> sequences_;
  int64_t num_tokens_ = 1;
  at::Device device_ = at::kCPU;  // of the batch
};

}  // namespace

std::unique_ptr<Teacher> recorded_teacher(const LogitStore& store, std::vector<int64_t> stored,
                                          int64_t num_vocabulary) {
  return std::make_unique<RecordedTeacher>(store, std::move(stored), num_vocabulary);
}

}  // namespace pare::compress
