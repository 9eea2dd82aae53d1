#include "runtime/engine/generate_together.h"

#include <gtest/gtest.h>

#include "runtime/system/interrupt.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

class GenerateTogether : public testing::Test {
 protected:
  void SetUp() override { clear_interrupt(); }
  void TearDown() override { clear_interrupt(); }
  GenerateTogether() {
    for (const char* text :
         {"Once upon a time", "Tom", "", "The sun was", "Lily and her mom went", "One day", "A dog"}) {
      prompts_.push_back(tokenizer_.encode(text, true));
    }
    for (size_t n = 0; n < prompts_.size(); ++n) {
      requests_.push_back({.prompt = prompts_[n],
                           .options = {.max_tokens = lengths_[n],
                                       .sampling = {.temperature = n % 3 == 0 ? 0.0 : 1.0, .seed = 7 * n},
                                       .vocabulary_size = tokenizer_.vocabulary_size(),
                                       .end_tokens = {stop_}}});
    }
  }

  std::string directory_ = std::string(kSourceFolder) + "/calibration_data/stories260k";
  Tokenizer tokenizer_ = Tokenizer::open(directory_);
  int32_t stop_ = tokenizer_.encode("day.", false).back();  // this token ends some of the texts early
  const std::vector<int64_t> lengths_ = {40, 1, 60, 25, 2, 33, 50};
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<GenerationRequest> requests_;
  std::unique_ptr<Backend> backend_ = backend_named(baseline_name(), 2);
  Transformer model_ = Transformer::load(Checkpoint::open(directory_), *backend_);
};

// With more texts than lanes, of different lengths and ends, lanes are used again. There are also more lanes than
// texts. Another number of lanes changes the logits by roundings, which changes no draw of these.
TEST_F(GenerateTogether, IsWhatEachTextIsAlone) {
  int num_ended = 0, num_full = 0;
  for (const int64_t num_lanes : {1, 2, 3, 7, 20}) {
    const std::vector<Generation> together = generate_together(model_, requests_, num_lanes);
    ASSERT_EQ(together.size(), requests_.size());
    for (size_t n = 0; n < requests_.size(); ++n) {
      const Generation alone = generate(model_, requests_[n].prompt, requests_[n].options);
      EXPECT_EQ(together[n].ids, alone.ids) << "text " << n << ", " << num_lanes << " lanes";
      EXPECT_EQ(together[n].reached_end, alone.reached_end);
      EXPECT_EQ(together[n].end_token, alone.end_token);
      EXPECT_EQ(together[n].prompt_tokens, alone.prompt_tokens);
      EXPECT_EQ(together[n].decoded_tokens, alone.decoded_tokens);
      (alone.reached_end ? num_ended : num_full) += 1;
    }
  }
  EXPECT_GT(num_ended, 0);
  EXPECT_GT(num_full, 0);
}

TEST_F(GenerateTogether, NothingGivesNothing) {
  EXPECT_TRUE(generate_together(model_, {}, 4).empty());
}

TEST_F(GenerateTogether, RefusesAWrongRequestBeforeAnyWork) {
  requests_[5].prompt = {};
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, 2); }, {"prompt"});
  requests_[5] = requests_[4];
  requests_[6].options.max_tokens = 513;
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, 2); }, {"513 new", "context of 512"});
  requests_[6] = requests_[4];
  requests_[6].options.sampling.temperature = -1.0;
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, 2); }, {"temperature"});
}

TEST_F(GenerateTogether, StopsWhenInterrupted) {
  request_interrupt();
  EXPECT_THROW(generate_together(model_, requests_, 2), Interrupted);
}

// stories260k has 5 blocks and 4 heads of keys and values of size 8 in float32: 1280 bytes per token.
TEST_F(GenerateTogether, TakesAsManyTextsAsAreWorthItAndFit) {
  const ModelDescription& model = model_.description();
  EXPECT_EQ(lanes_at_once(model, 3, 100), 3);
  EXPECT_EQ(lanes_at_once(model, 1000, 100), kMostLanes);
  EXPECT_EQ(lanes_at_once(model, 1000, kLaneCacheBytes / 1280 / 5), 5);
  EXPECT_EQ(lanes_at_once(model, 1000, kLaneCacheBytes), 1);
}

}  // namespace
}  // namespace pare
