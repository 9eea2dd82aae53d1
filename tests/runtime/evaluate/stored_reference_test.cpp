// A comparison with a stored reference is the one with the model itself, bit by bit. Also what is refused.
#include "runtime/evaluate/stored_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "runtime/evaluate/perplexity.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

class StoredReferences : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_ = backend_named(baseline_name(), 1);

  static ScoredWindows windows_for(const ModelDescription& model, int64_t num_windows, int64_t num_tokens) {
    ScoredWindows data;
    data.windows = {.num_windows = num_windows, .num_tokens = num_tokens, .ids_NT = {}};
    for (int64_t i = 0; i < num_windows * num_tokens; ++i) {
      data.windows.ids_NT.push_back(static_cast<int32_t>(i * i * 7 % model.vocabulary_size));
    }
    data.source = "ids";
    return data;
  }
  std::filesystem::path store(const Checkpoint& checkpoint, const ScoredWindows& data, const char* name = "reference") {
    Transformer model = Transformer::load(checkpoint, *backend_);
    store_reference(folder_.path() / name, checkpoint, data.windows, data.first_scored, [&](const auto& keep) {
      evaluate_perplexity(
          model, data,
          PerplexityComparison{.model = nullptr, .stored = nullptr, .keep = keep, .observes_blocks = false}, {});
    });
    return folder_.path() / name;
  }
};

TEST_F(StoredReferences, CompareAsTheModelItself) {
  const std::string families = std::string(kSourceFolder) + "/tests/golden/families/";
  // A head of its own and a tied one; soft-capped logits; a head with a bias; weights in bfloat16.
  for (const char* family : {"llama_gqa_untied", "gemma2_caps", "qwen3_norms_bf16", "starcoder2_plain_network"}) {
    SCOPED_TRACE(family);
    const Checkpoint checkpoint = Checkpoint::open(families + family);
    for (const int64_t first_scored : {0, 5}) {
      ScoredWindows data = windows_for(checkpoint.description(), 3, 12);
      data.first_scored = first_scored;
      const std::filesystem::path path =
          store(checkpoint, data, (std::string(family) + std::to_string(first_scored)).c_str());
      Transformer reference = Transformer::load(checkpoint, *backend_);
      Transformer model = Transformer::load(checkpoint, *backend_);
      model.use_attention_bits({.kv = 8});
      const StoredReference stored = StoredReference::open(path);
      const Perplexity live = evaluate_perplexity(model, data, &reference);
      const Perplexity from_file = evaluate_perplexity(
          model, data, PerplexityComparison{.model = nullptr, .stored = &stored, .keep = {}, .observes_blocks = false},
          {});
      EXPECT_GT(live.comparison->kl_mean.value, 0.0);
      EXPECT_EQ(live.comparison->kl_mean.value, from_file.comparison->kl_mean.value);
      EXPECT_EQ(live.comparison->kl.percentiles, from_file.comparison->kl.percentiles);
      EXPECT_EQ(live.comparison->reference_nll, from_file.comparison->reference_nll);
      EXPECT_EQ(live.comparison->probability_change.percentiles, from_file.comparison->probability_change.percentiles);
      EXPECT_EQ(live.window_nll, from_file.window_nll);
    }
  }
}

TEST_F(StoredReferences, AreRefusedForOtherWindows) {
  const Checkpoint checkpoint =
      Checkpoint::open(std::string(kSourceFolder) + "/tests/golden/families/llama_gqa_untied");
  const ModelDescription& model = checkpoint.description();
  const ScoredWindows data = windows_for(model, 2, 8);
  const StoredReference stored = StoredReference::open(store(checkpoint, data));
  const auto refuse = [&](const ScoredWindows& other, int64_t vocabulary, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { stored.check(other.windows, other.first_scored, vocabulary); }, parts);
  };
  stored.check(data.windows, 0, model.vocabulary_size);
  refuse(windows_for(model, 3, 8), model.vocabulary_size, {"2 windows of 8 tokens", "3 of 8", "--store"});
  refuse(windows_for(model, 2, 9), model.vocabulary_size, {"2 windows of 8 tokens", "2 of 9"});
  ScoredWindows other = data;
  other.first_scored = 4;
  refuse(other, model.vocabulary_size, {"from position 0 on", "from 4"});
  other = data;
  other.windows.ids_NT.back() ^= 1;
  refuse(other, model.vocabulary_size, {"other tokens"});
  refuse(data, model.vocabulary_size + 1, {"vocabulary of " + std::to_string(model.vocabulary_size)});
}

TEST_F(StoredReferences, OfOtherFilesAreRefused) {
  const std::string weights = std::string(kSourceFolder) + "/calibration_data/stories260k/model.safetensors";
  expect_error<std::runtime_error>([&] { StoredReference::open(weights); }, {"no tensor 'hidden'", "--store"});
  std::ofstream(folder_.path() / "there") << "x";
  expect_error<std::invalid_argument>([&] { check_can_store(folder_.path() / "there"); }, {"the file exists"});
  expect_error<std::invalid_argument>([&] { check_can_store(folder_.path() / "no" / "x"); }, {"there is no folder"});
  check_can_store(folder_.path() / "new");
}

// One bit of a value would be another comparison, and no other check sees it.
TEST_F(StoredReferences, ThatWereDamagedAreRefused) {
  const Checkpoint checkpoint = Checkpoint::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
  const std::filesystem::path path = store(checkpoint, windows_for(checkpoint.description(), 2, 8));
  StoredReference::open(path);
  const SafetensorsFile whole = SafetensorsFile::open(path);
  const std::string bytes = read_text_file(path);
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  size_t end_of_header = bytes.size();
  const std::byte* first = whole.tensors().begin()->second.data.data();
  for (const auto& [name, tensor] : whole.tensors()) {
    end_of_header -= tensor.data.size();
    first = std::min(first, tensor.data.data());
  }
  for (const char* const name : {"hidden", "head", "sha256"}) {
    SCOPED_TRACE(name);
    const TensorView& tensor = whole.tensors().at(name);
    std::string damaged = bytes;
    const size_t middle = static_cast<size_t>(tensor.data.data() - first) + tensor.data.size() / 2;
    ASSERT_EQ(begin[end_of_header + middle], tensor.data[tensor.data.size() / 2]);
    damaged[end_of_header + middle] ^= 1;
    write_file_atomically(folder_.path() / "damaged", damaged);
    expect_error<std::runtime_error>([&] { StoredReference::open(folder_.path() / "damaged"); },
                                     {"damaged", "checksum", "--store"});
  }
  // A file of an earlier version.
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : whole.tensors()) {
    if (name != "sha256") tensors.push_back({name, tensor.dtype, tensor.shape, tensor.data});
  }
  write_safetensors(folder_.path() / "old", std::move(tensors));
  expect_error<std::runtime_error>([&] { StoredReference::open(folder_.path() / "old"); }, {"no checksum", "--store"});
}

// A model that fails half-way leaves no file.
TEST_F(StoredReferences, LeaveNothingBehindIfTheModelFails) {
  const Checkpoint checkpoint = Checkpoint::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
  const ScoredWindows data = windows_for(checkpoint.description(), 2, 8);
  EXPECT_THROW(store_reference(folder_.path() / "x", checkpoint, data.windows, 0,
                               [](const auto&) { throw std::runtime_error("the model failed"); }),
               std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace pare
