// Checks sampling against whole forward passes, and MiniLLM's step in pieces against one graph of its estimator.
#include "compress/train/train_minillm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "distill/losses.h"
#include "distill/minillm.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kFamilies = fs::path(kSourceFolder) / "tests" / "golden" / "families";
constexpr int64_t kPrompt = 6, kNew = 10;

class MiniLlmStep : public testing::Test {
 protected:
  MiniLlmStep()
      : student_checkpoint(Checkpoint::open(kFamilies / "llama_gqa_untied")),
        teacher_checkpoint(Checkpoint::open(kFamilies / "llama_mqa_biases")),
        student(
            student_checkpoint, {.embedding = true}, [](const std::string&) { return true; }, 64, at::kFloat),
        teacher(live_teacher(teacher_checkpoint, 64, at::kFloat, student.description().vocabulary_size)) {
    const TokenWindows windows = read_npy(kFamilies / "llama_gqa_untied" / "ids.npy");
    const std::vector<int64_t> chosen = {0, 1};
    prompts_BT = make_batch({windows}, chosen).ids_BT.narrow(1, 0, kPrompt).contiguous();
  }

  Continuations sample(uint64_t seed, double teacher_share = 0.3, std::vector<int32_t> ends = {}) const {
    return sample_continuations(prompts_BT, kNew, teacher_share, ends, seed, num_ids, student.frozen(), *teacher);
  }

  // Returns log softmax of all positions, [B, T, V], by whole forward passes.
  static at::Tensor whole(const FrozenModel& model, const at::Tensor& ids_BT) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = model.normalized(ids_BT);
    return at::log_softmax(model.logits(x.reshape({-1, x.size(-1)})), -1).view({ids_BT.size(0), ids_BT.size(1), -1});
  }

  Checkpoint student_checkpoint, teacher_checkpoint;
  StudentModel student;
  std::unique_ptr<LiveTeacher> teacher;
  int64_t num_ids =
      std::min(student_checkpoint.description().vocabulary_size, teacher_checkpoint.description().vocabulary_size);
  at::Tensor prompts_BT;
};

// Keys and values that were kept must give what a whole pass gives, up to the order of a dozen sums (1e-5).
TEST_F(MiniLlmStep, SamplesComeFromTheMixture) {
  const Continuations samples = sample(5);
  ASSERT_EQ(samples.ids_BT.size(1), kPrompt + kNew);
  EXPECT_TRUE(samples.ids_BT.narrow(1, 0, kPrompt).equal(prompts_BT));
  const at::Tensor mixed =
      teacher_mixed_log_probs(whole(teacher->model(), samples.ids_BT), whole(student.frozen(), samples.ids_BT), 0.3);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < kPrompt + kNew; ++t) {
      const bool is_sampled = t >= kPrompt - 1 && t < kPrompt + kNew - 1;
      EXPECT_EQ(samples.mask_BT[b][t].item<bool>(), is_sampled);
      if (!is_sampled) continue;
      const int64_t id = samples.ids_BT[b][t + 1].item<int64_t>();
      EXPECT_NEAR(samples.behaviour_BT[b][t].item<float>(), mixed[b][t][id].item<float>(), 1e-5);
    }
  }
}

// The first token of many draws must follow the mixture. A chi-square statistic over the V tokens stays within six
// standard deviations, sqrt(2 (V - 1)), of its mean, V - 1.
TEST_F(MiniLlmStep, DrawsHaveTheMixturesFrequencies) {
  const at::Tensor one = prompts_BT.narrow(0, 0, 1);
  constexpr int64_t kDraws = 400;
  const Continuations samples = sample_continuations(one.expand({kDraws, kPrompt}).contiguous(), 1, 0.5, {}, 77,
                                                     num_ids, student.frozen(), *teacher);
  const at::Tensor mixed = teacher_mixed_log_probs(whole(teacher->model(), one), whole(student.frozen(), one), 0.5);
  const int64_t num_vocabulary = mixed.size(2);
  std::vector<double> counts(static_cast<size_t>(num_vocabulary));
  for (int64_t i = 0; i < kDraws; ++i) ++counts[samples.ids_BT[i][kPrompt].item<int64_t>()];
  double chi_square = 0.0;
  for (int64_t v = 0; v < num_vocabulary; ++v) {
    const double expected = kDraws * std::exp(mixed[0][kPrompt - 1][v].item<double>());
    chi_square += std::pow(counts[static_cast<size_t>(v)] - expected, 2.0) / expected;
  }
  const auto degrees = static_cast<double>(num_vocabulary - 1);
  EXPECT_NEAR(chi_square, degrees, 6.0 * std::sqrt(2.0 * degrees));
}

TEST_F(MiniLlmStep, TheSeedDecidesAndAnEndTokenEnds) {
  const Continuations first = sample(9), again = sample(9), other = sample(10);
  EXPECT_TRUE(first.ids_BT.equal(again.ids_BT));
  EXPECT_TRUE(first.behaviour_BT.equal(again.behaviour_BT));
  EXPECT_FALSE(first.ids_BT.equal(other.ids_BT));
  const auto end = static_cast<int32_t>(first.ids_BT[0][kPrompt + 2].item<int64_t>());
  const Continuations ended = sample(9, 0.3, {end});
  bool is_over = false;
  for (int64_t t = kPrompt - 1; t + 1 < kPrompt + kNew; ++t) {
    EXPECT_EQ(ended.mask_BT[0][t].item<bool>(), !is_over);
    is_over |= ended.ids_BT[0][t + 1].item<int64_t>() == end;  // the end itself is part of the sequence
  }
  EXPECT_TRUE(is_over);
}

// No number of labels can stand for this weight. The step's labels are more than the batch has.
TEST_F(MiniLlmStep, PlainTextCountsByItsWeight) {
  TokenBatch batch{prompts_BT, at::full({2, kPrompt}, kIgnoredLabel, at::kLong), {}};
  batch.labels_BT.narrow(1, 0, 2).copy_(prompts_BT.narrow(1, 1, 2));
  const auto gradients = [&] {
    std::vector<at::Tensor> taken;
    for (Parameter* parameter : student.parameters()) {
      taken.push_back(parameter->gradient.clone());
      parameter->gradient.zero_();
    }
    return taken;
  };
  const double plain = train_on(batch, {.loss = DistillLoss::hard_label}, false, 7, nullptr, student).sum;
  const std::vector<at::Tensor> expected = gradients();
  for (const double weight : {0.3, 2.7, 500.0}) {
    const BatchLoss loss = train_on_text(batch, weight, false, 7, student);
    EXPECT_EQ(loss.num_labels, 4);
    EXPECT_NEAR(loss.sum, weight * plain, 1e-6 * weight * plain);
    const std::vector<at::Tensor> found = gradients();
    for (size_t i = 0; i < expected.size(); ++i) {
      // The weight is multiplied in before the sums, which rounds each term by 2^-24.
      const double size = weight * expected[i].norm().item<double>();
      EXPECT_LE(found[i].sub(expected[i], weight).norm().item<double>(), 1e-5 * size + 1e-12);
    }
  }
}

// One graph leads from the weights to the sum of minillm_losses, in float32. Sums in another order give 1e-4 of the
// largest entry.
TEST_F(MiniLlmStep, GradientsAreThoseOfOneGraph) {
  const Continuations samples = sample(3);
  const int64_t num_labels = samples.mask_BT.sum().item<int64_t>();
  for (const bool recompute : {false, true}) {
    MiniLlmOptions options;
    options.clip_range = 0.1;
    const BatchLoss loss = train_on_samples(samples, options, recompute, num_labels, *teacher, student);
    EXPECT_EQ(loss.num_labels, num_labels);
    std::map<std::string, at::Tensor> found;
    for (Parameter* parameter : student.parameters()) {
      found[parameter->name] = parameter->gradient.clone();
      parameter->gradient.zero_();
    }

    const at::AutoGradMode enabled(true);
    std::vector<TrainedTensors> blocks;
    const TrainedTensors outer = student.outer();
    at::Tensor hidden = student.functions().embed(samples.ids_BT, outer.all.find(StudentModel::kEmbedding)->second);
    for (int64_t b = 0; b < student.num_blocks(); ++b) {
      blocks.push_back(student.block(b));
      hidden = student.functions().block(b, blocks.back().all, hidden);
    }
    const at::Tensor x = student.functions().final_norm(outer.all.find(StudentModel::kFinalNorm)->second,
                                                        hidden.reshape({-1, hidden.size(-1)}));
    const at::Tensor logits_RV = student.functions().logits(student.head(outer), x);
    at::Tensor labels_BT = at::full(samples.ids_BT.sizes(), kIgnoredLabel, at::kLong);
    labels_BT.narrow(1, 0, kPrompt + kNew - 1).copy_(samples.ids_BT.narrow(1, 1, kPrompt + kNew - 1));
    labels_BT.masked_fill_(samples.mask_BT.logical_not(), kIgnoredLabel);
    const at::Tensor labels_R = labels_BT.reshape({-1});
    at::Tensor teacher_RV;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor normalized = teacher->model().normalized(samples.ids_BT);
      teacher_RV = teacher->model().logits(normalized.reshape({-1, normalized.size(-1)}));
    }
    const auto shaped = [&](const at::Tensor& values_R) { return values_R.view(samples.ids_BT.sizes()); };
    SampledSequences sequences;
    sequences.student_BT = shaped(label_log_probs(logits_RV, labels_R));
    sequences.teacher_BT = shaped(label_log_probs(teacher_RV, labels_R));
    sequences.behaviour_BT = samples.behaviour_BT;
    sequences.mask_BT = samples.mask_BT;
    sequences.single_step_BT = shaped(reverse_kl(logits_RV, TeacherLogits(teacher_RV)));
    const at::Tensor sum = minillm_losses(sequences, options).sum().div(static_cast<double>(num_labels));
    std::vector<at::Tensor> leaves;
    std::vector<std::string> names;
    const auto collect = [&](const TrainedTensors& tensors) {
      for (const std::string& name : tensors.trained) {
        leaves.push_back(tensors.all.find(name)->second);
        names.push_back(name);
      }
    };
    collect(outer);
    for (const TrainedTensors& block : blocks) collect(block);
    const std::vector<at::Tensor> expected =
        torch::autograd::grad({sum}, leaves, {}, false, false, /*allow_unused=*/true);
    size_t num_compared = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const auto gradient = found.find(names[i]);
      if (gradient == found.end() || !expected[i].defined()) continue;  // outer ones have names of their own
      ++num_compared;
      const double largest = expected[i].abs().max().item<double>();
      EXPECT_LE(gradient->second.sub(expected[i]).abs().max().item<double>(), 1e-4 * largest + 1e-7) << names[i];
    }
    EXPECT_GE(num_compared, 7u * static_cast<size_t>(student.num_blocks()));
  }
}

// Rows of a table that are no tokens are never drawn, and a draw comes from a distribution over the others.
TEST_F(MiniLlmStep, SamplesTokensAlone) {
  constexpr int64_t kIds = 3;
  const Continuations samples = sample_continuations(prompts_BT, kNew, 0.3, {}, 5, kIds, student.frozen(), *teacher);
  EXPECT_LT(samples.ids_BT.narrow(1, kPrompt, kNew).max().item<int64_t>(), kIds);
  const auto among = [&](const FrozenModel& model) {
    return at::log_softmax(whole(model, samples.ids_BT).narrow(2, 0, kIds), -1);
  };
  const at::Tensor mixed = teacher_mixed_log_probs(among(teacher->model()), among(student.frozen()), 0.3);
  for (int64_t t = kPrompt - 1; t < kPrompt + kNew - 1; ++t) {
    const int64_t id = samples.ids_BT[0][t + 1].item<int64_t>();
    EXPECT_NEAR(samples.behaviour_BT[0][t].item<float>(), mixed[0][t][id].item<float>(), 1e-5);
  }
  expect_error<std::invalid_argument>(
      [&] { sample_continuations(prompts_BT, kNew, 0.3, {}, 5, num_ids + 1, student.frozen(), *teacher); },
      {"both", std::to_string(num_ids + 1)});
}

TEST_F(MiniLlmStep, RefusesToContinueNothing) {
  EXPECT_THROW(sample_continuations(prompts_BT.narrow(1, 0, 0), 4, 0.2, {}, 1, num_ids, student.frozen(), *teacher),
               std::invalid_argument);
  EXPECT_THROW(sample_continuations(prompts_BT, 0, 0.2, {}, 1, num_ids, student.frozen(), *teacher),
               std::invalid_argument);
}

}  // namespace
}  // namespace pare
