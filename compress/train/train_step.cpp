#include "compress/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/hidden_states.h"
#include "distill/losses.h"
#include "runtime/system/large_pieces_stay.h"

namespace pare::compress {
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

Piece run_block(const StudentModel& student, int64_t index, const at::Tensor& hidden_BTD,
                const DocumentStarts& starts) {
  Piece piece{leaf(hidden_BTD), {}, student.block(index)};
  piece.output = student.functions().block(index, piece.weights.all, piece.input, /*earlier=*/nullptr, starts);
  return piece;
}

at::Tensor rows(const at::Tensor& tensor_BTD, int64_t first, int64_t count) {
  return tensor_BTD.reshape({-1, tensor_BTD.size(-1)}).narrow(0, first, count);
}

// Of each token its sequence's number, or its document's where sequences hold several.
at::Tensor sequence_of_rows(const TokenBatch& batch) {
  const int64_t num_tokens = batch.ids_BT.size(1);
  at::Tensor numbers_BT = at::arange(batch.num_sequences(), at::kLong).unsqueeze(1).expand({-1, num_tokens}).clone();
  int64_t num_before = 0;
  for (size_t b = 0; b < batch.starts.size(); ++b) {
    int64_t* const numbers_T = numbers_BT.data_ptr<int64_t>() + static_cast<int64_t>(b) * num_tokens;
    for (const int64_t start : batch.starts[b]) {
      for (int64_t t = start; t < num_tokens; ++t) ++numbers_T[t];
    }
    for (int64_t t = 0; t < num_tokens; ++t) numbers_T[t] += num_before;
    num_before += static_cast<int64_t>(batch.starts[b].size());
  }
  return numbers_BT.reshape({-1}).to(batch.ids_BT.device());
}

// SLIM's weights need every sequence's loss before the first gradient.
at::Tensor slim_weights_of(const TokenBatch& batch, const StudentModel& student, const TrainedTensors& outer,
                           const at::Tensor& hidden_BTD, Teacher& teacher) {
  const at::NoGradGuard no_grad;
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  at::Tensor student_R = at::empty({batch.num_tokens()}, hidden_BTD.options().dtype(at::kFloat));
  at::Tensor teacher_R = at::empty_like(student_R);
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    const at::Tensor x = student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second,
                                                        rows(hidden_BTD, first, count));
    student_R.narrow(0, first, count)
        .copy_(distill::hard_label_loss(student.functions().logits(student.head(outer), x), labels));
    teacher_R.narrow(0, first, count).copy_(teacher.label_losses(first, labels));
  }
  return distill::slim_weights(student_R, teacher_R, labels_R, sequence_of_rows(batch));
}

// The loss that options name, of the batch's tokens. teacher: null for hard labels.
TokenLoss loss_of(const distill::DistillLossOptions& options, const TokenBatch& batch, const at::Tensor& hidden_BTD,
                  Teacher* teacher, const StudentModel& student) {
  if (teacher == nullptr) {
    return [](const at::Tensor& logits_RV, const at::Tensor& labels_R, int64_t) {
      return distill::hard_label_loss(logits_RV, labels_R);
    };
  }
  const at::Tensor slim_R = options.loss == distill::DistillLoss::slim
                                ? slim_weights_of(batch, student, student.outer(), hidden_BTD, *teacher)
                                : at::Tensor();
  return [&options, teacher, slim_R](const at::Tensor& logits_RV, const at::Tensor& labels_R, int64_t first) {
    const int64_t count = labels_R.size(0);
    return distill::token_losses(options, logits_RV, teacher->logits(first, count), labels_R,
                                 slim_R.defined() ? slim_R.narrow(0, first, count) : at::Tensor());
  };
}

// Of the mean loss of rows from `first` on by the head's products, kLossTokens rows at a time: only they are ever
// float32. It takes the products' place in memory. Adds the sum of their losses.
at::Tensor gradient_of_products(const TokenLoss& token_loss, int64_t num_step_labels, int64_t first,
                                const DecoderFunctions& functions, const at::Tensor& products_RV,
                                const at::Tensor& labels_R, BatchLoss& loss) {
  at::Tensor gradient_RV = products_RV.detach();
  for (int64_t row = 0; row < products_RV.size(0); row += kLossTokens) {
    const int64_t count = std::min(kLossTokens, products_RV.size(0) - row);
    const at::Tensor products = leaf(products_RV.narrow(0, row, count));
    const at::Tensor labels = labels_R.narrow(0, row, count);
    const at::Tensor mean =
        distill::mean_loss(token_loss(functions.logits_of(products), labels, first + row), labels, num_step_labels);
    loss.sum += mean.item<double>() * static_cast<double>(num_step_labels);
    gradient_RV.narrow(0, row, count).copy_(torch::autograd::grad({mean}, {products}).front());
  }
  return gradient_RV;
}

// Gradients of the tensors outside of the blocks, from every piece of the head's tokens and from the embedding.
class OuterGradients {
 public:
  explicit OuterGradients(const TrainedTensors& outer) : sums_(outer.trained.size()) {}
  void add(size_t index, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    at::Tensor& sum = sums_.at(index);
    sum = sum.defined() ? sum.add_(gradient) : gradient.to(at::kFloat);
  }
  std::span<const at::Tensor> sums() const { return sums_; }

 private:
  std::vector<at::Tensor> sums_;  // float32, one for each that is trained; undefined: 0
};

// Loss and gradients of final norm and head, piece by piece of the tokens; returns the gradient of the hidden states.
// The embedding has its part behind the first block; tied, it is the head here.
at::Tensor train_head(const TokenBatch& batch, const TokenLoss& token_loss, int64_t num_step_labels,
                      const at::Tensor& hidden_BTD, const StudentModel& student, const TrainedTensors& outer,
                      OuterGradients& outer_gradients, BatchLoss& loss) {
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  at::Tensor hidden_gradient = at::zeros_like(hidden_BTD);
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    const int64_t num_labels = labels.ne(distill::kIgnoredLabel).sum().item<int64_t>();
    if (num_labels == 0) continue;
    const at::Tensor input = leaf(rows(hidden_BTD, first, count));
    const at::Tensor x = student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second, input);
    const at::Tensor products_RV = student.functions().head_products(student.head(outer), x);
    const at::Tensor products_gradient =
        gradient_of_products(token_loss, num_step_labels, first, student.functions(), products_RV, labels, loss);
    loss.num_labels += num_labels;
    std::vector<at::Tensor> gradients = gradients_of(products_RV, products_gradient, input, outer);
    rows(hidden_gradient, first, count).copy_(gradients.front());
    for (size_t i = 1; i < gradients.size(); ++i) outer_gradients.add(i - 1, gradients[i]);
  }
  return hidden_gradient;
}

// What the states behind the student's blocks are compared with, and what of the distance counts.
struct HiddenTargets {
  const std::vector<at::Tensor>& of_teacher;  // behind its blocks, [B, T, D]
  double weight;
};

// The states of a batch's teacher that the student's are compared with. Throws std::invalid_argument where it keeps
// none.
HiddenTargets targets_of(const distill::DistillLossOptions& options, const Teacher* teacher) {
  if (teacher == nullptr || teacher->hidden_states().empty()) {
    throw std::invalid_argument("hidden_weight: expected a teacher that keeps its hidden states");
  }
  return {teacher->hidden_states(), options.hidden_weight};
}

// The part of the loss that the distance of the states behind a block has: a mean over the step's labels.
at::Tensor mean_distance(const TokenBatch& batch, const HiddenTargets& targets, int64_t num_step_labels, int64_t block,
                         int64_t num_blocks, const at::Tensor& student_BTD) {
  const auto num_teacher = static_cast<int64_t>(targets.of_teacher.size());
  const at::Tensor& teacher_BTD =
      targets.of_teacher.at(static_cast<size_t>(distill::teacher_block(block, num_blocks, num_teacher)));
  return distill::mean_loss(distill::hidden_distances(rows(student_BTD, 0, batch.num_tokens()),
                                                      rows(teacher_BTD, 0, batch.num_tokens())),
                            batch.labels_BT.reshape({-1}), num_step_labels)
      .mul(targets.weight / static_cast<double>(num_blocks));
}

// Of the distance of the states behind the student's block from the teacher's, by the states; adds the distance's part
// of the loss.
at::Tensor gradient_of_distance(const TokenBatch& batch, const HiddenTargets& targets, int64_t num_step_labels,
                                int64_t block, int64_t num_blocks, const at::Tensor& hidden_BTD, BatchLoss& loss) {
  const at::Tensor student = leaf(hidden_BTD);
  const at::Tensor mean = mean_distance(batch, targets, num_step_labels, block, num_blocks, student);
  loss.sum += mean.item<double>() * static_cast<double>(num_step_labels);
  return torch::autograd::grad({mean}, {student}).front();
}

void train_embedding(const TokenBatch& batch, const at::Tensor& gradient_BTD, const StudentModel& student,
                     const TrainedTensors& outer, OuterGradients& outer_gradients) {
  const at::Tensor& table = outer.all.find(StudentModel::kEmbedding)->second;
  if (!table.requires_grad()) return;
  const auto place = std::find(outer.trained.begin(), outer.trained.end(), StudentModel::kEmbedding);
  outer_gradients.add(static_cast<size_t>(place - outer.trained.begin()),
                      student.functions().embedding_gradient(batch.ids_BT, gradient_BTD, table));
}

// targets: null for none.
BatchLoss train_pieces(const TokenBatch& batch, const LossOfHidden& make_loss, bool recompute, int64_t num_step_labels,
                       const HiddenTargets* targets, StudentModel& student, const GradientTurn& turn) {
  const at::AutoGradMode with_gradients(true);
  const TrainedTensors outer = student.outer();
  OuterGradients outer_gradients(outer);
  at::Tensor hidden;
  {
    const at::NoGradGuard no_grad;
    hidden = student.functions().embed(batch.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
  }
  std::vector<Piece> pieces;
  for (int64_t b = 0; b < student.num_blocks(); ++b) {
    if (recompute) {
      const at::NoGradGuard no_grad;
      pieces.push_back({hidden, {}, {}});
      hidden = student.functions().block(b, student.block(b).all, hidden, /*earlier=*/nullptr, batch.starts);
    } else {
      pieces.push_back(run_block(student, b, hidden, batch.starts));
      hidden = pieces.back().output.detach();
    }
  }
  if (hidden.is_cpu()) runtime::give_back_holes();  // all activations are there
  BatchLoss loss;
  at::Tensor gradient =
      train_head(batch, make_loss(hidden), num_step_labels, hidden, student, outer, outer_gradients, loss);
  for (int64_t b = student.num_blocks() - 1; b >= 0; --b) {
    if (targets != nullptr) {
      gradient.add_(gradient_of_distance(batch, *targets, num_step_labels, b, student.num_blocks(), hidden, loss));
      hidden = pieces.back().input.detach();
    }
    Piece piece = recompute ? run_block(student, b, pieces.back().input, batch.starts) : std::move(pieces.back());
    pieces.pop_back();
    std::vector<at::Tensor> gradients = gradients_of(piece.output, gradient, piece.input, piece.weights);
    gradient = std::move(gradients.front());
    turn.add(b, [&] { student.add_block_gradients(b, piece.weights, std::span(gradients).subspan(1)); });
  }
  train_embedding(batch, gradient, student, outer, outer_gradients);
  turn.add(student.num_blocks(), [&] { student.add_outer_gradients(outer, outer_gradients.sums()); });
  return loss;
}

// Rows of the vocabulary that one side has more of are padding: cut off, or tokens that never come.
class LiveTeacherModel : public LiveTeacher {
 public:
  LiveTeacherModel(const runtime::Checkpoint& checkpoint, int64_t max_tokens, at::ScalarType compute,
                   int64_t num_vocabulary, const TeacherUse& use, at::Device device)
      : num_vocabulary_(num_vocabulary), keeps_hidden_(use.keeps_hidden) {
    check_vocabularies(checkpoint.description().vocabulary_size, num_vocabulary);
    DecoderFunctions functions(checkpoint.description(), max_tokens, compute, device);
    functions.set_input_formats(read_input_formats(checkpoint));
    functions.set_frozen(checkpoint);
    weights_ = std::make_shared<Weights>(std::move(functions));
    weights_->model =
        read_frozen(checkpoint, weights_->functions, use.samples ? HeldWeights::widened : HeldWeights::narrow);
  }

  std::unique_ptr<Teacher> for_another_thread() const override {
    return std::unique_ptr<Teacher>(new LiveTeacherModel(weights_, num_vocabulary_, keeps_hidden_));
  }

  at::Tensor label_losses(int64_t first, const at::Tensor& labels_R) override {
    return distill::hard_label_loss(values(first, labels_R.size(0)).to(at::kFloat), labels_R);
  }

  const std::vector<at::Tensor>& hidden_states() const override { return hidden_; }

  const FrozenModel& model() const override { return weights_->model; }

  void share_table(const at::Tensor& table_VD) override {
    for (at::Tensor* const own : {&weights_->model.embedding_VD, &weights_->model.head_VD}) {
      if (own->scalar_type() == table_VD.scalar_type() && own->device() == table_VD.device() &&
          at::equal(*own, table_VD)) {
        *own = table_VD;
      }
    }
  }

  at::Tensor fitted(const at::Tensor& logits_RV) const override {
    const int64_t num_own = logits_RV.size(1);
    if (num_own > num_vocabulary_) return logits_RV.narrow(1, 0, num_vocabulary_).contiguous();
    if (num_own == num_vocabulary_) return logits_RV;
    const double never = -std::numeric_limits<double>::infinity();
    return at::cat({logits_RV, at::full({logits_RV.size(0), num_vocabulary_ - num_own}, never, logits_RV.options())},
                   1);
  }

 private:
  struct Weights {
    explicit Weights(DecoderFunctions of) : functions(std::move(of)) {}
    DecoderFunctions functions;
    FrozenModel model;
  };

  LiveTeacherModel(std::shared_ptr<Weights> weights, int64_t num_vocabulary, bool keeps_hidden)
      : weights_(std::move(weights)), num_vocabulary_(num_vocabulary), keeps_hidden_(keeps_hidden) {}

  void look_at(const TokenBatch& batch) override {
    const at::NoGradGuard no_grad;
    normalized_ = model().normalized(batch.ids_BT, nullptr, keeps_hidden_ ? &hidden_ : nullptr, batch.starts);
  }

  distill::TeacherLogits make_logits(int64_t first, int64_t count) override {
    return distill::TeacherLogits(values(first, count));
  }

  // In the compute type where nothing is done to the products: half of float32's memory, and the same numbers.
  at::Tensor values(int64_t first, int64_t count) const {
    const at::NoGradGuard no_grad;
    const at::Tensor products_RV = model().head_products(rows(normalized_, first, count));
    const bool is_capped = model().functions->description().logit_softcap > 0.0f;
    return fitted(is_capped ? model().functions->logits_of(products_RV) : products_RV);
  }

  std::shared_ptr<Weights> weights_;
  int64_t num_vocabulary_;
  bool keeps_hidden_;
  at::Tensor normalized_;
  std::vector<at::Tensor> hidden_;
};

}  // namespace

const std::vector<at::Tensor>& Teacher::hidden_states() const {
  static const std::vector<at::Tensor> kNone;
  return kNone;
}

void Teacher::see(const TokenBatch& batch) {
  made_.reset();
  num_rows_ = batch.num_tokens();
  look_at(batch);
}

distill::TeacherLogits Teacher::logits(int64_t first, int64_t count) {
  if (!made_ || first < first_made_ || first + count > first_made_ + made_->num_tokens()) {
    made_ = make_logits(first, std::min(std::max(count, kHeadTokens), num_rows_ - first));
    first_made_ = first;
  }
  return made_->tokens(first - first_made_, count);
}

namespace {

// Of a window in what holds one value for each token.
std::span<const int32_t> part_of(const LabelledWindows& data, const std::vector<int32_t>& values, int64_t window) {
  const auto n = static_cast<size_t>(window);
  const int64_t first = data.first_N.empty() ? window * data.windows.num_tokens : data.first_N[n];
  return std::span(values).subspan(static_cast<size_t>(first), static_cast<size_t>(data.length(window)));
}

}  // namespace

int64_t LabelledWindows::length(int64_t window) const {
  const auto n = static_cast<size_t>(window);
  return first_N.empty() ? windows.num_tokens : first_N[n + 1] - first_N[n];
}

std::span<const int32_t> LabelledWindows::ids(int64_t window) const {
  return part_of(*this, windows.ids_NT, window);
}

std::span<const int32_t> LabelledWindows::labels(int64_t window) const {
  return part_of(*this, labels_NT, window);
}

int64_t LabelledWindows::num_labels(std::span<const int64_t> chosen) const {
  int64_t count = 0;
  if (labels_NT.empty()) {
    for (const int64_t n : chosen) {
      const size_t num_starts = starts_N.empty() ? 0 : starts_N[static_cast<size_t>(n)].size();
      count += length(n) - 1 - static_cast<int64_t>(num_starts);
    }
    return count;
  }
  for (const int64_t n : chosen) {
    const std::span<const int32_t> labels = this->labels(n);
    count += std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label != distill::kIgnoredLabel; });
  }
  return count;
}

TokenBatch make_batch(const LabelledWindows& data, std::span<const int64_t> chosen) {
  const auto num_sequences = static_cast<int64_t>(chosen.size());
  const auto label_of = [&](int64_t n, int64_t t) -> int64_t {
    if (t >= data.length(n)) return distill::kIgnoredLabel;
    if (!data.labels_NT.empty()) return data.labels(n)[static_cast<size_t>(t)];
    if (!data.starts_N.empty()) {
      const std::vector<int32_t>& starts = data.starts_N[static_cast<size_t>(n)];
      if (std::binary_search(starts.begin(), starts.end(), static_cast<int32_t>(t + 1))) return distill::kIgnoredLabel;
    }
    return t + 1 < data.length(n) ? data.ids(n)[static_cast<size_t>(t + 1)] : distill::kIgnoredLabel;
  };
  int64_t num_tokens = 1;  // up to the last that has a label, and the token that is it
  for (const int64_t n : chosen) {
    for (int64_t t = data.length(n) - 1; t + 1 > num_tokens; --t) {
      if (label_of(n, t) != distill::kIgnoredLabel) num_tokens = std::min(t + 2, data.length(n));
    }
  }
  TokenBatch batch{at::empty({num_sequences, num_tokens}, at::kLong),
                   at::empty({num_sequences, num_tokens}, at::kLong),
                   {chosen.begin(), chosen.end()},
                   {}};
  const auto has_starts = [&](int64_t n) {
    return !data.starts_N.empty() && !data.starts_N[static_cast<size_t>(n)].empty();
  };
  if (std::any_of(chosen.begin(), chosen.end(), has_starts)) {
    for (const int64_t n : chosen) {
      std::vector<int64_t>& starts = batch.starts.emplace_back();
      for (const int32_t start : data.starts_N[static_cast<size_t>(n)]) {
        if (start < num_tokens) starts.push_back(start);
      }
    }
  }
  for (int64_t b = 0; b < num_sequences; ++b) {
    const int64_t n = chosen[static_cast<size_t>(b)];
    for (int64_t t = 0; t < num_tokens; ++t) {
      batch.ids_BT.data_ptr<int64_t>()[b * num_tokens + t] =
          t < data.length(n) ? data.ids(n)[static_cast<size_t>(t)] : 0;
      batch.labels_BT.data_ptr<int64_t>()[b * num_tokens + t] = label_of(n, t);
    }
  }
  return batch;
}

void check_vocabularies(int64_t teachers, int64_t students) {
  if (std::abs(teachers - students) <= kMaxPadding) return;
  throw std::invalid_argument("the teacher's vocabulary has " + std::to_string(teachers) + " entries, the student's " +
                              std::to_string(students) + ": they must have the same tokenizer");
}

int64_t count_labels(const TokenBatch& batch) {
  return batch.labels_BT.ne(distill::kIgnoredLabel).sum().item<int64_t>();
}

std::unique_ptr<LiveTeacher> live_teacher(const runtime::Checkpoint& checkpoint, int64_t max_tokens,
                                          at::ScalarType compute, int64_t num_vocabulary, const TeacherUse& use,
                                          at::Device device) {
  return std::make_unique<LiveTeacherModel>(checkpoint, max_tokens, compute, num_vocabulary, use, device);
}

BatchLoss train_on(const TokenBatch& batch, const LossOfHidden& make_loss, bool recompute, int64_t num_step_labels,
                   StudentModel& student) {
  return train_pieces(batch.to(student.functions().device()), make_loss, recompute, num_step_labels,
                      /*targets=*/nullptr, student, {});
}

BatchLoss train_on(const TokenBatch& given, const distill::DistillLossOptions& options, bool recompute,
                   int64_t num_step_labels, Teacher* teacher, StudentModel& student, const GradientTurn& turn) {
  const TokenBatch batch = given.to(student.functions().device());
  if (teacher != nullptr) teacher->see(batch);
  const auto make_loss = [&](const at::Tensor& hidden_BTD) {
    return loss_of(options, batch, hidden_BTD, teacher, student);
  };
  if (options.hidden_weight == 0.0) {
    return train_pieces(batch, make_loss, recompute, num_step_labels, /*targets=*/nullptr, student, turn);
  }
  const HiddenTargets targets = targets_of(options, teacher);
  return train_pieces(batch, make_loss, recompute, num_step_labels, &targets, student, turn);
}

BatchScore score(const TokenBatch& given, const distill::DistillLossOptions* measured, Teacher* teacher,
                 const StudentModel& student) {
  const at::NoGradGuard no_grad;
  const TokenBatch batch = given.to(student.functions().device());
  const TrainedTensors outer = student.outer();
  BatchScore score{.num_labels = count_labels(batch)};
  if (score.num_labels == 0) return score;
  if (measured != nullptr && teacher != nullptr) teacher->see(batch);
  const std::optional<HiddenTargets> targets = measured != nullptr && measured->hidden_weight > 0.0
                                                   ? std::optional(targets_of(*measured, teacher))
                                                   : std::nullopt;
  at::Tensor hidden = student.functions().embed(batch.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
  for (int64_t b = 0; b < student.num_blocks(); ++b) {
    hidden = student.functions().block(b, student.block(b).all, hidden, /*earlier=*/nullptr, batch.starts);
    if (!targets) continue;
    score.measured += mean_distance(batch, *targets, score.num_labels, b, student.num_blocks(), hidden).item<double>() *
                      static_cast<double>(score.num_labels);
  }
  const TokenLoss token_loss = measured == nullptr ? TokenLoss() : loss_of(*measured, batch, hidden, teacher, student);
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    if (!labels.ne(distill::kIgnoredLabel).any().item<bool>()) continue;
    const at::Tensor x =
        student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second, rows(hidden, first, count));
    const at::Tensor logits_RV = student.functions().logits(student.head(outer), x);
    score.label_loss += distill::hard_label_loss(logits_RV, labels).to(at::kDouble).sum().item<double>();
    for (int64_t row = 0; token_loss && row < count; row += kLossTokens) {
      const int64_t num_rows = std::min(kLossTokens, count - row);
      const at::Tensor its_labels = labels.narrow(0, row, num_rows);
      score.measured += token_loss(logits_RV.narrow(0, row, num_rows), its_labels, first + row)
                            .masked_fill(its_labels.eq(distill::kIgnoredLabel), 0.0)
                            .to(at::kDouble)
                            .sum()
                            .item<double>();
    }
  }
  return score;
}

}  // namespace pare::compress
