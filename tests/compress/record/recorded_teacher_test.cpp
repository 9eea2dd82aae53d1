// Compares a recorded teacher with the live one that was recorded.
#include "compress/record/recorded_teacher.h"

#include <gtest/gtest.h>

#include <cmath>

#include "compress/train/train_step.h"
#include "distill/losses.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kData = fs::path(kSourceFolder) / "calibration_data";
constexpr int64_t kVocabulary = 512;

class RecordedTeachers : public testing::Test {
 protected:
  RecordedTeachers() : folder_("recorded_teacher") {}

  LogitStore record(const std::string& top_k) const {
    const fs::path path = folder_ / ("k" + top_k + ".h5");
    const test::Outcome outcome =
        test::run_pare({"record", (kData / "stories260k").string(), "--text", (kData / "stories.txt").string(),
                        "--windows", "3", "--tokens", "20", "--top-k", top_k, path.string()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return LogitStore::open(path);
  }

  // Returns sequences 2 and 0 of the store, filled up by four tokens that predict nothing.
  static TokenBatch batch_of(const LogitStore& store) {
    LabelledWindows data;
    data.windows = {3, 24, std::vector<int32_t>(3 * 24)};
    data.labels_NT.assign(3 * 24, static_cast<int32_t>(kIgnoredLabel));
    for (int64_t n = 0; n < 3; ++n) {
      const RecordedSequence sequence = store.sequence(n);
      for (size_t t = 0; t < sequence.ids.size(); ++t) {
        data.windows.ids_NT[static_cast<size_t>(n) * 24 + t] = sequence.ids[t];
        if (sequence.label_mask[t] != 0) data.labels_NT[static_cast<size_t>(n) * 24 + t] = sequence.ids[t + 1];
      }
    }
    const std::vector<int64_t> chosen = {2, 0};
    return make_batch(data, chosen);
  }

  test::TemporaryFolder folder_;
};

// float16 rounds a logarithm of at least -32 by up to 2^-7. The runtime and LibTorch differ by far less.
TEST_F(RecordedTeachers, SayWhatTheLiveOneSays) {
  const LogitStore store = record("512");
  const TokenBatch batch = batch_of(store);
  const Checkpoint checkpoint = Checkpoint::open(kData / "stories260k");
  const std::unique_ptr<LiveTeacher> live = live_teacher(checkpoint, 24, at::kFloat, kVocabulary);
  const std::unique_ptr<Teacher> recorded = recorded_teacher(store, {0, 1, 2}, kVocabulary);
  live->see(batch);
  recorded->see(batch);
  const int64_t num_tokens = batch.ids_BT.size(1);
  // The range goes across the end of the first sequence.
  const at::Tensor expected = live->logits(0, 2 * num_tokens).log_probs(1.0, at::kFloat);
  const TeacherLogits found = recorded->logits(0, 2 * num_tokens);
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  const at::Tensor losses_R = recorded->label_losses(0, labels_R);
  for (int64_t row = 0; row < 2 * num_tokens; ++row) {
    const int64_t label = labels_R[row].item<int64_t>();
    if (label == kIgnoredLabel) {
      EXPECT_EQ(losses_R[row].item<float>(), 0.0f);
      continue;
    }
    EXPECT_NEAR(losses_R[row].item<float>(), -expected[row][label].item<float>(), 0.01);
    // The student is the teacher, so only the rounding is left.
    const at::Tensor logits = expected.narrow(0, row, 1);
    EXPECT_NEAR(forward_kl(logits, recorded->logits(row, 1)).item<float>(), 0.0, 1e-4);
  }
  EXPECT_EQ(found.num_tokens(), 2 * num_tokens);
}

TEST_F(RecordedTeachers, KeepTheirTails) {
  const LogitStore store = record("8");
  const std::unique_ptr<Teacher> recorded = recorded_teacher(store, {0, 1, 2}, kVocabulary);
  const TokenBatch batch = batch_of(store);
  recorded->see(batch);
  const TeacherLogits some = recorded->logits(3, 5);
  EXPECT_EQ(some.num_outcomes(), 9);
  const at::Tensor mass = some.log_probs(1.0, at::kDouble).exp().sum(1);
  for (int64_t row = 0; row < 5; ++row) EXPECT_NEAR(mass[row].item<double>(), 1.0, 1e-9);
}

TEST_F(RecordedTeachers, RefuseAnotherVocabulary) {
  const LogitStore store = record("8");
  expect_error<std::invalid_argument>(
      [&] {
        recorded_teacher(store, {0, 1, 2}, 32000);
      },
      {"k8.h5", "512", "32000", "tokenizer"});
}

}  // namespace
}  // namespace pare
