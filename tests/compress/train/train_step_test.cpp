// Checks a step in pieces against one graph of the whole loss, and validation against the runtime.
#include "compress/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "compress/train/trainer.h"
#include "distill/losses.h"
#include "runtime/evaluate/perplexity.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace prune;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kSource = kSourceFolder;
const fs::path kFamilies = kSource / "tests" / "golden" / "families";

const IsTrained kAll = [](const std::string&) { return true; };

// Returns five sequences of 64 tokens. That is more than a piece of the head's tokens, and not a multiple of it. Some
// labels are ignored, among them those of a whole sequence.
TokenBatch make_test_batch(const fs::path& family) {
  const TokenWindows windows = read_npy(family / "ids.npy");
  const std::vector<int64_t> chosen = {0, 1, 1, 0, 1};
  TokenBatch batch = make_batch({windows}, chosen);
  batch.labels_BT.select(0, 1).narrow(0, 5, 9).fill_(kIgnoredLabel);
  batch.labels_BT.select(0, 2).fill_(kIgnoredLabel);
  return batch;
}

TokenBatch part_of(const TokenBatch& batch, int64_t first, int64_t count) {
  return {batch.ids_BT.narrow(0, first, count).contiguous(), batch.labels_BT.narrow(0, first, count).contiguous(),
          std::vector<int64_t>(batch.sequences.begin() + first, batch.sequences.begin() + first + count)};
}

using Gradients = std::map<std::string, at::Tensor>;

// Returns the gradient of every parameter under its name, and sets it back to 0.
Gradients take_gradients(StudentModel& student) {
  Gradients gradients;
  for (Parameter* parameter : student.parameters()) {
    gradients[parameter->name] = parameter->gradient.clone();
    parameter->gradient.zero_();
  }
  return gradients;
}

std::vector<at::Tensor> states_behind_blocks(const Checkpoint& teacher, const at::Tensor& ids_BT) {
  const at::NoGradGuard no_grad;
  const DecoderFunctions functions(teacher.description(), ids_BT.size(1), at::kFloat);
  at::Tensor hidden = functions.embed(ids_BT, read_table(teacher, teacher.embedding(), at::kFloat));
  std::vector<at::Tensor> behind;
  for (int64_t b = 0; b < static_cast<int64_t>(teacher.description().blocks.size()); ++b) {
    hidden = functions.block(b, read_block(teacher, b, at::kFloat), hidden);
    behind.push_back(hidden);
  }
  return behind;
}

at::Tensor teacher_logits(const Checkpoint& teacher, const at::Tensor& ids_BT) {
  const at::NoGradGuard no_grad;
  const ModelDescription& model = teacher.description();
  const DecoderFunctions functions(model, ids_BT.size(1), at::kFloat);
  const at::Tensor hidden = states_behind_blocks(teacher, ids_BT).back();
  const at::Tensor x = functions.final_norm(read_gain(teacher, model.final_norm), hidden);
  return functions.logits(read_table(teacher, teacher.head(), at::kFloat), x.reshape({-1, x.size(-1)}));
}

// Returns loss and gradients of one graph from the embedding to the mean of the losses, for students stored in float32.
std::pair<double, Gradients> whole_graph(const TokenBatch& batch, const DistillLossOptions& options,
                                         const Checkpoint* teacher, const StudentModel& student) {
  const at::AutoGradMode enabled(true);
  std::vector<at::Tensor> leaves, behind;
  std::vector<std::string> names;
  const auto collect = [&](const TrainedTensors& tensors) {
    for (const std::string& name : tensors.trained) {
      leaves.push_back(tensors.all.find(name)->second);
      names.push_back(student.view(name).parameters().front()->name);
    }
  };
  const TrainedTensors outer = student.outer();
  collect(outer);
  const DecoderFunctions& functions = student.functions();
  at::Tensor hidden = functions.embed(batch.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
  for (int64_t b = 0; b < student.num_blocks(); ++b) {
    const TrainedTensors block = student.block(b);
    collect(block);
    hidden = functions.block(b, block.all, hidden);
    behind.push_back(hidden);
  }
  const at::Tensor x = functions.final_norm(outer.all.find(StudentModel::kFinalNorm)->second, hidden);
  const at::Tensor logits_RV = functions.logits(student.head(outer), x.reshape({-1, x.size(-1)}));
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  at::Tensor losses_R;
  if (teacher == nullptr) {
    losses_R = hard_label_loss(logits_RV, labels_R);
  } else {
    const at::Tensor teacher_RV = teacher_logits(*teacher, batch.ids_BT);
    at::Tensor weights_R;
    if (options.loss == DistillLoss::slim) {
      const int64_t num_tokens = batch.ids_BT.size(1);
      weights_R = slim_weights(hard_label_loss(logits_RV.detach(), labels_R), hard_label_loss(teacher_RV, labels_R),
                               labels_R, at::arange(labels_R.size(0), at::kLong).div(num_tokens, "floor"));
    }
    losses_R = token_losses(options, logits_RV, TeacherLogits(teacher_RV), labels_R, weights_R);
  }
  at::Tensor mean = mean_loss(losses_R, labels_R);
  if (options.hidden_weight > 0.0) {
    const std::vector<at::Tensor> targets = states_behind_blocks(*teacher, batch.ids_BT);
    for (size_t b = 0; b < behind.size(); ++b) {
      const at::Tensor distances_R = behind[b].sub(targets.at(b)).square().sum(-1).div(targets[b].square().sum(-1));
      const at::Tensor counted_R = distances_R.reshape({-1}).masked_select(labels_R.ne(kIgnoredLabel));
      mean = mean.add(counted_R.mean().mul(options.hidden_weight / static_cast<double>(behind.size())));
    }
  }
  const std::vector<at::Tensor> found = torch::autograd::grad({mean}, leaves, {}, false, false, /*allow_unused=*/true);
  Gradients gradients;
  for (size_t i = 0; i < leaves.size(); ++i) {
    gradients[names[i]] = found[i].defined() ? found[i].to(at::kFloat) : at::zeros_like(leaves[i].detach());
  }
  return {mean.item<double>(), gradients};
}

double norm_of(const Gradients& gradients) {
  double squares = 0.0;
  for (const auto& [name, gradient] : gradients) squares += gradient.to(at::kDouble).pow(2).sum().item<double>();
  return std::sqrt(squares);
}

// These are the same sums of a few hundred tokens in another order. Errors of some 2^-24 each grow through two blocks
// by a condition of some tens.
constexpr double kOtherOrder = 2e-5;

void expect_near(const Gradients& found, const Gradients& expected) {
  ASSERT_EQ(found.size(), expected.size());
  const double all = norm_of(expected);
  ASSERT_GT(all, 0.0);
  for (const auto& [name, gradient] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    const double norm = gradient.to(at::kDouble).norm().item<double>();
    const double error = found.at(name).to(at::kDouble).sub(gradient).norm().item<double>();
    EXPECT_LE(error, kOtherOrder * std::max(norm, 0.02 * all)) << name << " of norm " << norm;
  }
}

struct StepCase {
  const char* student;
  const char* teacher;
  bool trains_embedding;
  friend void PrintTo(const StepCase& item, std::ostream* out) { *out << item.student; }
};

class TrainStep : public testing::TestWithParam<StepCase> {
 protected:
  StudentModel make_student() const {
    return StudentModel(checkpoint_, TrainedParts{.embedding = GetParam().trains_embedding}, kAll, 64, at::kFloat);
  }
  Checkpoint checkpoint_ = Checkpoint::open(kFamilies / GetParam().student);
  Checkpoint teacher_checkpoint_ = Checkpoint::open(kFamilies / GetParam().teacher);
  TokenBatch batch_ = make_test_batch(kFamilies / GetParam().student);
};

TEST_P(TrainStep, PiecesGiveTheGradientsOfTheWholeGraph) {
  ASSERT_GT(batch_.num_tokens(), kHeadTokens);
  StudentModel student = make_student();
  const auto teacher = live_teacher(teacher_checkpoint_, 64, at::kFloat, student.description().vocabulary_size);
  const int64_t num_labels = count_labels(batch_);
  for (const auto& [loss, name] : enum_names(DistillLoss{})) {
    if (loss == DistillLoss::minillm) continue;
    SCOPED_TRACE(name);
    const bool reads_teacher = loss != DistillLoss::hard_label;
    const DistillLossOptions options{.loss = loss, .temperature = reads_teacher ? 1.5 : 1.0};
    const auto [expected_loss, expected] =
        whole_graph(batch_, options, reads_teacher ? &teacher_checkpoint_ : nullptr, student);
    Teacher* const used = reads_teacher ? teacher.get() : nullptr;
    const BatchLoss kept = train_on(batch_, options, /*recompute=*/false, num_labels, used, student);
    const Gradients of_kept = take_gradients(student);
    EXPECT_EQ(kept.num_labels, num_labels);
    EXPECT_NEAR(kept.sum / static_cast<double>(num_labels), expected_loss, 1e-5 * std::max(1.0, expected_loss));
    expect_near(of_kept, expected);
    // Activations that are computed again are the same.
    const BatchLoss recomputed = train_on(batch_, options, /*recompute=*/true, num_labels, used, student);
    EXPECT_EQ(recomputed.sum, kept.sum);
    for (const auto& [parameter, gradient] : take_gradients(student)) {
      EXPECT_TRUE(at::equal(gradient, of_kept.at(parameter))) << parameter;
    }
  }
}

TEST_P(TrainStep, HiddenStatesAddTheirDistance) {
  StudentModel student = make_student();
  const int64_t num_labels = count_labels(batch_);
  const DistillLossOptions options{.loss = DistillLoss::forward_kl, .hidden_weight = 3.0};
  const auto blind = live_teacher(teacher_checkpoint_, 64, at::kFloat, student.description().vocabulary_size);
  expect_error<std::invalid_argument>([&] { train_on(batch_, options, false, num_labels, blind.get(), student); },
                                      {"hidden_weight"});
  take_gradients(student);
  const auto teacher =
      live_teacher(teacher_checkpoint_, 64, at::kFloat, student.description().vocabulary_size, {.keeps_hidden = true});
  if (teacher_checkpoint_.description().hidden_size != student.description().hidden_size) {
    expect_error<std::invalid_argument>([&] { train_on(batch_, options, false, num_labels, teacher.get(), student); },
                                        {"hidden states"});
    return;
  }
  const auto [expected_loss, expected] = whole_graph(batch_, options, &teacher_checkpoint_, student);
  for (const bool recompute : {false, true}) {
    const BatchLoss found = train_on(batch_, options, recompute, num_labels, teacher.get(), student);
    EXPECT_NEAR(found.sum / static_cast<double>(num_labels), expected_loss, 1e-5 * expected_loss);
    expect_near(take_gradients(student), expected);
  }
  const auto same =
      live_teacher(checkpoint_, 64, at::kFloat, student.description().vocabulary_size, {.keeps_hidden = true});
  EXPECT_NEAR(train_on(batch_, options, false, num_labels, same.get(), student).sum, 0.0, 1e-6 * expected_loss);
}

TEST_P(TrainStep, MicroBatchesAddUpToTheBatch) {
  StudentModel student = make_student();
  const auto teacher = live_teacher(teacher_checkpoint_, 64, at::kFloat, student.description().vocabulary_size);
  const int64_t num_labels = count_labels(batch_);
  for (const DistillLoss loss : {DistillLoss::soft_label, DistillLoss::slim}) {
    const DistillLossOptions options{.loss = loss};
    const BatchLoss whole = train_on(batch_, options, false, num_labels, teacher.get(), student);
    const Gradients expected = take_gradients(student);
    BatchLoss sum;
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 1}, {3, 2}}) {
      const BatchLoss part =
          train_on(part_of(batch_, first, count), options, false, num_labels, teacher.get(), student);
      sum.sum += part.sum;
      sum.num_labels += part.num_labels;
    }
    EXPECT_EQ(sum.num_labels, num_labels);
    EXPECT_NEAR(sum.sum, whole.sum, 1e-5 * whole.sum);
    expect_near(take_gradients(student), expected);
  }
}

TEST_P(TrainStep, ATeacherEqualToTheStudentTeachesNothing) {
  StudentModel student = make_student();
  const int64_t num_labels = count_labels(batch_);
  const auto other = live_teacher(teacher_checkpoint_, 64, at::kFloat, student.description().vocabulary_size);
  const auto same = live_teacher(checkpoint_, 64, at::kFloat, student.description().vocabulary_size);
  for (const DistillLoss loss :
       {DistillLoss::soft_label, DistillLoss::forward_kl, DistillLoss::reverse_kl, DistillLoss::jensen_shannon,
        DistillLoss::skew_kl, DistillLoss::skew_reverse_kl, DistillLoss::total_variation}) {
    const DistillLossOptions options{.loss = loss, .label_weight = 0.0};
    const double others = train_on(batch_, options, false, num_labels, other.get(), student).sum;
    const double norm = norm_of(take_gradients(student));
    const double own = train_on(batch_, options, false, num_labels, same.get(), student).sum;
    // Logits of both sides may differ by the order of sums. A divergence has its minimum there, except for total
    // variation, which has a kink. Its gradient there only lacks the part of outcomes with equal probabilities.
    EXPECT_NEAR(own, 0.0, (loss == DistillLoss::total_variation ? 1e-4 : 1e-6) * others);
    const double own_norm = norm_of(take_gradients(student));
    if (loss != DistillLoss::total_variation) {
      EXPECT_LE(own_norm, 1e-4 * norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TrainStep,
                         testing::Values(StepCase{"llama_gqa_untied", "llama3_rope_tied", true},
                                         StepCase{"qwen2_biases_tied", "llama_gqa_untied", true},
                                         StepCase{"gemma3_local_global", "llama_gqa_untied", false},
                                         StepCase{"mixtral_experts", "llama3_rope_tied", false}),
                         [](const auto& item) { return std::string(item.param.student); });

TEST(TrainStep, WhatIsNotTrainedHasNoParameters) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "llama_gqa_untied");
  StudentModel student(
      checkpoint, TrainedParts{.vectors = false},
      [](const std::string& name) { return name.find("down_proj") != std::string::npos; }, 64, at::kFloat);
  ASSERT_EQ(student.parameters().size(), checkpoint.description().blocks.size());
  const TokenBatch batch = make_test_batch(kFamilies / "llama_gqa_untied");
  train_on(batch, {.loss = DistillLoss::hard_label}, false, count_labels(batch), nullptr, student);
  for (const Parameter* parameter : student.parameters()) {
    EXPECT_NE(parameter->name.find("down_proj.weight"), std::string::npos);
    EXPECT_GT(parameter->gradient.norm().item<double>(), 0.0);
  }
}

TEST(LiveTeacher, VocabulariesThatDifferInPaddingAreAligned) {
  const at::NoGradGuard no_grad;
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "llama_gqa_untied");
  const TokenBatch batch = make_test_batch(kFamilies / "llama_gqa_untied");
  const at::Tensor expected_RV = teacher_logits(checkpoint, batch.ids_BT);
  const at::Tensor labels_R = batch.labels_BT.reshape({-1}).narrow(0, 3, 50);
  for (const int64_t num_vocabulary : {128, 120, 136}) {
    const auto teacher = live_teacher(checkpoint, 64, at::kFloat, num_vocabulary);
    teacher->see(batch);
    const TeacherLogits logits = teacher->logits(3, 50);
    EXPECT_EQ(logits.num_tokens(), 50);
    ASSERT_EQ(logits.num_vocabulary(), num_vocabulary);
    const int64_t num_shared = std::min<int64_t>(128, num_vocabulary);
    const at::Tensor expected =
        expected_RV.narrow(0, 3, 50).narrow(1, 0, num_shared).to(at::kDouble).log_softmax(1).exp();
    const at::Tensor found = logits.log_probs(1.0, at::kDouble).exp();
    EXPECT_LE(found.narrow(1, 0, num_shared).sub(expected).abs().max().item<double>(), 1e-5);
    if (num_vocabulary > 128) {
      EXPECT_EQ(found.narrow(1, 128, num_vocabulary - 128).abs().max().item<double>(), 0.0);
    }
    if (num_vocabulary < 128) continue;  // a label beyond the student's vocabulary is none
    const at::Tensor losses = teacher->label_losses(3, labels_R);
    const at::Tensor from_whole = hard_label_loss(expected_RV.narrow(0, 3, 50), labels_R);
    EXPECT_LE(losses.sub(from_whole).abs().max().item<double>(), 1e-4);
  }
  expect_error<std::invalid_argument>([&] { live_teacher(checkpoint, 64, at::kFloat, 128 + kMaxPadding + 1); },
                                      {"128", std::to_string(128 + kMaxPadding + 1), "same tokenizer"});
}

TEST(LiveTeacher, HoldsATableOfTheSameValuesOnce) {
  const at::NoGradGuard no_grad;
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "llama_gqa_untied");
  const TokenBatch batch = make_test_batch(kFamilies / "llama_gqa_untied");
  const auto teacher = live_teacher(checkpoint, 64, at::kFloat, 128);
  const StudentModel student(
      checkpoint, {}, [](const std::string&) { return true; }, 64, at::kFloat);
  const std::vector<at::Tensor> tables = student.frozen_tables();
  ASSERT_EQ(tables.size(), 2u);
  const at::Tensor other_VD = tables[0].add(1.0);
  teacher->share_table(other_VD);
  EXPECT_NE(teacher->model().embedding_VD.data_ptr(), other_VD.data_ptr());
  teacher->see(batch);
  const at::Tensor before = teacher->logits(3, 50).log_probs(1.0, at::kFloat);
  for (const at::Tensor& table_VD : tables) teacher->share_table(table_VD);
  EXPECT_EQ(teacher->model().embedding_VD.data_ptr(), tables[0].data_ptr());
  EXPECT_EQ(teacher->model().head_VD.data_ptr(), tables[1].data_ptr());
  teacher->see(batch);
  EXPECT_TRUE(at::equal(before, teacher->logits(3, 50).log_probs(1.0, at::kFloat)));
  const StudentModel whole(
      checkpoint, {.embedding = true}, [](const std::string&) { return true; }, 64, at::kFloat);
  EXPECT_TRUE(whole.frozen_tables().empty());
}

// Both take the same windows unchanged. The runtime multiplies in float32 as well, in another order.
TEST(Score, IsThePerplexityThatTheRuntimeMeasures) {
  const at::NoGradGuard no_grad;
  for (const fs::path& model : {kSource / "calibration_data" / "stories260k", kFamilies / "llama_gqa_untied",
                                kFamilies / "gemma3_local_global", kFamilies / "llama_sharded_fp16"}) {
    const Checkpoint checkpoint = Checkpoint::open(model);
    ScoredWindows windows;
    if (fs::exists(model / "tokenizer.json")) {
      const Tokenizer tokenizer = Tokenizer::open(model);
      windows = make_scored_windows(kSource / "calibration_data" / "stories.txt", &tokenizer, checkpoint.description(),
                                    {Protocol::gptq, 96, 5});
    } else {
      windows = make_scored_windows(model / "ids.npy", nullptr, checkpoint.description(), {Protocol::gptq, 0, 0});
    }
    const std::unique_ptr<Backend> backend = make_reference_backend();
    Transformer runtime = Transformer::load(checkpoint, *backend);
    const double expected = evaluate_perplexity(runtime, windows, nullptr).perplexity.value;
    const StudentModel student(checkpoint, {}, kAll, windows.windows.num_tokens, at::kFloat);
    for (const int64_t micro_batch : {1, 2, 7}) {
      EXPECT_NEAR(validate({windows.windows}, micro_batch, nullptr, nullptr, student).perplexity, expected,
                  1e-4 * expected)
          << model;
    }
    // Whatever type a student is trained in, it is measured as it would be stored, frozen tensors included. These are
    // files in float32 and float16, which bfloat16 rounds.
    for (const TrainedParts& parts : {TrainedParts{}, TrainedParts{.weights = false, .vectors = false},
                                      TrainedParts{.weights = false, .embedding = true}}) {
      StudentModel narrow(checkpoint, parts, kAll, windows.windows.num_tokens, at::kBFloat16);
      const double rounded = validate({windows.windows}, 2, nullptr, nullptr, narrow).perplexity;
      EXPECT_GT(std::abs(rounded - expected), 1e-4 * expected) << model << ": bfloat16 shows nothing here";
      for (const bool holds : {true, false}) {
        const StudentAsStored stored(narrow, holds);
        EXPECT_NEAR(validate({windows.windows}, 2, nullptr, nullptr, narrow).perplexity, expected, 1e-4 * expected)
            << model;
      }
      EXPECT_EQ(validate({windows.windows}, 2, nullptr, nullptr, narrow).perplexity, rounded) << "it goes on as before";
    }
  }
}

TEST(MakeBatch, LabelsAreTheNextTokens) {
  const LabelledWindows data{{2, 3, {1, 2, 3, 4, 5, 6}}};
  const std::vector<int64_t> chosen = {1, 0};
  const TokenBatch batch = make_batch(data, chosen);
  const std::vector<int64_t> ids = {4, 5, 6, 1, 2, 3}, labels = {5, 6, kIgnoredLabel, 2, 3, kIgnoredLabel};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(batch.ids_BT.view(-1)[i].item<int64_t>(), ids[static_cast<size_t>(i)]);
    EXPECT_EQ(batch.labels_BT.view(-1)[i].item<int64_t>(), labels[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(batch.sequences, chosen);
  EXPECT_EQ(count_labels(batch), 4);
  EXPECT_EQ(data.num_labels(chosen), 4);
}

// Filling after the end of a sequence costs nothing, because batches end after their last label.
TEST(MakeBatch, EndsBehindTheLastLabelOfTheLongest) {
  constexpr auto kNone = static_cast<int32_t>(kIgnoredLabel);
  LabelledWindows data;
  data.windows.num_windows = 3;
  data.windows.num_tokens = 4;
  data.windows.ids_NT = {1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 0, 0};
  data.labels_NT = {kNone, 3, 4, kNone, kNone, 7, kNone, kNone, kNone, kNone, kNone, kNone};
  for (const auto& [chosen, num_tokens, num_labels] :
       {std::tuple<std::vector<int64_t>, int64_t, int64_t>{{0, 1}, 4, 3}, {{1, 2}, 3, 1}, {{2}, 1, 0}}) {
    const TokenBatch batch = make_batch(data, chosen);
    ASSERT_EQ(batch.ids_BT.size(1), num_tokens);
    EXPECT_EQ(count_labels(batch), num_labels);
    EXPECT_EQ(data.num_labels(chosen), num_labels);
    for (size_t b = 0; b < chosen.size(); ++b) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        const auto place = static_cast<size_t>(chosen[b] * 4 + t);
        const auto row = static_cast<int64_t>(b);
        EXPECT_EQ(batch.ids_BT[row][t].item<int64_t>(), data.windows.ids_NT[place]);
        EXPECT_EQ(batch.labels_BT[row][t].item<int64_t>(), data.labels_NT[place]);
      }
    }
  }
}

// Windows of their own length, one after the other, must make the same batches as windows that are filled up.
TEST(MakeBatch, WindowsOfDifferentLengthsAreFilledUpInTheirBatchAlone) {
  constexpr auto kNone = static_cast<int32_t>(kIgnoredLabel);
  LabelledWindows filled;
  filled.windows = {4, 5, {1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 8, 9, 1, 0, 0, 2, 0, 0, 0, 0}};
  filled.labels_NT = {kNone, 3, 4,     5,     kNone, 7,     kNone, kNone, kNone, kNone,
                      9,     1, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
  filled.starts_N = {{2}, {}, {1}, {}};
  LabelledWindows ragged;
  ragged.windows = {4, 5, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}};
  ragged.labels_NT = {kNone, 3, 4, 5, kNone, 7, kNone, 9, 1, kNone, kNone};
  ragged.starts_N = filled.starts_N;
  ragged.first_N = {0, 5, 7, 10, 11};
  for (const std::vector<int64_t>& chosen :
       {std::vector<int64_t>{0, 1}, {1, 2}, {3}, {2, 3, 1}, {0, 1, 2, 3}, {1}, {0}}) {
    const TokenBatch expected = make_batch(filled, chosen), found = make_batch(ragged, chosen);
    EXPECT_TRUE(found.ids_BT.equal(expected.ids_BT));
    EXPECT_TRUE(found.labels_BT.equal(expected.labels_BT));
    EXPECT_EQ(found.starts, expected.starts);
    EXPECT_EQ(ragged.num_labels(chosen), filled.num_labels(chosen));
  }
  EXPECT_EQ(ragged.length(2), 3);
}

}  // namespace
}  // namespace pare
