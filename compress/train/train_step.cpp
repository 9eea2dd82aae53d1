#include "compress/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/losses.h"

namespace pare {
namespace {

// A piece of the forward pass with its graph: a leaf in front and what it has become behind.
struct Piece {
  at::Tensor input, output;
  TrainedTensors weights;
};

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().requires_grad_(true);
}

// Gradients of `outputs` by the input and by each trained tensor of `weights`.
std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& output_gradient,
                                     const at::Tensor& input, const TrainedTensors& weights) {
  std::vector<at::Tensor> inputs = {input};
  for (const std::string& name : weights.trained) inputs.push_back(weights.all.find(name)->second);
  return torch::autograd::grad({output}, inputs, {output_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

Piece run_block(const StudentModel& student, int64_t index, const at::Tensor& hidden_BTD) {
  Piece piece{leaf(hidden_BTD), {}, student.block(index)};
  piece.output = student.functions().block(index, piece.weights.all, piece.input);
  return piece;
}

at::Tensor rows(const at::Tensor& tensor_BTD, int64_t first, int64_t count) {
  return tensor_BTD.reshape({-1, tensor_BTD.size(-1)}).narrow(0, first, count);
}

// Of each token its sequence's.
at::Tensor sequence_of_rows(const TokenBatch& batch) {
  const int64_t num_tokens = batch.ids_BT.size(1);
  return at::arange(batch.num_sequences(), at::kLong).unsqueeze(1).expand({-1, num_tokens}).reshape({-1});
}

// SLIM's weights need every sequence's loss before the first gradient.
at::Tensor slim_weights_of(const TokenBatch& batch, const StudentModel& student, const TrainedTensors& outer,
                           const at::Tensor& hidden_BTD, Teacher& teacher) {
  const at::NoGradGuard no_grad;
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  at::Tensor student_R = at::empty({batch.num_tokens()}, at::kFloat);
  at::Tensor teacher_R = at::empty({batch.num_tokens()}, at::kFloat);
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    const at::Tensor x = student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second,
                                                        rows(hidden_BTD, first, count));
    student_R.narrow(0, first, count)
        .copy_(hard_label_loss(student.functions().logits(student.head(outer), x), labels));
    teacher_R.narrow(0, first, count).copy_(teacher.label_losses(first, labels));
  }
  return slim_weights(student_R, teacher_R, labels_R, sequence_of_rows(batch));
}

// Loss and gradients of final norm and head, piece by piece of the tokens; returns the gradient of the hidden states.
at::Tensor train_head(const TokenBatch& batch, const DistillLossOptions& options, int64_t num_step_labels,
                      Teacher* teacher, const at::Tensor& hidden_BTD, StudentModel& student, BatchLoss& loss) {
  const TrainedTensors outer = student.outer();
  // The embedding has its part behind the first block; tied, it is the head here.
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  const at::Tensor slim_R =
      options.loss == DistillLoss::slim ? slim_weights_of(batch, student, outer, hidden_BTD, *teacher) : at::Tensor();
  at::Tensor hidden_gradient = at::zeros_like(hidden_BTD);
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    const int64_t num_labels = labels.ne(kIgnoredLabel).sum().item<int64_t>();
    if (num_labels == 0) continue;
    const at::Tensor input = leaf(rows(hidden_BTD, first, count));
    const at::Tensor x = student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second, input);
    const at::Tensor logits_RV = student.functions().logits(student.head(outer), x);
    at::Tensor losses_R;
    if (teacher == nullptr) {
      losses_R = hard_label_loss(logits_RV, labels);
    } else {
      losses_R = token_losses(options, logits_RV, teacher->logits(first, count), labels,
                              slim_R.defined() ? slim_R.narrow(0, first, count) : at::Tensor());
    }
    const at::Tensor mean = mean_loss(losses_R, labels, num_step_labels);
    loss.sum += mean.item<double>() * static_cast<double>(num_step_labels);
    loss.num_labels += num_labels;
    std::vector<at::Tensor> gradients = gradients_of(mean, at::Tensor(), input, outer);
    rows(hidden_gradient, first, count).copy_(gradients.front());
    student.add_outer_gradients(outer, std::span(gradients).subspan(1));
  }
  return hidden_gradient;
}

void train_embedding(const TokenBatch& batch, const at::Tensor& gradient_BTD, StudentModel& student) {
  const TrainedTensors outer = student.outer();
  if (!outer.all.find(StudentModel::kEmbedding)->second.requires_grad()) return;
  const at::Tensor output = student.functions().embed(batch.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
  std::vector<at::Tensor> gradients;
  for (const std::string& name : outer.trained) {
    gradients.push_back(name != StudentModel::kEmbedding
                            ? at::Tensor()
                            : torch::autograd::grad({output}, {outer.all.find(name)->second}, {gradient_BTD}).front());
  }
  student.add_outer_gradients(outer, gradients);
}

// Rows of the vocabulary that one side has more of are padding.
class LiveTeacher : public Teacher {
 public:
  LiveTeacher(const Checkpoint& checkpoint, int64_t max_tokens, at::ScalarType compute, int64_t num_vocabulary)
      : functions_(checkpoint.description(), max_tokens, compute), num_vocabulary_(num_vocabulary) {
    const ModelDescription& model = checkpoint.description();
    check_vocabularies(model.vocabulary_size, num_vocabulary);
    InputFormats formats = read_input_formats(checkpoint);
    functions_.set_input_formats(std::move(formats));
    embedding_ = read_table(checkpoint, checkpoint.embedding(), compute);
    head_ = model.tied_head ? embedding_ : read_table(checkpoint, checkpoint.head(), compute);
    gain_ = read_gain(checkpoint, model.final_norm);
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      blocks_.push_back(read_block(checkpoint, static_cast<int64_t>(b), compute));
    }
  }

  void see(const TokenBatch& batch) override {
    const at::NoGradGuard no_grad;
    at::Tensor hidden = functions_.embed(batch.ids_BT, embedding_);
    for (size_t b = 0; b < blocks_.size(); ++b) hidden = functions_.block(static_cast<int64_t>(b), blocks_[b], hidden);
    normalized_ = functions_.final_norm(gain_, hidden);
  }

  TeacherLogits logits(int64_t first, int64_t count) override { return TeacherLogits(values(first, count)); }

  at::Tensor label_losses(int64_t first, const at::Tensor& labels_R) override {
    return hard_label_loss(values(first, labels_R.size(0)), labels_R);
  }

 private:
  at::Tensor values(int64_t first, int64_t count) const {
    const at::NoGradGuard no_grad;
    at::Tensor logits_RV = functions_.logits(head_, rows(normalized_, first, count));
    const int64_t num_own = logits_RV.size(1);
    if (num_own > num_vocabulary_) return logits_RV.narrow(1, 0, num_vocabulary_).contiguous();
    if (num_own == num_vocabulary_) return logits_RV;
    return at::cat(
        {logits_RV, at::full({count, num_vocabulary_ - num_own}, -std::numeric_limits<double>::infinity(), at::kFloat)},
        1);
  }

  FunctionalModel functions_;
  int64_t num_vocabulary_;
  at::Tensor embedding_, head_, gain_, normalized_;
  std::vector<NamedTensors> blocks_;
};

}  // namespace

TokenBatch make_batch(const TokenWindows& windows, std::span<const int64_t> chosen) {
  const auto num_sequences = static_cast<int64_t>(chosen.size());
  TokenBatch batch{at::empty({num_sequences, windows.num_tokens}, at::kLong),
                   at::empty({num_sequences, windows.num_tokens}, at::kLong),
                   {chosen.begin(), chosen.end()}};
  for (int64_t b = 0; b < num_sequences; ++b) {
    const std::span<const int32_t> ids = windows.window(chosen[static_cast<size_t>(b)]);
    int64_t* const id = batch.ids_BT.data_ptr<int64_t>() + b * windows.num_tokens;
    int64_t* const label = batch.labels_BT.data_ptr<int64_t>() + b * windows.num_tokens;
    std::copy(ids.begin(), ids.end(), id);
    std::copy(ids.begin() + 1, ids.end(), label);
    label[windows.num_tokens - 1] = kIgnoredLabel;
  }
  return batch;
}

void check_vocabularies(int64_t teachers, int64_t students) {
  if (std::abs(teachers - students) <= kMaxPadding) return;
  throw std::invalid_argument("the teacher's vocabulary has " + std::to_string(teachers) + " entries, the student's " +
                              std::to_string(students) + ": they must have the same tokenizer");
}

int64_t count_labels(const TokenBatch& batch) {
  return batch.labels_BT.ne(kIgnoredLabel).sum().item<int64_t>();
}

std::unique_ptr<Teacher> live_teacher(const Checkpoint& checkpoint, int64_t max_tokens, at::ScalarType compute,
                                      int64_t num_vocabulary) {
  return std::make_unique<LiveTeacher>(checkpoint, max_tokens, compute, num_vocabulary);
}

BatchLoss train_on(const TokenBatch& batch, const DistillLossOptions& options, bool recompute, int64_t num_step_labels,
                   Teacher* teacher, StudentModel& student) {
  const at::AutoGradMode with_gradients(true);
  if (teacher != nullptr) teacher->see(batch);
  at::Tensor hidden;
  {
    const at::NoGradGuard no_grad;
    hidden = student.functions().embed(batch.ids_BT, student.outer().all.find(StudentModel::kEmbedding)->second);
  }
  std::vector<Piece> pieces;
  for (int64_t b = 0; b < student.num_blocks(); ++b) {
    if (recompute) {
      const at::NoGradGuard no_grad;
      pieces.push_back({hidden, {}, {}});
      hidden = student.functions().block(b, student.block(b).all, hidden);
    } else {
      pieces.push_back(run_block(student, b, hidden));
      hidden = pieces.back().output.detach();
    }
  }
  BatchLoss loss;
  at::Tensor gradient = train_head(batch, options, num_step_labels, teacher, hidden, student, loss);
  for (int64_t b = student.num_blocks() - 1; b >= 0; --b) {
    Piece piece = recompute ? run_block(student, b, pieces.back().input) : std::move(pieces.back());
    pieces.pop_back();
    std::vector<at::Tensor> gradients = gradients_of(piece.output, gradient, piece.input, piece.weights);
    gradient = std::move(gradients.front());
    student.add_block_gradients(b, piece.weights, std::span(gradients).subspan(1));
  }
  train_embedding(batch, gradient, student);
  return loss;
}

BatchLoss score(const TokenBatch& batch, const StudentModel& student) {
  const at::NoGradGuard no_grad;
  const TrainedTensors outer = student.outer();
  at::Tensor hidden = student.functions().embed(batch.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
  for (int64_t b = 0; b < student.num_blocks(); ++b) {
    hidden = student.functions().block(b, student.block(b).all, hidden);
  }
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  BatchLoss loss{0.0, count_labels(batch)};
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor x =
        student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second, rows(hidden, first, count));
    const at::Tensor labels = labels_R.narrow(0, first, count);
    loss.sum += hard_label_loss(student.functions().logits(student.head(outer), x), labels)
                    .to(at::kDouble)
                    .sum()
                    .item<double>();
  }
  return loss;
}

}  // namespace pare
