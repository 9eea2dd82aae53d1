// Checks documents that share a window. The model must compute and learn for each document what it computes and learns
// for it alone.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "compress/train/train_step.h"
#include "compress/train/trainer.h"
#include "distill/losses.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kFamilies = fs::path(kSourceFolder) / "tests" / "golden" / "families";
const IsTrained kAll = [](const std::string&) { return true; };

// Sums of a few hundred float32 terms are in another order. Their errors grow through two blocks by a condition of some
// tens.
constexpr double kOtherOrder = 2e-5;

// The teacher is another model: the gradient of a student against itself is rounding alone, which no order keeps.
struct PackedCase {
  const char* student;
  const char* teacher;
  friend void PrintTo(const PackedCase& item, std::ostream* out) { *out << item.student; }
};

// There are two windows of 64 tokens: one with documents of 20, 1, 30 and 13 tokens, and one with a document of 64.
class PackedWindow : public testing::TestWithParam<PackedCase> {
 protected:
  void SetUp() override {
    data_.windows = read_npy(kFamilies / GetParam().student / "ids.npy");
    ASSERT_EQ(data_.windows.num_tokens, 64);
    ASSERT_GE(data_.windows.num_windows, 2);
    data_.starts_N.resize(static_cast<size_t>(data_.windows.num_windows));
    data_.starts_N[0] = {20, 21, 51};
    const std::vector<int64_t> both = {0, 1};
    packed_ = make_batch(data_, both);
    for (const auto& [window, first, count] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 0, 20}, {0, 20, 1}, {0, 21, 30}, {0, 51, 13}, {1, 0, 64}}) {
      const std::span<const int32_t> ids = data_.windows.window(window).subspan(first, count);
      const LabelledWindows alone{{1, count, {ids.begin(), ids.end()}}};
      const int64_t only = 0;
      alone_.push_back(make_batch(alone, std::span(&only, 1)));
    }
  }
  void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what, double scale = 0.0) {
    const double norm = std::max(scale, expected.to(at::kDouble).norm().item<double>());
    EXPECT_LE(found.to(at::kDouble).sub(expected).norm().item<double>(), kOtherOrder * norm) << what;
  }

  Checkpoint checkpoint_ = Checkpoint::open(kFamilies / GetParam().student);
  Checkpoint teacher_ = Checkpoint::open(kFamilies / GetParam().teacher);
  LabelledWindows data_;
  TokenBatch packed_;
  std::vector<TokenBatch> alone_;  // one for each document
};

TEST_P(PackedWindow, HasTheLogitsOfEachDocumentAlone) {
  const at::NoGradGuard no_grad;
  const DecoderFunctions functions(checkpoint_.description(), 64, at::kFloat);
  const FrozenModel model = read_frozen(checkpoint_, functions, HeldWeights::narrow);
  const auto logits = [&](const TokenBatch& batch) {
    const at::Tensor x = model.normalized(batch.ids_BT, nullptr, nullptr, batch.starts);
    return model.logits(x.reshape({-1, x.size(-1)}));
  };
  std::vector<at::Tensor> expected;
  for (const TokenBatch& document : alone_) expected.push_back(logits(document));
  expect_near(logits(packed_), at::cat(expected, 0), "logits");
  TokenBatch uncut = packed_;
  uncut.starts.clear();
  EXPECT_FALSE(at::allclose(logits(uncut), at::cat(expected, 0), 1e-2, 1e-2)) << "the cut changes nothing here";
}

TEST_P(PackedWindow, HasNoLabelsFromOneDocumentToTheNext) {
  const std::vector<int64_t> both = {0, 1};
  EXPECT_EQ(count_labels(packed_), 63 - 3 + 63);
  EXPECT_EQ(data_.num_labels(both), 63 - 3 + 63);
  for (const int64_t last : {19, 20, 50, 63}) EXPECT_EQ(packed_.labels_BT[0][last].item<int64_t>(), kIgnoredLabel);
  EXPECT_EQ(packed_.labels_BT[0][49].item<int64_t>(), data_.windows.window(0)[50]);
}

TEST_P(PackedWindow, HasTheLossAndTheGradientsOfAllDocumentsAlone) {
  StudentModel student(checkpoint_, TrainedParts{.embedding = true}, kAll, 64, at::kFloat);
  const auto teacher = live_teacher(teacher_, 64, at::kFloat, student.description().vocabulary_size);
  const int64_t num_labels = count_labels(packed_);
  const auto take = [&] {
    std::map<std::string, at::Tensor> gradients;
    for (Parameter* parameter : student.parameters()) {
      gradients[parameter->name] = parameter->gradient.clone();
      parameter->gradient.zero_();
    }
    return gradients;
  };
  for (const DistillLoss loss : {DistillLoss::hard_label, DistillLoss::forward_kl, DistillLoss::slim}) {
    SCOPED_TRACE(name_of(loss));
    Teacher* const used = loss == DistillLoss::hard_label ? nullptr : teacher.get();
    const DistillLossOptions options{.loss = loss};
    BatchLoss sum;
    for (const TokenBatch& document : alone_) {
      const BatchLoss part = train_on(document, options, false, num_labels, used, student);
      sum.sum += part.sum;
      sum.num_labels += part.num_labels;
    }
    const std::map<std::string, at::Tensor> expected = take();
    double squares = 0.0;
    for (const auto& [name, gradient] : expected) squares += gradient.to(at::kDouble).pow(2).sum().item<double>();
    for (const bool recompute : {false, true}) {
      const BatchLoss found = train_on(packed_, options, recompute, num_labels, used, student);
      EXPECT_EQ(found.num_labels, sum.num_labels);
      EXPECT_NEAR(found.sum, sum.sum, 1e-5 * std::abs(sum.sum));
      for (const auto& [name, gradient] : take()) {
        expect_near(gradient, expected.at(name), name, 0.02 * std::sqrt(squares));
      }
    }
  }
  double scored = 0.0;
  for (const TokenBatch& document : alone_) scored += score(document, nullptr, nullptr, student).label_loss;
  EXPECT_NEAR(score(packed_, nullptr, nullptr, student).label_loss, scored, 1e-5 * scored);
}

INSTANTIATE_TEST_SUITE_P(Families, PackedWindow,
                         testing::Values(PackedCase{"llama_gqa_untied", "llama3_rope_tied"},
                                         PackedCase{"mistral_window", "llama_gqa_untied"},
                                         PackedCase{"gemma3_local_global", "llama_gqa_untied"},
                                         PackedCase{"mixtral_experts", "llama3_rope_tied"}),
                         [](const auto& item) { return std::string(item.param.student); });

// A batch that ends before a document begins does not mention it.
TEST(MakeBatchOfDocuments, LeavesOutWhatLiesBehindItsEnd) {
  constexpr auto kNone = static_cast<int32_t>(kIgnoredLabel);
  LabelledWindows data;
  data.windows = {2, 4, {1, 2, 3, 4, 5, 6, 7, 8}};
  data.starts_N = {{1, 3}, {}};
  data.labels_NT = {kNone, 3, kNone, kNone, 6, kNone, kNone, kNone};
  const std::vector<int64_t> first = {0}, second = {1}, both = {1, 0};
  EXPECT_EQ(make_batch(data, first).starts, (DocumentStarts{{1}}));
  EXPECT_EQ(make_batch(data, second).starts, DocumentStarts{});
  EXPECT_EQ(make_batch(data, both).starts, (DocumentStarts{{}, {1}}));
}

}  // namespace
}  // namespace pare
