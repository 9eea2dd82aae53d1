#include "runtime/engine/generate_together.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "runtime/system/interrupt.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/guarded_backend.h"
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
    const std::vector<Generation> together = generate_together(model_, requests_, {.num_lanes = num_lanes});
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
  EXPECT_TRUE(generate_together(model_, {}).empty());
}

TEST_F(GenerateTogether, RefusesAWrongRequestBeforeAnyWork) {
  requests_[5].prompt = {};
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, {.num_lanes = 2}); }, {"prompt"});
  requests_[5] = requests_[4];
  requests_[6].options.max_tokens = 513;
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, {.num_lanes = 2}); },
                                      {"513 new", "context of 512"});
  requests_[6] = requests_[4];
  requests_[6].options.sampling.temperature = -1.0;
  expect_error<std::invalid_argument>([&] { generate_together(model_, requests_, {.num_lanes = 2}); }, {"temperature"});
}

TEST_F(GenerateTogether, StopsWhenInterrupted) {
  request_interrupt();
  EXPECT_THROW(generate_together(model_, requests_, {.num_lanes = 2}), Interrupted);
}

// stories260k has 5 blocks and 4 heads of keys and values of size 8 in float32: 1280 bytes per token.
TEST_F(GenerateTogether, TakesAsManyTextsAsAreWorthItAndFit) {
  const ModelDescription& model = model_.description();
  EXPECT_EQ(whole_lanes(model, 3, 100), 3);
  EXPECT_EQ(whole_lanes(model, 1000, 100), kMostLanes);
  EXPECT_EQ(whole_lanes(model, 1000, kLaneCacheBytes / 1280 / 5), 5);
  EXPECT_EQ(whole_lanes(model, 1000, kLaneCacheBytes), 1);
}

// A pool of a few pages. stories260k takes 163840 bytes for up to 128 tokens, and as much again for the next 128.
constexpr int64_t kPage = 163840;

class PutBack : public GenerateTogether {
 protected:
  // Texts of 1 to 400 tokens, whose tokens are heard.
  PutBack() {
    const std::vector<int64_t> lengths = {300, 1, 150, 260, 20, 140, 400};
    for (size_t n = 0; n < requests_.size(); ++n) {
      GenerationOptions& options = requests_[n].options;
      options.max_tokens = lengths[n];
      options.end_tokens = {};
      if (n % 2 == 0) options.sampling.repetition_penalty = 1.1;
      options.ends_after = [this, n](int32_t id) {
        heard_[n].push_back(id);
        return heard_[n].size() == 250;
      };
    }
  }

  std::vector<Generation> texts_alone(Transformer& model) {
    std::vector<Generation> texts;
    for (const GenerationRequest& request : requests_) {
      texts.push_back(generate(model, request.prompt, request.options));
    }
    forget_heard();
    return texts;
  }

  void expect_texts(std::span<const Generation> together, std::span<const Generation> alone) {
    ASSERT_EQ(together.size(), alone.size());
    for (size_t n = 0; n < alone.size(); ++n) {
      EXPECT_EQ(heard_[n], together[n].ids) << "text " << n << ": each token is heard once";
      EXPECT_EQ(together[n].ids, alone[n].ids) << "text " << n;
      EXPECT_EQ(together[n].was_ended, alone[n].was_ended);
      EXPECT_EQ(together[n].prompt_tokens, alone[n].prompt_tokens);
      EXPECT_EQ(together[n].decoded_tokens, alone[n].decoded_tokens);
    }
    forget_heard();
  }

  void forget_heard() { heard_ = std::vector<std::vector<int32_t>>(requests_.size()); }

  std::vector<std::vector<int32_t>> heard_ = std::vector<std::vector<int32_t>>(requests_.size());
};

TEST_F(PutBack, TextsGoOnWhereTheyWere) {
  ASSERT_EQ(pooled_bytes(model_.description(), 128), kPage);
  ASSERT_EQ(pooled_bytes(model_.description(), 129), 2 * kPage);
  const std::vector<Generation> alone = texts_alone(model_);
  for (const int64_t num_pages : {0, 3, 4}) {
    SCOPED_TRACE(std::to_string(num_pages) + " pages");
    LaneUse use;
    const LaneLimits limits = {.pool_bytes = num_pages * kPage};
    expect_texts(generate_together(model_, requests_, limits, {}, {}, &use), alone);
    EXPECT_EQ(use.most_texts, std::max<int64_t>(num_pages, 1));
    EXPECT_EQ(use.num_put_back > 0, num_pages > 1);
    if (HasFailure()) return;
  }
}

// Nothing but the requests and the limits decides which texts go together.
TEST_F(PutBack, HappensTheSameWayEachTime) {
  std::vector<std::vector<size_t>> orders;
  std::vector<LaneUse> uses(2);
  for (LaneUse& use : uses) {
    forget_heard();
    std::vector<size_t>& order = orders.emplace_back();
    generate_together(
        model_, requests_, {.pool_bytes = 3 * kPage}, [&](size_t n, const Generation&) { order.push_back(n); }, {},
        &use);
  }
  std::vector<size_t> sorted = orders[0];
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_EQ(uses[0].num_put_back, uses[1].num_put_back);
}

// Three texts begin, and the second ends at once. The first and the third grow to 128 tokens, where the third is put
// back, and no later request overtakes it.
TEST_F(PutBack, TheLastToBeginIsTheFirstToWait) {
  requests_.resize(4);
  for (size_t n = 0; n < 4; ++n) {
    requests_[n].options = {.max_tokens = n == 1 ? 1 : 200, .vocabulary_size = tokenizer_.vocabulary_size()};
    requests_[n].options.ends_after = [this, n](int32_t id) {
      heard_[n].push_back(id);
      return heard_[n].size() == 190;
    };
  }
  std::vector<size_t> order;
  LaneUse use;
  generate_together(
      model_, requests_, {.num_lanes = 2, .pool_bytes = 3 * kPage},
      [&](size_t n, const Generation&) {
        order.push_back(n);
        if (n == 0) {
          EXPECT_GT(heard_[2].size(), 100u);
          EXPECT_LT(heard_[2].size(), 190u);
          EXPECT_TRUE(heard_[3].empty());
        }
      },
      {}, &use);
  EXPECT_EQ(order, (std::vector<size_t>{1, 0, 2, 3}));
  EXPECT_EQ(use.most_texts, 2);
  EXPECT_GE(use.num_put_back, 1);
}

TEST_F(PutBack, WorkCanBeInterruptedAtAnyStep) {
  int num_steps = 0;
  const LaneLimits limits = {.pool_bytes = 3 * kPage};
  generate_together(model_, requests_, limits, {}, [&] { ++num_steps; });
  for (const int last : {0, 1, num_steps / 3, num_steps / 2, num_steps - 2}) {
    int step = 0;
    const auto interrupt = [&] {
      if (step++ == last) request_interrupt();
    };
    EXPECT_THROW(generate_together(model_, requests_, limits, {}, interrupt), Interrupted) << last;
    EXPECT_LE(step, last + 1);
    clear_interrupt();
  }
}

// A backend with memory of its own, and one whose system refuses addresses.
class RefusingBackend : public GuardedBackend {
 public:
  bool takes_pages() const override { return true; }
  BufferMemory reserve_bytes(int64_t) override {
    ++num_refused;
    throw std::bad_alloc();
  }
  int num_refused = 0;
};

// A long prompt that would soon be put back does not begin: it would be read twice.
TEST_F(GenerateTogether, APromptBeginsWithRoomForAnEighthMore) {
  const std::vector<int32_t> prompt(120, 5);
  const auto use_of = [&](int64_t max_tokens) {
    GenerationRequest request{prompt, {}};
    request.options.max_tokens = max_tokens;
    LaneUse use;
    generate_together(model_, std::vector<GenerationRequest>(2, request), {.pool_bytes = 2 * kPage}, {}, {}, &use);
    return use;
  };
  EXPECT_EQ(use_of(5).most_texts, 2);  // 125 tokens are in a page
  EXPECT_EQ(use_of(100).most_texts, 1);
  EXPECT_EQ(use_of(100).num_put_back, 0);
}

TEST_F(PutBack, LanesAreWholeWithoutPages) {
  for (GenerationRequest& request : requests_)
    request.options.max_tokens = std::min<int64_t>(30, request.options.max_tokens);
  GuardedBackend device;
  RefusingBackend refusing;
  for (Backend* backend : {static_cast<Backend*>(&device), static_cast<Backend*>(&refusing)}) {
    Transformer model = Transformer::load(Checkpoint::open(directory_), *backend);
    LaneUse use;
    const LaneLimits limits = {.pool_bytes = 3 * 40 * 1280};  // three texts of at most 40 tokens
    const std::vector<Generation> alone = texts_alone(model_);
    expect_texts(generate_together(model, requests_, limits, {}, {}, &use), alone);
    EXPECT_EQ(use.most_texts, 3);
    EXPECT_EQ(use.num_put_back, 0);
  }
  EXPECT_EQ(refusing.num_refused, 1);
  // What names its way of growing does not change it.
  const LaneLimits limits = {.needs_pages = true};
  Transformer model = Transformer::load(Checkpoint::open(directory_), refusing);
  expect_error<std::runtime_error>([&] { generate_together(model, requests_, limits); },
                                   {"refuses", "fewer new tokens"});
  Transformer whole = Transformer::load(Checkpoint::open(directory_), device);
  EXPECT_EQ(generate_together(whole, requests_, limits).size(), requests_.size());
}

// Under a limit of the address space, reservations would be taken from it.
TEST_F(PutBack, LanesAreWholeUnderALimitOfAddresses) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "there is a limit already";
  EXPECT_TRUE(backend_->takes_pages());
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 50;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_FALSE(backend_->takes_pages());
  for (GenerationRequest& request : requests_) request.options.max_tokens = 10;
  LaneUse use;
  generate_together(model_, requests_, {.pool_bytes = 2 * 19 * 1280}, {}, {}, &use);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(use.most_texts, 2);
}

}  // namespace
}  // namespace pare
