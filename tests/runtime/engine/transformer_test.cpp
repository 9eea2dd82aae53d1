#include "runtime/engine/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// The agreement with transformers that the project promises in float32: relative to the largest logit, over all rows
// and for each row. Two float32 forwards that sum in different orders differ by a few 1e-6 on these models.
constexpr double kTolerance = 1e-4;
// The limit for the same arithmetic with rows grouped differently.
constexpr double kRegroupTolerance = 1e-5;

double relative_difference(std::span<const float> found, std::span<const float> expected) {
  EXPECT_EQ(found.size(), expected.size());
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    difference = std::max(difference, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference / largest;
}

void expect_rows_near(std::span<const float> found, std::span<const float> expected, size_t width, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_LE(relative_difference(found, expected), tolerance);
  for (size_t row = 0; row < found.size() / width; ++row) {
    ASSERT_LE(relative_difference(found.subspan(row * width, width), expected.subspan(row * width, width)), tolerance)
        << "row " << row;
  }
}

std::vector<int32_t> random_ids(int64_t num, int64_t vocabulary_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(num));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary_size));
  return ids;
}

TEST(TransformerComparator, SeesOneWrongElementOfEitherSign) {
  std::vector<float> expected = {1.0f, -2.0f, 3.0f};
  EXPECT_EQ(relative_difference(expected, expected), 0.0);
  std::vector<float> found = expected;
  found[2] = -3.0f;
  EXPECT_DOUBLE_EQ(relative_difference(found, expected), 2.0);
  found = expected;
  found[1] = -2.3f;
  EXPECT_NEAR(relative_difference(found, expected), 0.1, 1e-6);
  found[1] = NAN;
  EXPECT_EQ(relative_difference(found, expected), INFINITY);
}

struct Case {
  std::string family, backend;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& family : families()) {
    for (const std::string& backend : backend_names()) cases.push_back({family, backend});
  }
  return cases;
}

class TransformerFamily : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Backend> backend_ = backend_named(GetParam().backend);
  Transformer model_ = Transformer::load(Checkpoint::open(family_path(GetParam().family)), *backend_);
  TokenWindows windows_ = read_npy(family_path(GetParam().family) / "ids.npy");
  std::vector<float> golden_ = read_golden_floats(family_path(GetParam().family) / "logits.npy");
  size_t vocabulary_size_ = static_cast<size_t>(model_.description().vocabulary_size);
};

TEST_P(TransformerFamily, PrefillGivesTheLogitsOfTransformers) {
  const std::vector<float> logits = prefill_logits(model_, windows_.ids_NT, windows_.num_windows);
  expect_rows_near(logits, golden_, vocabulary_size_, kTolerance);
}

TEST_P(TransformerFamily, DecodingGivesTheLogitsOfTransformers) {
  for (int64_t n = 0; n < windows_.num_windows; ++n) {
    const std::span<const int32_t> ids = windows_.window(n);
    const std::unique_ptr<Transformer::Session> session = model_.start(windows_.num_tokens);
    // A prompt is fed, then single tokens past every sliding window, then a second longer piece.
    const size_t prompt = 9, piece = 7;
    size_t fed = 0;
    while (fed < ids.size()) {
      const size_t num = fed == 0 ? prompt : fed + piece == ids.size() ? piece : 1;
      const std::span<const float> logits = session->feed(ids.subspan(fed, num));
      fed += num;
      ASSERT_EQ(session->num_tokens(), static_cast<int64_t>(fed));
      const size_t row = static_cast<size_t>(n * windows_.num_tokens) + fed - 1;
      ASSERT_LE(relative_difference(logits, std::span(golden_).subspan(row * vocabulary_size_, vocabulary_size_)),
                kTolerance)
          << "window " << n << ", token " << fed - 1;
    }
  }
}

// Each window has a lane of its own. All begin with different lengths and are fed token by token. A lane whose window
// ends stops, or begins the first window again. Lanes lie in pages where the backend has them.
TEST_P(TransformerFamily, LanesGiveTheLogitsOfTransformers) {
  const int64_t num_lanes = windows_.num_windows;
  const std::unique_ptr<Transformer::Lanes> lanes =
      model_.start_lanes(num_lanes, windows_.num_tokens, /*in_pages=*/true);
  std::vector<int64_t> window_of(static_cast<size_t>(num_lanes)), fed(static_cast<size_t>(num_lanes));
  const auto expect_golden = [&](std::span<const float> logits_V, int64_t lane) {
    const auto l = static_cast<size_t>(lane);
    const auto row = static_cast<size_t>(window_of[l] * windows_.num_tokens + fed[l] - 1);
    EXPECT_LE(relative_difference(logits_V, std::span(golden_).subspan(row * vocabulary_size_, vocabulary_size_)),
              kTolerance)
        << "lane " << lane << ", window " << window_of[l] << ", token " << fed[l] - 1;
  };
  const auto begin = [&](int64_t lane, int64_t window, int64_t num_tokens) {
    window_of[static_cast<size_t>(lane)] = window;
    fed[static_cast<size_t>(lane)] = num_tokens;
    expect_golden(lanes->begin(lane, windows_.window(window).first(static_cast<size_t>(num_tokens))), lane);
  };
  for (int64_t lane = 0; lane < num_lanes; ++lane) begin(lane, lane, 3 + 5 * lane);
  bool began_again = false;
  while (true) {
    std::vector<int64_t> going;
    std::vector<int32_t> ids;
    for (int64_t lane = num_lanes - 1; lane >= 0; --lane) {  // the order is free
      int64_t& num = fed[static_cast<size_t>(lane)];
      if (num == windows_.num_tokens && !began_again) {
        began_again = true;
        lanes->end(lane);
        begin(lane, 0, 2);
      }
      if (num == windows_.num_tokens) continue;
      going.push_back(lane);
      ids.push_back(windows_.window(window_of[static_cast<size_t>(lane)])[static_cast<size_t>(num++)]);
    }
    if (going.empty()) break;
    const std::span<const float> logits_NV = lanes->feed_each(going, ids);
    ASSERT_EQ(logits_NV.size(), going.size() * vocabulary_size_);
    for (size_t i = 0; i < going.size(); ++i) {
      expect_golden(logits_NV.subspan(i * vocabulary_size_, vocabulary_size_), going[i]);
    }
    if (HasFailure()) return;
  }
  EXPECT_TRUE(began_again);
}

INSTANTIATE_TEST_SUITE_P(Goldens, TransformerFamily, testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.family + "_" + test.param.backend; });

TEST(Transformer, ThreadsDoNotChangeABit) {
  for (const Case& test : all_cases()) {
    if (test.backend == "reference") continue;
    const Checkpoint checkpoint = Checkpoint::open(family_path(test.family));
    const std::vector<int32_t> ids = random_ids(300, checkpoint.description().vocabulary_size, 3);
    std::vector<std::vector<float>> logits;
    for (const int num_threads : {1, 2, 3}) {
      const std::unique_ptr<Backend> backend = backend_named(test.backend, num_threads);
      Transformer model = Transformer::load(checkpoint, *backend);
      logits.push_back(prefill_logits(model, ids, 3));
    }
    EXPECT_EQ(logits[0], logits[1]) << test.family << " " << test.backend;
    EXPECT_EQ(logits[0], logits[2]) << test.family << " " << test.backend;
  }
}

// The longest sequence has more than 32 tokens, so all have the long factors, also those that lie in another batch. A
// short sequence by itself has the short factors.
TEST(Transformer, TheLongestSequenceDecidesAboutLongrope) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(family_path("phi3_longrope_partial")), *backend);
  const int64_t vocabulary_size = model.description().vocabulary_size, width = model.description().hidden_size;
  const std::vector<int32_t> tail = random_ids(20, vocabulary_size, 2);
  const auto logits_of_tail = [&](const std::vector<int64_t>& before) {
    const int64_t num_before = std::accumulate(before.begin(), before.end(), int64_t{0});
    std::vector<int32_t> ids = random_ids(num_before, vocabulary_size, 1);
    ids.insert(ids.end(), tail.begin(), tail.end());
    std::vector<int64_t> lengths = before;
    lengths.push_back(20);
    const Buffer<float> hidden = backend->allocate(static_cast<int64_t>(ids.size()) * width);
    model.prefill_sequences(ids, lengths, hidden.get());
    return logits_of(model, hidden.get() + num_before * width, 20);
  };
  const std::vector<float> with_long = logits_of_tail({40});
  const std::vector<float> in_another_batch = logits_of_tail(std::vector<int64_t>(110, 40));  // above 4096 rows
  EXPECT_LE(relative_difference(in_another_batch, with_long), kRegroupTolerance);
  EXPECT_GT(relative_difference(logits_of_tail({}), with_long), 1e-2);
}

TEST(Transformer, GoldenFamiliesAreThere) {
  EXPECT_GE(families().size(), 11u);
}

// 70 windows of 60 tokens need more than one batch (4096 rows), and chunks (1024 rows) end inside a window.
TEST(Transformer, ManyWindowsGiveWhatEachGivesAlone) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  for (const std::string family : {"llama_gqa_untied", "gemma3_local_global", "mixtral_experts"}) {
    Transformer model = Transformer::load(Checkpoint::open(family_path(family)), *backend);
    const int64_t num_windows = 70, num_tokens = 60;
    const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
    const std::vector<int32_t> ids = random_ids(num_windows * num_tokens, model.description().vocabulary_size, 1);
    ASSERT_GT(static_cast<int64_t>(ids.size()), Transformer::kBatchRows);
    const std::vector<float> all = prefill_logits(model, ids, num_windows);
    for (const int64_t n : {0L, 17L, 34L, 67L, 68L, 69L}) {
      const auto first = ids.begin() + n * num_tokens;
      const std::vector<float> alone = prefill_logits(model, {first, first + num_tokens}, 1);
      const auto rows = std::span(all).subspan(static_cast<size_t>(n * num_tokens) * vocabulary_size, alone.size());
      expect_rows_near(rows, alone, vocabulary_size, kRegroupTolerance);
    }
  }
}

// A later call may have more windows than the first, if it has no more rows.
TEST(Transformer, ManyShortWindowsFollowFewLongOnes) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
  const std::vector<int32_t> ids = random_ids(120, model.description().vocabulary_size, 4);
  prefill_logits(model, ids, 1);
  const std::vector<float> all = prefill_logits(model, ids, 30);
  for (const int64_t n : {0, 13, 29}) {
    const auto first = ids.begin() + n * 4;
    const std::vector<float> alone = prefill_logits(model, {first, first + 4}, 1);
    const auto rows = std::span(all).subspan(static_cast<size_t>(n * 4) * vocabulary_size, alone.size());
    expect_rows_near(rows, alone, vocabulary_size, kRegroupTolerance);
  }
}

TEST(Transformer, LongSequencesInPiecesGiveWhatTheyGiveAtOnce) {
  TemporaryFolder folder;
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  for (const std::string family : {"llama_gqa_untied", "mistral_window", "qwen3_moe_fused"}) {
    const std::filesystem::path directory = folder.path() / family;
    copy_family(family, directory, {{"max_position_embeddings", 6000}});
    Transformer model = Transformer::load(Checkpoint::open(directory), *backend);
    const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
    const std::vector<int32_t> ids = random_ids(5000, model.description().vocabulary_size, 2);  // longer than a batch
    const std::vector<float> at_once = prefill_logits(model, ids, 1);
    const std::unique_ptr<Transformer::Session> session = model.start(5000);
    size_t fed = 0;
    for (const size_t num : {size_t{2500}, size_t{1}, size_t{1023}, size_t{1}, size_t{1475}}) {
      const std::span<const float> logits = session->feed(std::span(ids).subspan(fed, num));
      fed += num;
      const auto expected = std::span(at_once).subspan((fed - 1) * vocabulary_size, vocabulary_size);
      EXPECT_LE(relative_difference(logits, expected), kRegroupTolerance) << family << " after " << fed;
    }
    EXPECT_EQ(fed, ids.size());
  }
}

TEST(Transformer, LogitSoftcapBoundsTheLogits) {
  TemporaryFolder folder;
  const float cap = 3.0f;
  copy_family("gemma3_local_global", folder.path() / "m", {{"final_logit_softcapping", cap}});
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(folder.path() / "m"), *backend);
  std::vector<float> expected = read_golden_floats(family_path("gemma3_local_global") / "logits.npy");
  for (float& logit : expected) logit = cap * std::tanh(logit / cap);
  const TokenWindows windows = read_npy(family_path("gemma3_local_global") / "ids.npy");
  const std::unique_ptr<Transformer::Session> session = model.start(windows.num_tokens);
  const std::span<const float> logits = session->feed(windows.window(0));
  const auto last =
      std::span(expected).subspan(static_cast<size_t>(windows.num_tokens - 1) * logits.size(), logits.size());
  EXPECT_LE(relative_difference(logits, last), kTolerance);
}

// llama_gqa_untied is stored as float32 with every width a multiple of 16, so packing adds nothing.
TEST(Transformer, BytesArePacked32BitWeights) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  const Checkpoint checkpoint = Checkpoint::open(family_path("llama_gqa_untied"));
  const Transformer model = Transformer::load(checkpoint, *backend);
  int64_t linears = 0;
  for (const std::string& name : checkpoint.tensor_names()) {
    const bool is_norm = name.find("norm") != std::string::npos;
    if (!is_norm && name != "model.embed_tokens.weight") linears += checkpoint.tensor(name).num_elements();
  }
  const ModelDescription& description = model.description();
  const int64_t embedding = description.vocabulary_size * description.hidden_size;
  EXPECT_EQ(model.resident_bytes(), 4 * (linears + embedding));
  EXPECT_EQ(model.bytes_per_token(), 4 * (linears + description.hidden_size));
  ASSERT_EQ(model.kernel_names().size(), 1u);
}

// With one row, a zero is a skipped column, unless too few are zero.
TEST(Transformer, CountsTheZerosAfterRelu) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Transformer opt = Transformer::load(Checkpoint::open(family_path("opt_learned_positions")), *backend);
  EXPECT_EQ(opt.bytes_read_per_token(), opt.bytes_per_token());
  const TokenWindows windows = read_npy(family_path("opt_learned_positions") / "ids.npy");
  const std::unique_ptr<Transformer::Session> session = opt.start(windows.num_tokens);
  for (const int32_t& id : windows.window(0)) session->feed({&id, 1});
  const InputZeros zeros = opt.input_zeros();
  const auto num_blocks = static_cast<int64_t>(opt.description().blocks.size());
  EXPECT_EQ(zeros.num_products, num_blocks * windows.num_tokens);
  EXPECT_EQ(zeros.num_inputs, zeros.num_products * opt.description().feed_forward_size);
  EXPECT_EQ(zeros.num_columns, zeros.num_inputs);
  EXPECT_GT(zeros.num_zeros, zeros.num_inputs / 10);
  EXPECT_LT(zeros.num_zeros, zeros.num_inputs);
  EXPECT_LE(zeros.num_skipped, zeros.num_zeros);
  EXPECT_GT(zeros.num_skipped, 0);
  EXPECT_LT(opt.bytes_read_per_token(), opt.bytes_per_token());

  const Transformer llama = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  EXPECT_FALSE(llama.input_zeros().is_counted());
}

TEST(Transformer, TiedHeadIsStoredOnce) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  const Transformer model = Transformer::load(Checkpoint::open(family_path("llama3_rope_tied")), *backend);
  const ModelDescription& description = model.description();
  EXPECT_EQ(model.head().num_out(), description.vocabulary_size);
  EXPECT_EQ(model.bytes_per_token() - model.resident_bytes(),
            model.head().resident_bytes() / description.vocabulary_size);  // one row of the table that is also the head
}

TEST(Transformer, ReportsProgressBlockByBlock) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  std::vector<int64_t> calls;
  Transformer::load(Checkpoint::open(family_path("gemma3_local_global")), *backend, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 3);
    calls.push_back(done);
  });
  EXPECT_EQ(calls, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(Transformer, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  std::vector<float> hidden(static_cast<size_t>(256 * model.description().hidden_size));
  const std::vector<int32_t> ids(256, 1);
  const auto prefill = [&](size_t num_ids, int64_t num_windows) {
    model.prefill_windows(std::span(ids).first(num_ids), num_windows, hidden.data());
  };
  expect_error<std::invalid_argument>([&] { prefill(129, 1); }, {"129", "context", "128"});
  expect_error<std::invalid_argument>([&] { prefill(9, 2); }, {"9 tokens", "2 windows"});
  expect_error<std::invalid_argument>([&] { prefill(0, 1); }, {"0 tokens"});
  const std::vector<int32_t> wrong = {1, 2, 128};
  expect_error<std::invalid_argument>([&] { model.prefill_windows(wrong, 1, hidden.data()); }, {"token 2", "128"});
  expect_error<std::invalid_argument>([&] { model.start(129); }, {"129", "128"});
  expect_error<std::invalid_argument>([&] { model.start(0); }, {"at least one"});

  const std::unique_ptr<Transformer::Session> session = model.start(4);
  const std::vector<int32_t> negative = {-1};
  expect_error<std::invalid_argument>([&] { session->feed(negative); }, {"-1"});
  expect_error<std::invalid_argument>([&] { session->feed({}); }, {"no tokens"});
  session->feed(std::span(ids).first(3));
  expect_error<std::invalid_argument>([&] { session->feed(std::span(ids).first(2)); },
                                      {"4 tokens", "holds 3", "2 more"});
  EXPECT_EQ(session->num_tokens(), 3);

  expect_error<std::invalid_argument>([&] { model.start_lanes(0, 4); }, {"at least one lane"});
  expect_error<std::invalid_argument>([&] { model.start_lanes(2, 129); }, {"129", "128"});
  const std::unique_ptr<Transformer::Lanes> lanes = model.start_lanes(2, 4);
  const std::vector<int64_t> both = {0, 1}, twice = {0, 0}, outside = {2};
  lanes->begin(0, std::span(ids).first(3));
  expect_error<std::invalid_argument>([&] { lanes->begin(0, std::span(ids).first(5)); }, {"lane 0", "4 tokens", "5"});
  expect_error<std::invalid_argument>([&] { lanes->begin(0, negative); }, {"-1"});  // and the lane keeps its tokens
  expect_error<std::invalid_argument>([&] { lanes->feed_each(both, std::span(ids).first(2)); },
                                      {"lane 1", "not begun"});
  expect_error<std::invalid_argument>([&] { lanes->feed_each(twice, std::span(ids).first(2)); }, {"lane 0", "twice"});
  expect_error<std::invalid_argument>([&] { lanes->feed_each(both, std::span(ids).first(1)); },
                                      {"2 lanes", "1 tokens"});
  expect_error<std::invalid_argument>([&] { lanes->feed_each({}, {}); }, {"0 lanes"});
  expect_error<std::invalid_argument>([&] { lanes->feed_each(outside, std::span(ids).first(1)); },
                                      {"lane 2", "2 lanes"});
  expect_error<std::invalid_argument>([&] { lanes->begin(-1, std::span(ids).first(1)); }, {"lane -1", "2 lanes"});
  expect_error<std::invalid_argument>([&] { lanes->feed_each({both.data(), 1}, negative); }, {"-1"});
  expect_error<std::invalid_argument>([&] { lanes->end(2); }, {"lane 2", "2 lanes"});
  expect_error<std::invalid_argument>([&] { lanes->resume(0, std::span(ids).first(3), std::span(ids).first(2)); },
                                      {"lane 0", "4 tokens", "5"});
  lanes->feed_each({both.data(), 1}, std::span(ids).first(1));
  expect_error<std::invalid_argument>(
      [&] {
        lanes->feed_each({both.data(), 1}, std::span(ids).first(1));
      },
      {"4 tokens", "holds 4", "1 more"});
}

// A sequence that comes back to a lane is as it was: by rounding, or to the bit where the rows of a sequence that were
// fed together share a range.
TEST(Transformer, LanesResumeWhatTheyHaveLeft) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  const std::string directory = std::string(kSourceFolder) + "/calibration_data/stories260k";
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(7 * i * i % 500);
  const std::span<const int32_t> prompt = std::span(ids).first(15), more = std::span(ids).subspan(15);
  for (const bool has_ranges : {false, true}) {
    Transformer model = Transformer::load(Checkpoint::open(directory), *backend, {}, [&](LinearWeights& linear) {
      if (has_ranges) linear.input = {.type = InputType::int8, .range = InputRange::tensor};
    });
    for (const int bits : kKvBits) {
      model.use_attention_bits({.kv = bits});
      const std::unique_ptr<Transformer::Session> session = model.start(64);
      std::span<const float> expected = session->feed(prompt);
      for (const int32_t id : more) expected = session->feed({&id, 1});
      const std::unique_ptr<Transformer::Lanes> lanes = model.start_lanes(2, 64, /*in_pages=*/true);
      lanes->begin(1, more);  // another sequence in the lane
      lanes->end(1);
      const std::span<const float> resumed = lanes->resume(1, prompt, more);
      if (has_ranges) {
        EXPECT_TRUE(std::equal(resumed.begin(), resumed.end(), expected.begin(), expected.end())) << bits << " bits";
      } else {
        // Other roundings of keys and values: half a step of bf16 is 2^-9 of a value, and half a code 1/510 of a range.
        EXPECT_LE(relative_difference(resumed, expected), bits == 32 ? kTolerance : 0x1p-8) << bits << " bits";
      }
      const std::vector<int64_t> lane = {1};
      const std::span<const float> next = session->feed(std::span(ids).first(1));
      const std::vector<float> expected_next(next.begin(), next.end());
      EXPECT_LE(relative_difference(lanes->feed_each(lane, std::span(ids).first(1)), expected_next), has_ranges ? 0.0
                                                                                                     : bits == 32
                                                                                                         ? kTolerance
                                                                                                         : 0x1p-8);
    }
  }
}

// A batch takes minutes on a large model. An interrupted batch ends between blocks, and the next batch is whole again.
TEST(TransformerInterruption, IsAskedForInsideABatch) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  const std::vector<int32_t> ids = {5, 9, 2, 7, 1, 3, 8, 4};
  const auto width = static_cast<size_t>(model.description().hidden_size);
  std::vector<float> expected(ids.size() * width), found(expected.size());
  model.prefill_windows(ids, 2, expected.data());
  const std::unique_ptr<Transformer::Session> session = model.start(32);
  request_interrupt();
  EXPECT_THROW(model.prefill_windows(ids, 2, found.data()), Interrupted);
  EXPECT_THROW(session->feed(ids), Interrupted);
  EXPECT_THROW(model.start_lanes(2, 32)->begin(1, ids), Interrupted);
  clear_interrupt();
  EXPECT_EQ(session->num_tokens(), 0);
  model.prefill_windows(ids, 2, found.data());
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace pare
