// What evaluations share: the memory that their models take.
#include "runtime/evaluate/evaluation.h"

#include <gtest/gtest.h>

#include "runtime/engine/backend.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

constexpr EvaluationExtent kWindows = {.reference = true,
                                       .workload = {.num_rows = 4096, .num_tokens = 512, .kv_bits = 8}};
constexpr EvaluationExtent kAnswers = {
    .reference = true,
    .workload = {.num_rows = 300, .num_tokens = 300, .keeps_every_layer = true, .kv_bits = 8},
    .in_turn = true};

class MemoryOfEvaluations : public testing::Test {
 protected:
  std::vector<std::vector<MemoryNeed>> needs(std::vector<EvaluationExtent> extents, bool keeps_models) const {
    return memory_needs(model_, &model_, extents, keeps_models, /*on_host=*/false);
  }
  int64_t cache_bytes(int64_t num_tokens, int bits) const {
    const ModelDescription& model = model_.description();
    return num_tokens * KvStorage::bytes_per_token(bits, model.num_kv_heads, model.head_size);
  }
  Checkpoint model_ = Checkpoint::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
};

// The reference is never measured with keys and values in 8 bits.
TEST_F(MemoryOfEvaluations, CountsKeysAndValuesOfTheModelInItsBitsAndOfTheReferenceAsFloats) {
  const auto windows = needs({kWindows}, false);
  ASSERT_EQ(windows.size(), 1u);
  ASSERT_EQ(windows[0].size(), 2u);
  EXPECT_EQ(windows[0][0].cache_bytes, cache_bytes(4096, 8));
  EXPECT_EQ(windows[0][1].cache_bytes, cache_bytes(4096, 32));
  const auto num_layers = static_cast<int64_t>(model_.description().blocks.size());
  const auto answers = needs({kAnswers}, true);
  ASSERT_EQ(answers[0].size(), 2u);
  EXPECT_EQ(answers[0][0].cache_bytes, cache_bytes(num_layers * 300, 8));
  EXPECT_EQ(answers[0][1].cache_bytes, cache_bytes(num_layers * 300, 32));
}

TEST_F(MemoryOfEvaluations, CountsTogetherWhatIsHeldTogether) {
  const auto in_turn = needs({kAnswers}, false);
  ASSERT_EQ(in_turn.size(), 2u);
  EXPECT_EQ(in_turn[0].size(), 1u);
  EXPECT_EQ(in_turn[1].size(), 1u);
  EXPECT_EQ(needs({kAnswers}, true).size(), 1u);
  // Windows and answers each have their caches and buffers, and keep them while the other works.
  const MemoryNeed windows = needs({kWindows}, true)[0][0], answers = needs({kAnswers}, true)[0][0];
  EvaluationExtent fewer = kWindows;
  fewer.workload.num_rows = fewer.workload.num_tokens = 64;
  const auto both = needs({kWindows, kAnswers, fewer}, true);
  EXPECT_EQ(both[0][0].cache_bytes, windows.cache_bytes + answers.cache_bytes);
  EXPECT_EQ(both[0][0].work_bytes, windows.work_bytes + answers.work_bytes);
  EXPECT_EQ(both[0][0].weight_bytes, windows.weight_bytes);
}

TEST_F(MemoryOfEvaluations, CountsAReferenceOnlyWhereItIsMeasured) {
  EvaluationExtent alone = kWindows;
  alone.reference = false;
  EXPECT_EQ(needs({alone}, true)[0].size(), 1u);
  EvaluationExtent small = kWindows;
  small.workload.num_rows = 64;
  const auto mixed = needs({alone, small}, true);
  ASSERT_EQ(mixed[0].size(), 2u);
  EXPECT_EQ(mixed[0][1].cache_bytes, cache_bytes(64, 32));
}

}  // namespace
}  // namespace pare
