// Checks the memory predicted for a training. Differences between options are compared with what these are known to
// hold, and the whole with what a run holds.
#include "compress/predict/predict_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compress/model/decoder_functions.h"
#include "compress/recipe/measured_costs.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kStories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";

class PredictTraining : public testing::Test {
 protected:
  PredictTraining() {
    windows_.training.windows = {.num_windows = 8, .num_tokens = 64, .ids_NT = {}};
    windows_.validation.windows = {.num_windows = 1, .num_tokens = 64, .ids_NT = {}};
    options_.batch = options_.micro_batch = 1;
  }
  // Returns the bytes of tensors alone.
  int64_t bytes(const Checkpoint& student, const Checkpoint* teacher = nullptr) const {
    const RunLimits limits{.max_memory_bytes = int64_t{1} << 40, .matmul_rate = 1e11};
    const int64_t peak =
        predict_training({student, teacher, options_, windows_, at::kFloat, at::kCPU}, limits).peak_memory_bytes();
    const auto tensors = static_cast<double>(peak - limits.num_threads * kThreadBytes);
    return std::llround((tensors + 0.5) / kHeapShare);  // the peak is rounded down
  }
  static int64_t num_weights(const Checkpoint& checkpoint) {
    int64_t sum = 0;
    for (const LinearDescription& linear : block_linears(checkpoint.description())) {
      sum += linear.num_out * linear.num_in;
    }
    return sum;
  }

  Checkpoint stories_ = Checkpoint::open(kStories);
  DistillOptions options_;
  TrainingWindows windows_;
};

// A weight has a value, a gradient and two moments. A frozen one has only the value that is multiplied.
TEST_F(PredictTraining, CountsWhatIsTrained) {
  const int64_t all = bytes(stories_);
  options_.train.weights = false;
  EXPECT_EQ(all - bytes(stories_), 16 * num_weights(stories_));
}

// A layer in codes has codes, offsets and the sum of gradients, whatever is trained of it. Trained offsets have moments
// as well.
TEST_F(PredictTraining, CountsCodesThatAreNotTrained) {
  const test::TemporaryFolder folder("predict_training");
  test::write_text(folder / "r.yaml",
                   "model: " + kStories.string() + "\npasses:\n  - rtn: {bits: 4, group_size: -1}\n");
  const test::Outcome outcome =
      test::run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / "codes").string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Checkpoint codes = Checkpoint::open(folder / "codes");
  const int64_t all = bytes(codes);
  options_.train.weights = false;
  const int64_t scales = bytes(codes);
  options_.train.scales = false;
  const int64_t none = bytes(codes);
  EXPECT_EQ(all - scales, 8 * num_weights(codes));
  EXPECT_EQ(scales - none, 4 * num_weights(codes));
  options_.recompute = true;  // holds the values of one block alone
  EXPECT_GE(bytes(codes), 5 * num_weights(codes));
}

TEST_F(PredictTraining, RecomputingKeepsFrozenWeights) {
  options_.train.weights = false;
  options_.recompute = true;
  const int64_t frozen = bytes(stories_);
  options_.train.weights = true;
  EXPECT_EQ(bytes(stories_) - frozen, 12 * num_weights(stories_));
}

TEST_F(PredictTraining, CountsEveryThreadsSumOfTheEmbedding) {
  const ModelDescription& model = stories_.description();
  ASSERT_TRUE(model.tied_head);
  const int64_t plain = bytes(stories_);
  options_.train.embedding = true;
  EXPECT_EQ(bytes(stories_) - plain, 5 * 4 * model.vocabulary_size * model.hidden_size);
}

TEST_F(PredictTraining, CountsTheTeachersHiddenStates) {
  const int64_t plain = bytes(stories_, &stories_);
  options_.loss.hidden_weight = 1.0;
  const ModelDescription& model = stories_.description();
  EXPECT_EQ(bytes(stories_, &stories_) - plain, 4 * 64 * model.hidden_size * static_cast<int64_t>(model.blocks.size()));
}

TEST_F(PredictTraining, CountsSampledSequences) {
  options_.loss.loss = DistillLoss::minillm;
  options_.prompt_tokens = 32;
  options_.sampled_tokens = 32;
  const int64_t as_windows = bytes(stories_, &stories_);
  options_.sampled_tokens = 480;  // gives 512 in all
  const int64_t longer = bytes(stories_, &stories_);
  options_.loss.loss = DistillLoss::forward_kl;
  windows_.training.windows.num_tokens = 512;
  EXPECT_GT(longer, as_windows);
  EXPECT_EQ(longer, bytes(stories_, &stories_));
}

// A token of a mixture meets its own experts, not all.
TEST_F(PredictTraining, ATokenOfAMixtureMeetsItsExperts) {
  const Checkpoint mixture = Checkpoint::open(fs::path(kSourceFolder) / "tests/golden/families/mixtral_experts");
  const auto activations = [&] {  // for 64 more tokens
    windows_.training.windows.num_tokens = 64;
    const int64_t less = bytes(mixture);
    windows_.training.windows.num_tokens = 128;
    return bytes(mixture) - less;
  };
  const int64_t found = activations();
  double expected = 0.0;
  const ModelDescription& model = mixture.description();
  for (const BlockDescription& block : model.blocks) {
    ASSERT_TRUE(block.is_mixture());
    const FeedForwardDescription& expert = block.experts.front();
    const auto num_met = static_cast<double>(block.routing.experts_per_token);
    ASSERT_LT(num_met, static_cast<double>(block.experts.size()));
    double floats = 3.0 * static_cast<double>(model.hidden_size);
    for (const LinearDescription& linear : {block.q, block.k, block.v, block.o, *block.router}) {
      floats += static_cast<double>(linear.num_out + linear.num_in / 2);
    }
    for (const LinearDescription& linear : {expert.gate, expert.up, expert.down}) {
      floats += num_met * static_cast<double>(linear.num_out + linear.num_in / 2);
    }
    expected += 4.0 * (floats - num_met * static_cast<double>(expert.down.num_in) / 2.0);
  }
  // The head's logits are added, for up to kHeadTokens tokens at a time.
  const double head = 64.0 * static_cast<double>(model.vocabulary_size) * 4.0 * 2.0;
  EXPECT_NEAR(static_cast<double>(found), 64.0 * expected + head, 2.0);
}

// The model has six blocks of SmolLM2's shape from ten, whose values do not matter. A training that --max-memory admits
// must stay below it. Nothing may be refused for memory that it would not take.
TEST(TrainingMemory, IsWhatWasPredicted) {
  const test::TemporaryFolder folder("training_memory");
  const char* const python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
  const auto make = [&](const std::string& name, int num_blocks) {
    const std::string command = std::string(python) + " '" + kSourceFolder + "/tests/bench/make_random_model.py' '" +
                                (folder / name).string() + "' --shape smollm2 --blocks " + std::to_string(num_blocks);
    ASSERT_EQ(std::system(command.c_str()), 0);
  };
  make("student", 6);
  make("teacher", 10);
  TokenWindows windows{.num_windows = 6, .num_tokens = 512, .ids_NT = {}};
  for (int32_t i = 0; i < 6 * 512; ++i) windows.ids_NT.push_back(i * 7919 % 49152);
  write_npy(folder / "windows.npy", windows);
  test::write_text(folder / "r.yaml", "model: " + (folder / "teacher").string() +
                                          "\npasses:\n  - distill: {student: " + (folder / "student").string() +
                                          ", text: " + (folder / "windows.npy").string() +
                                          ", total_tokens: 2048, batch: 2, validations: 1, validation_windows: 2, "
                                          "loss: forward_kl, precision: float32}\n");
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"run", (folder / "r.yaml").string(), "--out", (folder / "out").string(), "--threads", "2", "--json"});
    const test::Outcome outcome = test::run_pare(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const int64_t predicted = run({"--dry-run"}).at("predicted_peak_memory_bytes");
  const int64_t held = run({}).at("peak_memory_bytes");
  EXPECT_LE(held, predicted);
  EXPECT_GE(static_cast<double>(held), 0.7 * static_cast<double>(predicted));
}

}  // namespace
}  // namespace pare
