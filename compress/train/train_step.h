// One micro-batch through student and teacher: the loss, and the gradients of all that is trained.
//
// The model is cut in front of each block and each piece of the head's tokens, and the backward pass goes from piece to
// piece: so the logits of kHeadTokens tokens exist at a time and never those of a batch, and with `recompute` the
// activations of one block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "compress/train/student_model.h"
#include "distill/options.h"
#include "distill/teacher_logits.h"
#include "runtime/files/npy.h"

namespace pare {

// Tokens whose logits exist at a time.
inline constexpr int64_t kHeadTokens = 256;

// Sequences of one length; position t predicts labels_BT[t], which is kIgnoredLabel where there is nothing to predict.
struct TokenBatch {
  at::Tensor ids_BT;                    // int64
  at::Tensor labels_BT;                 // int64
  std::vector<int64_t> sequences = {};  // [B]: which of the data's, for teachers that have seen them before
  int64_t num_sequences() const { return ids_BT.size(0); }
  int64_t num_tokens() const { return ids_BT.numel(); }
};

// Windows as they are; each position's label is the next token, the last's is ignored.
TokenBatch make_batch(const TokenWindows& windows, std::span<const int64_t> chosen);

// What a teacher says of a batch's tokens.
class Teacher {
 public:
  virtual ~Teacher() = default;
  // To be called before `logits`, for each batch.
  virtual void see(const TokenBatch& batch) = 0;
  // Of the rows [first, first + count) of the batch, sequence after sequence.
  virtual TeacherLogits logits(int64_t first, int64_t count) = 0;
  // -log p(label) of the rows from `first` on, float32; 0 where the label is ignored.
  virtual at::Tensor label_losses(int64_t first, const at::Tensor& labels_R) = 0;
};

// A checkpoint's forward pass, in the type `compute`. The checkpoint must outlive it. num_vocabulary: of the student;
// more logits than that are cut off, fewer are padded with -inf. Throws std::invalid_argument for vocabularies that
// differ by more than kMaxPadding.
std::unique_ptr<Teacher> live_teacher(const Checkpoint& checkpoint, int64_t max_tokens, at::ScalarType compute,
                                      int64_t num_vocabulary);
// Rows that models of one tokenizer have more or less of: embeddings are padded to multiples of powers of two.
inline constexpr int64_t kMaxPadding = 1024;
// Throws std::invalid_argument for vocabularies that differ by more than that.
void check_vocabularies(int64_t teachers, int64_t students);

struct BatchLoss {
  double sum = 0.0;  // of the loss over tokens with a label, in nats
  int64_t num_labels = 0;
};
// Adds the gradients of (sum of losses) / num_step_labels to the student's; num_step_labels is the number of labels of
// all micro-batches of the step. teacher: null for a loss that reads none (hard_label).
BatchLoss train_on(const TokenBatch& batch, const DistillLossOptions& loss, bool recompute, int64_t num_step_labels,
                   Teacher* teacher, StudentModel& student);

// -log q(label), summed, without gradients.
BatchLoss score(const TokenBatch& batch, const StudentModel& student);

int64_t count_labels(const TokenBatch& batch);

}  // namespace pare
