// The forward pass with rounded inputs and quantized weights (W8A8, W4A8, FP8, LLM.int8), and with caches of 16 and 8
// bits.
//
// Two implementations differ by float32 roundings before a rounding to 8 bits. Sometimes such a difference moves a
// value across the middle between two codes. Few values move, so two right implementations differ less than either
// differs from the unrounded model. Their difference is at most kFlips of that one (root mean squares of the logits'
// differences). Without a zero the share is up to 0.35: a row's largest value, if negative, lies exactly between -127
// and -128. A wrong rule (another divisor, range or zero) makes rounding errors of its own, a difference of sqrt(2).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/evaluate/perplexity.h"
#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/golden_families.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr double kFlips = 0.5;

double rms_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Rounds a weight to the nearest codes, which the quantizers improve on.
QuantizedWeight round_weight(const DenseWeight& dense, int bits, int64_t group_size, const WeightCode* type,
                             bool per_tensor) {
  QuantizedWeight weight;
  weight.num_out = dense.num_out;
  weight.num_in = dense.num_in;
  weight.bits = bits;
  weight.code = type;
  weight.group_size = group_size;
  weight.scale_dtype = DType::F32;
  std::vector<float> values(static_cast<size_t>(dense.num_out * dense.num_in));
  convert_to_float(dense.dtype, dense.data, values);
  const int64_t width = group_size == kPerChannel ? dense.num_in : group_size;
  const float largest_code = type == &kFp8Code ? 448.0f : static_cast<float>((1 << (bits - 1)) - 1);
  float largest_of_all = 0.0f;
  for (const float value : values) largest_of_all = std::max(largest_of_all, std::abs(value));
  weight.codes_OI.resize(values.size());
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(width)) {
    const std::span<const float> group = std::span<const float>(values).subspan(begin, static_cast<size_t>(width));
    float largest = per_tensor ? largest_of_all : 1e-9f;
    for (const float value : group) largest = std::max(largest, std::abs(value));
    const float scale = largest / largest_code;
    weight.scales_OG.push_back(scale);
    for (size_t i = 0; i < group.size(); ++i) {
      weight.codes_OI[begin + i] = type == &kFp8Code
                                       ? float_to_fp8(group[i] / scale)
                                       : static_cast<uint8_t>(std::rint(group[i] / scale) + (1 << (bits - 1)));
    }
  }
  return weight;
}

// Feeds the tokens one by one, and returns the logits after each.
std::vector<float> decoded(Transformer::Session& session, std::span<const int32_t> ids) {
  std::vector<float> all;
  for (const int32_t& id : ids) {
    const std::span<const float> logits = session.feed({&id, 1});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

struct Scheme {
  std::string name;
  InputFormat input;
  int bits = 8;  // 16: as stored
  int64_t group_size = kPerChannel;
  const WeightCode* type = &kIntegerCode;
  bool per_tensor = false;

  void apply(LinearWeights& linear) const {
    linear.input = input;
    if (bits == 16) return;
    linear.weight = round_weight(std::get<DenseWeight>(linear.weight), bits, group_size, type, per_tensor);
  }
};

std::vector<Scheme> schemes() {
  const auto int8 = [](InputRange range, bool symmetric) {
    InputFormat format = {.type = InputType::int8, .range = range, .symmetric = symmetric};
    if (range == InputRange::static_) format.scale = 0.02f;
    if (range == InputRange::static_ && !symmetric) format.zero = -3;
    return format;
  };
  const InputFormat outliers = {.type = InputType::int8, .outliers = OutlierRule::relative, .outlier_threshold = 2.5f};
  InputFormat asymmetric_outliers = outliers;
  asymmetric_outliers.symmetric = false;
  return {{"w8a8_token", int8(InputRange::token, true)},
          {"w8a8_token_asymmetric", int8(InputRange::token, false)},
          {"w8a8_tensor_dynamic", int8(InputRange::tensor, true), 8, kPerChannel, &kIntegerCode, true},
          {"w8a8_tensor_static", int8(InputRange::static_, false), 8, kPerChannel, &kIntegerCode, true},
          {"w4a8_groups", int8(InputRange::token, true), 4, 8},
          {"w16a8", int8(InputRange::token, true), 16},
          {"fp8_token", {.type = InputType::fp8}, 8, kPerChannel, &kFp8Code},
          {"fp8_static",
           {.type = InputType::fp8, .range = InputRange::static_, .scale = 0.01f},
           8,
           kPerChannel,
           &kFp8Code,
           true},
          {"fp8_blocks", {.type = InputType::fp8, .range = InputRange::block}, 8, 16, &kFp8Code},
          {"fp8_blocks_e8m0",
           {.type = InputType::fp8, .range = InputRange::block, .power_of_two_scales = true},
           8,
           16,
           &kFp8Code},
          {"w4_nvfp4_inputs", {.type = InputType::nvfp4, .scale = 448.0f * 6.0f / 8.0f}, 4, 8},
          {"llm_int8", outliers},
          {"llm_int8_asymmetric", asymmetric_outliers}};
}

struct Case {
  std::string family;
  Scheme scheme;
};
void PrintTo(const Case& test, std::ostream* out) {
  *out << test.scheme.name << " of " << test.family;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Scheme& scheme : schemes()) {
    for (const std::string family :
         {"llama_gqa_untied", "qwen2_biases_tied", "gemma3_local_global", "mixtral_experts"}) {
      all.push_back({family, scheme});
    }
  }
  return all;
}

class RoundedTransformer : public testing::TestWithParam<Case> {
 protected:
  Transformer load(Backend& backend, bool is_rounded = true) const {
    const Checkpoint checkpoint = Checkpoint::open(family_path(GetParam().family));
    if (!is_rounded) return Transformer::load(checkpoint, backend);
    return Transformer::load(checkpoint, backend, {}, [](LinearWeights& linear) { GetParam().scheme.apply(linear); });
  }
  TokenWindows windows_ = read_npy(family_path(GetParam().family) / "ids.npy");
};

INSTANTIATE_TEST_SUITE_P(Schemes, RoundedTransformer, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.scheme.name + "_" + test.param.family; });

TEST_P(RoundedTransformer, KernelsGiveTheLogitsOfTheReference) {
  const auto reference = make_reference_backend();
  Transformer exact_model = load(*reference, false), reference_model = load(*reference);
  const std::vector<float> exact = prefill_logits(exact_model, windows_.ids_NT, windows_.num_windows);
  const std::vector<float> expected = prefill_logits(reference_model, windows_.ids_NT, windows_.num_windows);
  const double rounding_error = rms_difference(expected, exact);
  EXPECT_GT(rounding_error, 0.0);
  std::vector<std::string> names = backend_names();
  for (const Isa isa : kIsas) {  // int8 products have instruction sets that float products do not
    if (supports_isa(isa) && isa != float_isa(isa)) names.emplace_back(isa_name(isa));
  }
  for (const std::string& name : names) {
    if (name == "reference") continue;
    const auto backend = backend_named(name);
    Transformer model = load(*backend);
    const std::vector<float> logits = prefill_logits(model, windows_.ids_NT, windows_.num_windows);
    EXPECT_LE(rms_difference(logits, expected), kFlips * rounding_error) << name;
  }
}

// Ranges are taken over a window, never over a batch: a window gives the same result alone as among others.
TEST_P(RoundedTransformer, WindowsDoNotSeeEachOther) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = load(*backend);
  const std::vector<float> all = prefill_logits(model, windows_.ids_NT, windows_.num_windows);
  const size_t num_logits = all.size() / static_cast<size_t>(windows_.num_windows);
  for (int64_t n = 0; n < windows_.num_windows; ++n) {
    const std::span<const int32_t> ids = windows_.window(n);
    const std::vector<float> alone = prefill_logits(model, {ids.begin(), ids.end()}, 1);
    const auto part = std::span(all).subspan(static_cast<size_t>(n) * num_logits, num_logits);
    EXPECT_LE(rms_difference(part, alone), 1e-5) << n;
  }
}

// A prompt is one sequence, as a window is. When tokens are rounded one by one, decoding gives what prefill gives.
TEST_P(RoundedTransformer, SessionsGiveWhatWindowsGive) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = load(*backend), exact = load(*backend, false);
  const std::span<const int32_t> ids = windows_.window(0);
  const std::vector<int32_t> window(ids.begin(), ids.end());
  const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
  const std::vector<float> logits = prefill_logits(model, window, 1);
  const auto last = std::span(logits).last(vocabulary_size);
  const auto at_once = model.start(windows_.num_tokens);
  EXPECT_LE(rms_difference(at_once->feed(ids), last), 1e-5);
  if (GetParam().scheme.input.range == InputRange::tensor || GetParam().scheme.input.has_outliers()) return;
  const double rounding_error = rms_difference(logits, prefill_logits(exact, window, 1));
  const auto session = model.start(windows_.num_tokens);
  session->feed(ids.first(5));
  EXPECT_LE(rms_difference(decoded(*session, ids.subspan(5)), std::span(logits).subspan(5 * vocabulary_size)),
            kFlips * rounding_error);
}

// The windows are longer than the number of rows that layers otherwise work on at a time.
TEST(RoundedTransformerLong, SequenceRangesSpanChunks) {
  TemporaryFolder folder;
  copy_family("llama_gqa_untied", folder.path() / "m", {{"max_position_embeddings", 3000}});
  const Scheme scheme = schemes()[2];
  ASSERT_EQ(scheme.input.range, InputRange::tensor);
  const auto backend = make_cpu_backend(detect_isa(), 2);
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "m");
  Transformer model = Transformer::load(checkpoint, *backend, {}, [&](LinearWeights& linear) { scheme.apply(linear); });
  const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
  std::vector<int32_t> ids(2 * 1500);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % vocabulary_size);
  const std::vector<float> both = prefill_logits(model, ids, 2);
  for (size_t n = 0; n < 2; ++n) {
    const auto session = model.start(1500);
    const std::span<const float> logits = session->feed(std::span(ids).subspan(n * 1500, 1500));
    EXPECT_LE(rms_difference(logits, std::span(both).subspan(((n + 1) * 1500 - 1) * vocabulary_size, vocabulary_size)),
              1e-5);
  }
}

// --- PyTorch: transformers' forward with the same weights, and each linear's input rounded by compressed-tensors ---

TEST(RoundedTransformerPython, TransformersGivesTheSameLogits) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON must name a Python with the packages of tests/requirements.txt: "
                                "run `make test`, which sets it up";
  const std::string family = "llama_gqa_untied";
  const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
  const auto backend = make_cpu_backend(detect_isa(), 2);
  const Checkpoint checkpoint = Checkpoint::open(family_path(family));
  TemporaryFolder folder;
  nlohmann::json plan = nlohmann::json::array();
  std::vector<std::vector<float>> kept;
  std::vector<NamedTensor> tensors;
  const auto keep = [&](const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    kept.push_back(std::move(values));
    tensors.push_back({name, DType::F32, std::move(shape), std::as_bytes(std::span(kept.back()))});
  };
  for (const Scheme& scheme : schemes()) {
    if (scheme.bits == 16) continue;
    Transformer model = Transformer::load(checkpoint, *backend, {}, [&](LinearWeights& linear) {
      scheme.apply(linear);
      const auto& weight = std::get<QuantizedWeight>(linear.weight);
      keep(scheme.name + "/" + linear.name + ".weight", {weight.num_out, weight.num_in}, dequantize(weight));
    });
    const std::vector<float> logits = prefill_logits(model, windows.ids_NT, windows.num_windows);
    keep(scheme.name + "/logits", {windows.num_windows, windows.num_tokens, model.description().vocabulary_size},
         logits);
    const InputFormat& input = scheme.input;
    plan.push_back({{"name", scheme.name},
                    {"type", input.type == InputType::int8 ? "int" : "float"},
                    {"has_blocks", input.type == InputType::nvfp4},
                    {"strategy", input.range == InputRange::token   ? "token"
                                 : input.power_of_two_scales        ? "block_of_powers"
                                 : input.range == InputRange::block ? "block"
                                                                    : "tensor"},
                    {"symmetric", input.symmetric},
                    {"dynamic", input.range != InputRange::static_},
                    {"scale", input.scale},
                    {"zero", input.zero},
                    {"outlier_threshold", input.outlier_threshold}});
  }
  write_safetensors(folder.path() / "rounded.safetensors", tensors);
  std::ofstream(folder.path() / "plan.json") << plan.dump(1);
  const std::filesystem::path log = folder.path() / "log";
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/runtime/engine/check_rounded_forward.py' '" + family_path(family).string() +
                              "' '" + folder.path().string() + "' " + std::to_string(kFlips) + " > '" + log.string() +
                              "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << file_text(log);
}

// --- The KV cache in 16 and 8 bits ---

// `prepare` sets the rounding to start from, `round` makes the model round more, and `undo` takes that back. Every
// backend gives what the reference gives, in prefill and in decoding, which reads the cache with other kernels. The
// rounding moves the logits by less than most_share of them.
void expect_rounding_alike(const std::string& family, const std::function<void(Transformer&)>& prepare,
                           const std::function<void(Transformer&)>& round,
                           const std::function<void(Transformer&)>& undo, double most_share = 0.05) {
  const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
  const Checkpoint checkpoint = Checkpoint::open(family_path(family));
  std::vector<float> expected;
  double rounding_error = 0.0;
  for (const std::string& name : backend_names()) {
    const auto backend = backend_named(name);
    Transformer model = Transformer::load(checkpoint, *backend);
    const std::vector<float> exact = prefill_logits(model, windows.ids_NT, windows.num_windows);
    prepare(model);
    const std::vector<float> before = prefill_logits(model, windows.ids_NT, windows.num_windows);
    round(model);
    const std::vector<float> logits = prefill_logits(model, windows.ids_NT, windows.num_windows);
    if (name == "reference") {
      expected = logits;
      rounding_error = rms_difference(logits, exact);
      EXPECT_GT(rounding_error, rms_difference(before, exact));
      // Half of one of 255 steps in each key and value is 1 / 510 of their range: a few percent of the logits at most.
      EXPECT_LT(rounding_error, most_share * rms_difference(exact, std::vector<float>(exact.size(), 0.0f)));
    }
    EXPECT_LE(rms_difference(logits, expected), kFlips * rounding_error) << family << " " << name;
    const auto session = model.start(windows.num_tokens);
    const auto vocabulary_size = static_cast<size_t>(model.description().vocabulary_size);
    session->feed(windows.window(0).first(4));
    const std::vector<float> one_by_one = decoded(*session, windows.window(0).subspan(4));
    const auto rows = std::span(expected).subspan(4 * vocabulary_size, one_by_one.size());
    EXPECT_LE(rms_difference(one_by_one, rows), kFlips * rounding_error) << family << " " << name;
    undo(model);
    EXPECT_EQ(prefill_logits(model, windows.ids_NT, windows.num_windows), before) << "what was before is back";
  }
}

TEST(KvCache, EightBitsStayNearTheFloatsOnEveryBackend) {
  for (const std::string family : {"llama_gqa_untied", "mistral_window", "gemma3_local_global", "qwen3_norms_bf16"}) {
    expect_rounding_alike(
        family, [](Transformer&) {}, [](Transformer& model) { model.use_attention_bits({.kv = 8}); },
        [](Transformer& model) { model.use_attention_bits({}); });
  }
}

// bf16 has 8 significant bits, so that a value loses at most 1 / 512 of itself. A mixture may send a token to other
// experts for it, which changes that token's logits at large.
TEST(KvCache, SixteenBitsStayNearTheFloatsOnEveryBackendForEveryFamily) {
  const std::vector<std::string> dense = dense_golden_families();
  for (const std::string& family : golden_families()) {
    const bool is_dense = std::find(dense.begin(), dense.end(), family) != dense.end();
    expect_rounding_alike(
        family, [](Transformer&) {}, [](Transformer& model) { model.use_attention_bits({.kv = 16}); },
        [](Transformer& model) { model.use_attention_bits({}); }, is_dense ? 0.05 : 0.5);
  }
}

// Queries and the softmax of the scores are rounded too, so the error is larger than with the cache alone.
TEST(AttentionProducts, EightBitsStayNearTheFloatsOnEveryBackend) {
  for (const std::string family : {"llama_gqa_untied", "mistral_window", "gemma3_local_global", "qwen3_norms_bf16"}) {
    expect_rounding_alike(
        family, [](Transformer& model) { model.use_attention_bits({.kv = 8}); },
        [](Transformer& model) { model.use_attention_bits({.kv = 8, .products = 8}); },
        [](Transformer& model) { model.use_attention_bits({.kv = 8}); });
  }
}

TEST(AttentionProducts, BitsAreStatedAndOthersRefused) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  EXPECT_EQ(model.attention_bits().products, 32);
  expect_error<std::invalid_argument>([&] { model.use_attention_bits({.kv = 8, .products = 4}); },
                                      {"products", "8 or 32", "found 4"});
  EXPECT_EQ(model.attention_bits().kv, 32) << "what is refused changes nothing";
  model.use_attention_bits({.products = 8});
  EXPECT_EQ(model.attention_bits().products, 8);
  EXPECT_EQ(model.attention_bits().kv, 8) << "products in 8 bits include the cache";
  const ScoredWindows data = {.windows = read_npy(family_path("llama_gqa_untied") / "ids.npy"), .source = "ids.npy"};
  EXPECT_EQ(nlohmann::json::parse(evaluate_perplexity(model, data, nullptr).to_json())["attention_bits"], 8);
}

// A model that does one evaluation after another must compute each as a fresh model does.
TEST(AttentionProducts, NoSettingOutlivesTheNext) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  const Checkpoint checkpoint = Checkpoint::open(family_path("llama_gqa_untied"));
  const TokenWindows windows = read_npy(family_path("llama_gqa_untied") / "ids.npy");
  const auto logits = [&](Transformer& model) { return prefill_logits(model, windows.ids_NT, windows.num_windows); };
  const std::vector<AttentionBits> all = {{}, {.kv = 8}, {.kv = 8, .products = 8}, {.kv = 16}};
  std::vector<std::vector<float>> expected;
  for (const AttentionBits& bits : all) {
    Transformer model = Transformer::load(checkpoint, *backend);
    model.use_attention_bits(bits);
    expected.push_back(logits(model));
  }
  EXPECT_NE(expected[1], expected[0]);
  EXPECT_NE(expected[2], expected[1]);
  Transformer model = Transformer::load(checkpoint, *backend);
  for (size_t before = 0; before < all.size(); ++before) {
    for (size_t now = 0; now < all.size(); ++now) {
      model.use_attention_bits(all[before]);
      logits(model);
      model.use_attention_bits(all[now]);
      EXPECT_EQ(model.attention_bits().kv, all[now].kv);
      EXPECT_EQ(model.attention_bits().products, all[now].products);
      EXPECT_EQ(logits(model), expected[now]) << now << " after " << before;
    }
  }
}

TEST(KvCache, BytesOfATokenAndRefusals) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  const ModelDescription& description = model.description();
  const auto num_heads = 2 * static_cast<int64_t>(description.blocks.size()) * description.num_kv_heads;
  EXPECT_EQ(model.attention_bits().kv, 32);
  EXPECT_EQ(model.kv_bytes_per_token(), num_heads * description.head_size * 4);
  model.use_attention_bits({.kv = 16});
  EXPECT_EQ(model.attention_bits().kv, 16);
  EXPECT_EQ(model.kv_bytes_per_token(), num_heads * description.head_size * 2);
  model.use_attention_bits({.kv = 8});
  EXPECT_EQ(model.kv_bytes_per_token(), num_heads * (description.head_size + 8));
  expect_error<std::invalid_argument>([&] { model.use_attention_bits({.kv = 4}); }, {"32, 16 or 8", "found 4"});
  EXPECT_EQ(model.attention_bits().kv, 8);
  const ScoredWindows data = {.windows = read_npy(family_path("llama_gqa_untied") / "ids.npy"), .source = "ids.npy"};
  const Perplexity evaluation = evaluate_perplexity(model, data, nullptr);
  EXPECT_EQ(evaluation.kv_bits, 8);
  EXPECT_EQ(evaluation.kv_bytes_per_token, model.kv_bytes_per_token());
  EXPECT_EQ(nlohmann::json::parse(evaluation.to_json())["kv_bytes_per_token"], model.kv_bytes_per_token());
}

}  // namespace
}  // namespace pare
