// Mixtures of experts: the three operations, and how they affect a token's result. The logits of whole models are in
// transformer_test.cpp (goldens of transformers).
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

std::vector<int32_t> random_ids(int64_t num, int64_t vocabulary_size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < num; ++i) ids.push_back(static_cast<int32_t>(generator() % vocabulary_size));
  return ids;
}

class Mixture : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = backend_named(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backends, Mixture, testing::ValuesIn(backend_names()),
                         [](const auto& test) { return test.param; });

// The logits log 1, log 2, log 4, log 1 give the probabilities 1/8, 1/4, 1/2, 1/8, within a few roundings.
TEST_P(Mixture, RoutesToTheLargestProbabilitiesInOrderOfExperts) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(4.0f), 0.0f};
  for (const bool normalizes : {false, true}) {
    std::vector<int32_t> experts(2, -1);
    std::vector<float> weights(2, -1.0f);
    backend_->route(logits.data(), 1, 4, {2, normalizes}, experts.data(), weights.data());
    EXPECT_EQ(experts, (std::vector<int32_t>{1, 2}));
    const float sum = normalizes ? 0.75f : 1.0f;
    EXPECT_NEAR(weights[0], 0.25f / sum, 8 * kUnitRoundoff);
    EXPECT_NEAR(weights[1], 0.5f / sum, 8 * kUnitRoundoff);
  }
}

TEST_P(Mixture, EqualProbabilitiesGoToTheLowerIndex) {
  const std::vector<float> logits = {1.0f, 3.0f, 1.0f, 3.0f, 1.0f,   // 1, 3 and the first of three equals
                                     0.0f, 0.0f, 0.0f, 0.0f, 0.0f};  // all equal
  std::vector<int32_t> experts(6, -1);
  std::vector<float> weights(6);
  backend_->route(logits.data(), 2, 5, {3, true}, experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 3, 0, 1, 2}));
  EXPECT_FLOAT_EQ(weights[3], 1.0f / 3.0f);
}

TEST_P(Mixture, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1e4f, -1e4f, 9.95e3f};
  std::vector<int32_t> experts(2, -1);
  std::vector<float> weights(2);
  backend_->route(logits.data(), 1, 3, {2, true}, experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(weights[0], 1.0f);
  EXPECT_NEAR(weights[1] / std::exp(-50.0f), 1.0f, 1e-5f);
}

TEST_P(Mixture, NotANumberGoesOnWithoutHarm) {
  const std::vector<float> logits = {0.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f};
  std::vector<int32_t> experts(2, -1);
  std::vector<float> weights(2);
  backend_->route(logits.data(), 1, 3, {2, true}, experts.data(), weights.data());
  for (const int32_t expert : experts) EXPECT_TRUE(expert >= 0 && expert < 3);
  EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1]));  // the token's logits will be NaN too
}

TEST_P(Mixture, RefusesMoreExpertsThanThereAre) {
  float x = 0.0f;
  int32_t expert = 0;
  expect_error<std::invalid_argument>([&] { backend_->route(&x, 1, 1, {2, true}, &expert, &x); }, {"route", "1", "2"});
  const std::vector<int32_t> slots = {0, 0, 0};
  const std::vector<float> weights = {1.0f, 1.0f, 1.0f};
  expect_error<std::invalid_argument>([&] { backend_->mix(&x, slots, weights, 2, 1, &x); }, {"mix", "2 rows", "3"});
}

// The logits 0, log 3, -log 3, log 9 have the sigmoids 1/2, 3/4, 1/4, 9/10.
TEST_P(Mixture, ACorrectionChoosesButIsNoWeight) {
  const std::vector<float> logits = {0.0f, std::log(3.0f), -std::log(3.0f), std::log(9.0f)};
  const std::vector<float> correction = {0.5f, 0.0f, 0.0f, -0.5f};
  RoutingDescription routing = {.experts_per_token = 2, .scores = RouterScores::sigmoid, .weight_factor = 2.0f};
  const auto route = [&] {
    std::vector<int32_t> experts(2, -1);
    std::vector<float> weights(2, -1.0f);
    backend_->route({logits.data(), correction.data()}, 1, 4, routing, experts.data(), weights.data());
    EXPECT_EQ(experts, (std::vector<int32_t>{0, 1}));
    return weights;
  };
  std::vector<float> weights = route();
  EXPECT_NEAR(weights[0], 2.0f * 0.5f / 1.25f, 16 * kUnitRoundoff);
  EXPECT_NEAR(weights[1], 2.0f * 0.75f / 1.25f, 16 * kUnitRoundoff);
  routing.smallest_sum = 2.5f;
  EXPECT_NEAR(route()[1], 2.0f * 0.75f / 2.5f, 16 * kUnitRoundoff);
  routing.normalizes_top_weights = false;
  EXPECT_NEAR(route()[1], 2.0f * 0.75f, 16 * kUnitRoundoff);
}

// Of four groups of two, the second and the last have the largest sums. The best expert of all is in the first.
TEST_P(Mixture, ATokenGoesToExpertsOfItsBestGroups) {
  const std::vector<float> logits = {3.0f, -9.0f, 1.0f, 1.0f, 0.0f, 0.0f, 2.0f, 0.5f};
  RoutingDescription routing = {.experts_per_token = 3,
                                .normalizes_top_weights = false,
                                .scores = RouterScores::sigmoid,
                                .num_groups = 4,
                                .groups_per_token = 2};
  std::vector<int32_t> experts(3, -1);
  std::vector<float> weights(3);
  backend_->route(logits.data(), 1, 8, routing, experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{2, 3, 6}));
  EXPECT_NEAR(weights[2], 1.0f / (1.0f + std::exp(-2.0f)), 8 * kUnitRoundoff);
  routing.groups_per_token = 1;
  expect_error<std::invalid_argument>(
      [&] { backend_->route(logits.data(), 1, 8, routing, experts.data(), weights.data()); },
      {"route", "1 of 4 groups of 8", "for 3"});
}

TEST_P(Mixture, EveryTokenGoesToTheSharedExpertToo) {
  const std::vector<float> logits = {0.0f, 5.0f, std::log(3.0f), 5.0f, 0.0f, -std::log(3.0f)};
  RoutingDescription routing = {.experts_per_token = 2, .has_shared = true, .weighs_shared = true};
  std::vector<int32_t> experts(4, -1);
  std::vector<float> weights(4, -1.0f);
  backend_->route(logits.data(), 2, 3, routing, experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 2, 0, 2}));
  EXPECT_EQ(weights[0], 1.0f);
  EXPECT_NEAR(weights[1], 0.75f, 4 * kUnitRoundoff);
  EXPECT_NEAR(weights[3], 0.25f, 4 * kUnitRoundoff);
  routing.weighs_shared = false;  // its logits are no longer there
  backend_->route(logits.data(), 2, 3, routing, experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 2, 1, 2}));
  EXPECT_EQ(weights, (std::vector<float>{1.0f, 1.0f, 1.0f, 1.0f}));
}

TEST_P(Mixture, GatherThenMixIsTheWeightedSumOfRows) {
  const int64_t width = 19, num_rows = 7;
  std::vector<float> x(static_cast<size_t>(num_rows * width));
  std::iota(x.begin(), x.end(), -40.0f);
  const std::vector<int32_t> rows = {5, 0, 0, 6};
  GuardedFloats gathered(4 * width), mixed(3 * width);
  LinearInput y(gathered.data());
  backend_->gather(x.data(), rows, width, y);
  for (size_t s = 0; s < rows.size(); ++s) {
    for (int64_t i = 0; i < width; ++i) {
      ASSERT_EQ(gathered.data()[static_cast<int64_t>(s) * width + i], x[static_cast<size_t>(rows[s] * width + i)]);
    }
  }
  // The values are multiples of 1/4 of small integers, so the sums are exact.
  const std::vector<int32_t> slots = {0, 3, 1, 2, 3, 0};
  const std::vector<float> weights = {0.25f, 0.5f, 1.0f, -2.0f, 0.0f, 0.75f};
  backend_->mix(gathered.data(), slots, weights, 3, width, mixed.data());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const auto term = [&](int64_t k) {
        return weights[static_cast<size_t>(2 * r + k)] *
               gathered.data()[slots[static_cast<size_t>(2 * r + k)] * width + i];
      };
      ASSERT_EQ(mixed.data()[r * width + i], term(0) + term(1));
    }
  }
  EXPECT_TRUE(gathered.front_is_intact() && mixed.front_is_intact());
}

const std::vector<std::string> kMixtures = {"mixtral_experts", "qwen3_moe_dense_block_bf16", "qwen3_moe_fused",
                                            "qwen2_moe_shared_bf16"};

// A few tokens of a window share an expert with few or many tokens of other windows, so both ways of multiplying run.
TEST_P(Mixture, OtherWindowsDoNotChangeABit) {
  const InputFormat plain, by_sequence = {.type = InputType::int8, .range = InputRange::tensor};
  for (const auto& [family, input] : {std::pair{kMixtures[0], plain},
                                      {kMixtures[1], plain},
                                      {kMixtures[2], plain},
                                      {kMixtures[3], plain},
                                      {kMixtures[0], by_sequence},
                                      {kMixtures[3], by_sequence}}) {
    Transformer model = Transformer::load(Checkpoint::open(family_path(family)), *backend_, {},
                                          [input = input](LinearWeights& linear) { linear.input = input; });
    const int64_t num_tokens = 20;
    const int64_t num_windows = GetParam() == "reference" || GetParam() == "guarded" ? 3 : 40;
    const std::vector<int32_t> ids = random_ids(num_windows * num_tokens, model.description().vocabulary_size, 4);
    const int64_t width = model.description().hidden_size;
    const Buffer<float> all = backend_->allocate(num_windows * num_tokens * width);
    const Buffer<float> alone = backend_->allocate(num_tokens * width);
    model.prefill_windows(ids, num_windows, all.get());
    const std::vector<float> expected = downloaded(*backend_, all);
    for (int64_t n = 0; n < num_windows; n += 2) {
      model.prefill_windows(std::span(ids).subspan(static_cast<size_t>(n * num_tokens), num_tokens), 1, alone.get());
      EXPECT_TRUE(same_bits(downloaded(*backend_, alone),
                            std::span(expected).subspan(static_cast<size_t>(n * num_tokens * width),
                                                        static_cast<size_t>(num_tokens * width))))
          << family << " " << input_format_name(input) << ", window " << n;
    }
  }
}

TEST(MixtureModel, OneTokenReadsItsExpertsOnly) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  const Transformer model = Transformer::load(Checkpoint::open(family_path("mixtral_experts")), *backend);
  // The weights are float32 and the widths multiples of 16. Only the router's 4 outputs are padded, to 16.
  const int64_t attention = 64 * (64 + 32 + 32) + 64 * 64, expert = 3 * 64 * 32, router = 16 * 64;
  const int64_t head = 128 * 64;
  EXPECT_EQ(model.resident_bytes(), 4 * (2 * (attention + 4 * expert + router) + 2 * head));
  EXPECT_EQ(model.bytes_per_token(), 4 * (2 * (attention + 2 * expert + router) + head + 64));
}

TEST(MixtureModel, FusedExpertsAreReadOneByOne) {
  const Checkpoint checkpoint = Checkpoint::open(family_path("qwen3_moe_fused"));
  EXPECT_FALSE(checkpoint.has_tensor("model.layers.1.mlp.experts.gate_up_proj"));
  const SafetensorsFile file = SafetensorsFile::open(checkpoint.weight_files().front());
  const TensorView& fused = file.tensors().at("model.layers.1.mlp.experts.gate_up_proj");
  const TensorView& up = checkpoint.tensor("model.layers.1.mlp.experts.2.up_proj.weight");
  ASSERT_EQ(up.shape, (std::vector<int64_t>{32, 64}));
  const size_t num_bytes = 32 * 64 * 4;
  EXPECT_TRUE(
      std::equal(up.data.begin(), up.data.end(), fused.data.begin() + 5 * num_bytes));  // after 2 (gate, up), gate
  checkpoint.drop_pages(checkpoint.description().blocks[1].experts[2].up);
}

TEST(MixtureModel, DamagedFusedExpertsAreNamed) {
  const std::string fused = "model.layers.1.mlp.experts.gate_up_proj";
  const auto refusal = [&](const std::function<void(std::vector<NamedTensor>&)>& damage) {
    TemporaryFolder folder;
    copy_family("qwen3_moe_fused", folder.path() / "m", nlohmann::json::object());
    const SafetensorsFile file = SafetensorsFile::open(family_path("qwen3_moe_fused") / "model.safetensors");
    std::vector<NamedTensor> tensors;
    for (const auto& [name, view] : file.tensors()) tensors.push_back({name, view.dtype, view.shape, view.data});
    damage(tensors);
    write_safetensors(folder.path() / "m" / "model.safetensors", std::move(tensors));
    try {
      Checkpoint::open(folder.path() / "m");
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto find = [&](std::vector<NamedTensor>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
  };
  const std::string shape = refusal([&](auto& tensors) { find(tensors, fused)->shape = {4, 32, 128}; });
  EXPECT_NE(shape.find(fused), std::string::npos) << shape;
  EXPECT_NE(shape.find("[4, 64, 64]"), std::string::npos) << shape;
  const std::string missing =
      refusal([&](auto& tensors) { tensors.erase(find(tensors, "model.layers.1.mlp.experts.down_proj")); });
  EXPECT_NE(missing.find("model.layers.1.mlp.experts.down_proj"), std::string::npos) << missing;
  const std::string twice = refusal([&](auto& tensors) {
    const NamedTensor& whole = *find(tensors, fused);
    tensors.push_back(
        {"model.layers.1.mlp.experts.2.up_proj.weight", DType::F32, {32, 64}, whole.data.first(32 * 64 * 4)});
  });
  EXPECT_NE(twice.find("experts.2.up_proj.weight"), std::string::npos) << twice;
}

TEST(MixtureModel, ChangesOfLinearsLeaveRoutersAlone) {
  const Checkpoint checkpoint = Checkpoint::open(family_path("mixtral_experts"));
  const std::unique_ptr<Backend> backend = make_reference_backend();
  std::vector<std::string> changed;
  Transformer::load(checkpoint, *backend, {}, [&](LinearWeights& weights) { changed.push_back(weights.name); });
  EXPECT_EQ(changed.size(), 2u * (4 + 4 * 3));  // every linear but the routers
  EXPECT_EQ(std::count_if(changed.begin(), changed.end(), [](const auto& name) { return name.ends_with("gate"); }), 0);
}

}  // namespace
}  // namespace pare
