// One micro-batch through student and teacher: the loss, and the gradients of all that is trained.
//
// The model is cut in front of each block, each piece of the head's tokens and the losses of it, and the backward pass
// goes from piece to piece: so the logits of kHeadTokens tokens exist at a time and never those of a batch, and with
// `recompute` the activations of one block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "compress/train/gradient_order.h"
#include "compress/train/student_model.h"
#include "distill/options.h"
#include "distill/teacher_logits.h"
#include "runtime/files/npy.h"

namespace pare::compress {

// Tokens whose logits exist at a time, for large products; and those of them that a loss is taken of at a time, for its
// many passes over the vocabulary to find their rows in the cache.
inline constexpr int64_t kHeadTokens = 128;
inline constexpr int64_t kLossTokens = 16;

// Sequences of one length; position t predicts labels_BT[t], which is kIgnoredLabel where there is nothing to predict.
struct TokenBatch {
  at::Tensor ids_BT;                    // int64
  at::Tensor labels_BT;                 // int64
  std::vector<int64_t> sequences = {};  // [B]: which of the data's, for teachers that have seen them before
  DocumentStarts starts = {};           // [B], or empty: no sequence holds more than one document
  int64_t num_sequences() const { return ids_BT.size(0); }
  int64_t num_tokens() const { return ids_BT.numel(); }
  TokenBatch to(at::Device device) const { return {ids_BT.to(device), labels_BT.to(device), sequences, starts}; }
};

// Sequences to train on or to validate with.
struct LabelledWindows {
  runtime::TokenWindows windows;  // num_tokens: of the longest
  // What each position predicts, kIgnoredLabel where it predicts nothing. Empty: the next token of its document; the
  // last of a document or a window predicts nothing.
  std::vector<int32_t> labels_NT = {};
  // Of each window the positions behind the first at which another document begins, ascending. Empty: nowhere.
  std::vector<std::vector<int32_t>> starts_N = {};
  // Where each window begins in windows.ids_NT and labels_NT, and the end: they differ in length and nothing fills them
  // up. Empty: all are of num_tokens.
  std::vector<int64_t> first_N = {};

  int64_t length(int64_t window) const;
  std::span<const int32_t> ids(int64_t window) const;
  std::span<const int32_t> labels(int64_t window) const;  // of labels_NT, which is not empty
  int64_t num_labels(std::span<const int64_t> chosen) const;
};

// The chosen sequences, cut behind the last label of the longest; shorter ones are filled up with token 0, without
// label.
TokenBatch make_batch(const LabelledWindows& data, std::span<const int64_t> chosen);

// What a teacher says of a batch's tokens.
class Teacher {
 public:
  virtual ~Teacher() = default;
  // To be called before `logits`, for each batch, on whose device the teacher's values then are.
  void see(const TokenBatch& batch);
  // Of the rows [first, first + count) of the batch, sequence after sequence. They are made for kHeadTokens rows at a
  // time, the last ones of which are kept.
  distill::TeacherLogits logits(int64_t first, int64_t count);
  // -log p(label) of the rows from `first` on, float32; 0 where the label is ignored.
  virtual at::Tensor label_losses(int64_t first, const at::Tensor& labels_R) = 0;
  // Of the batch behind each of its blocks, [B, T, D] float32; empty where it does not keep them.
  virtual const std::vector<at::Tensor>& hidden_states() const;
  // The same teacher for another thread: weights or files are shared, what it has seen is not.
  virtual std::unique_ptr<Teacher> for_another_thread() const = 0;

 private:
  virtual void look_at(const TokenBatch& batch) = 0;
  virtual distill::TeacherLogits make_logits(int64_t first, int64_t count) = 0;

  int64_t num_rows_ = 0;
  int64_t first_made_ = 0;
  std::optional<distill::TeacherLogits> made_;
};

// One that is there, and not what was recorded of it.
class LiveTeacher : public Teacher {
 public:
  virtual const FrozenModel& model() const = 0;
  // Its logits [R, V] over the student's vocabulary.
  virtual at::Tensor fitted(const at::Tensor& logits_RV) const = 0;
  // Holds `table_VD`, which the caller keeps anyway, in place of an embedding or head of the same values.
  virtual void share_table(const at::Tensor& table_VD) = 0;
};

// What a live teacher is for beside its logits of whole sequences.
struct TeacherUse {
  bool keeps_hidden = false;  // it has hidden_states()
  bool samples = false;  // token by token: weights are held in the type that is multiplied in, not widened each time
};
// A checkpoint's forward pass on `device`, in the type `compute`. The checkpoint must outlive it. num_vocabulary: of
// the student; more logits than that are cut off, fewer are padded with -inf.
// Throws std::invalid_argument for vocabularies that differ by more than kMaxPadding.
std::unique_ptr<LiveTeacher> live_teacher(const runtime::Checkpoint& checkpoint, int64_t max_tokens,
                                          at::ScalarType compute, int64_t num_vocabulary, const TeacherUse& use = {},
                                          at::Device device = at::kCPU);
// Rows that models of one tokenizer have more or less of: embeddings are padded to multiples of powers of two.
inline constexpr int64_t kMaxPadding = 1024;
// Throws std::invalid_argument for vocabularies that differ by more than that.
void check_vocabularies(int64_t teachers, int64_t students);

struct BatchLoss {
  double sum = 0.0;  // of the loss over tokens with a label, in nats
  int64_t num_labels = 0;
};
// Adds the gradients of (sum of losses) / num_step_labels to the student's; num_step_labels is the number of labels of
// all micro-batches of the step. teacher: null for a loss that reads none (hard_label). turn: for micro-batches on
// several threads (gradient_order.h: a place for each block, and one for what is outside of them). Throws
// std::invalid_argument for a hidden_weight and a teacher that keeps no hidden states, or states of another width.
BatchLoss train_on(const TokenBatch& batch, const distill::DistillLossOptions& loss, bool recompute,
                   int64_t num_step_labels, Teacher* teacher, StudentModel& student, const GradientTurn& turn = {});

// The losses of consecutive rows from `first` on, [R] with gradient: of their logits [R, V] and labels [R].
using TokenLoss = std::function<at::Tensor(const at::Tensor& logits_RV, const at::Tensor& labels_R, int64_t first)>;
// What there is to know of a batch before its first loss, from the hidden states behind the last block [B, T, D].
using LossOfHidden = std::function<TokenLoss(const at::Tensor& hidden_BTD)>;
// The same for a loss of its own.
BatchLoss train_on(const TokenBatch& batch, const LossOfHidden& make_loss, bool recompute, int64_t num_step_labels,
                   StudentModel& student);

// What a batch says of a student, without gradients: sums over its tokens with a label, in nats.
struct BatchScore {
  double label_loss = 0.0;  // -log q(label)
  double measured = 0.0;    // the loss asked for; 0: none was
  int64_t num_labels = 0;
};
// measured: null for labels alone; teacher: null where that reads none. Throws std::invalid_argument as train_on does.
BatchScore score(const TokenBatch& batch, const distill::DistillLossOptions* measured, Teacher* teacher,
                 const StudentModel& student);

int64_t count_labels(const TokenBatch& batch);

}  // namespace pare::compress
