// Keys and values of texts that are decoded together: what they take, and that it goes back.
#include "runtime/engine/lane_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "runtime/engine/generate_together.h"
#include "runtime/machine/reserved_memory.h"
#include "runtime/system/memory_usage.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// The bytes of the pages that texts of these lengths write: each head's keys and values lie one token after the other.
int64_t written_bytes(const ModelDescription& model, int bits, const std::vector<int64_t>& lengths, int64_t page) {
  int64_t num_pages = 0;
  for (const int64_t length : lengths) {
    const auto add = [&](int64_t token_bytes) {
      for (int64_t end = 0; end < length * token_bytes; end += page) ++num_pages;
    };
    add(model.head_size * bits / 8);
    if (bits == 8) add(2 * sizeof(float));  // grids
  }
  return num_pages * page * 2 * model.num_kv_heads * static_cast<int64_t>(model.blocks.size());
}

class LaneMemory : public testing::Test {
 protected:
  LaneMemory() {
    copy_family("llama_gqa_untied", folder_.path() / "model", {{"max_position_embeddings", kContext}});
    backend_ = make_cpu_backend(detect_isa(), 2);
    model_.emplace(Transformer::load(Checkpoint::open(folder_.path() / "model"), *backend_));
  }
  static constexpr int64_t kContext = 32768;
  TemporaryFolder folder_;
  std::unique_ptr<Backend> backend_;
  std::optional<Transformer> model_;
};

TEST_F(LaneMemory, OfThePoolIsWholePages) {
  const ModelDescription& model = model_->description();
  for (const int64_t length : {1, 63, 64, 65, 1000, 4096}) {
    EXPECT_EQ(pooled_bytes(model, length), written_bytes(model, 32, {length}, 4096)) << length;
  }
}

// Texts of random lengths, as many as have room in the pool, or one that has none.
TEST_F(LaneMemory, IsNeverMoreThanIsPredicted) {
  const ModelDescription& model = model_->description();
  std::mt19937 random(5);
  const auto draw = [&](int64_t end) { return static_cast<int64_t>(random()) % end; };
  for (int n = 0; n < 2000; ++n) {
    const LaneLimits limits = {.num_lanes = 1 + draw(16), .pool_bytes = int64_t{1} << (12 + draw(12))};
    const int64_t longest = 1 + draw(int64_t{1} << draw(12)), num_texts = 1 + draw(20);
    std::vector<int64_t> lengths;
    int64_t bytes = 0;
    while (static_cast<int64_t>(lengths.size()) < std::min(limits.num_lanes, num_texts)) {
      const int64_t length = draw(2) == 0 ? longest : 1 + draw(longest);
      bytes += pooled_bytes(model, length);
      if (bytes > limits.pool_bytes && !lengths.empty()) break;
      lengths.push_back(length);
    }
    for (const int bits : kKvBits) {
      const int64_t predicted = lane_cache_bytes(model, bits, num_texts, longest, /*in_pages=*/true, limits);
      EXPECT_GE(predicted, written_bytes(model, bits, lengths, page_bytes()))
          << bits << " bits, " << lengths.size() << " of " << num_texts << " texts, at most " << longest;
      // Nor is the prediction far off where all texts are long.
      const int64_t all = written_bytes(model, bits, std::vector<int64_t>(16, longest), page_bytes());
      EXPECT_LE(predicted, all + 2 * written_bytes(model, bits, std::vector<int64_t>(16, 1), page_bytes()));
    }
  }
}

TEST_F(LaneMemory, OfADeviceIsOfWholeLanes) {
  const ModelDescription& model = model_->description();  // 512 bytes per token
  const LaneLimits limits = {.pool_bytes = 100 * kKiB};
  EXPECT_EQ(whole_lanes(model, 9, 40, limits), 5);
  EXPECT_EQ(lane_cache_bytes(model, 32, 9, 40, /*in_pages=*/false, limits), 5 * 40 * 512);
  EXPECT_EQ(lane_cache_bytes(model, 16, 9, 40, /*in_pages=*/false, limits), 5 * 40 * 256);
  EXPECT_EQ(whole_lanes(model, 9, 4000, limits), 1);
}

// What a lane gives back is its own alone.
TEST_F(LaneMemory, GoesBackWithoutAnothersValues) {
  constexpr int64_t kHeads = 3, kHeadSize = 40;
  for (const int bits : kKvBits) {
    const int64_t lane = 2 * KvStorage::whole_page_slots(bits, kHeadSize), num_slots = 3 * lane;
    const KvStorage storage(*backend_, bits, num_slots, kHeads, kHeadSize, /*in_pages=*/true);
    const KvLayer& layer = storage.layer();
    struct Part {
      void* bytes;
      int64_t slot_bytes;
    };
    std::vector<Part> parts;
    const int64_t row_bytes = kHeadSize * bits / 8;
    for (void* bytes : std::initializer_list<void*>{layer.keys, layer.values, layer.key_bf16, layer.value_bf16,
                                                    layer.key_codes, layer.value_codes}) {
      if (bytes != nullptr) parts.push_back({bytes, row_bytes});
    }
    for (void* grids : {layer.key_grids, layer.value_grids}) {
      if (grids != nullptr) parts.push_back({grids, sizeof(KvGrid)});
    }
    ASSERT_EQ(parts.size(), bits == 8 ? 4u : 2u);
    for (const Part& part : parts) std::memset(part.bytes, 1, kHeads * num_slots * part.slot_bytes);
    storage.give_back(*backend_, lane, lane);
    for (const Part& part : parts) {
      const auto* const bytes = static_cast<const char*>(part.bytes);
      for (int64_t i = 0; i < kHeads * num_slots * part.slot_bytes; ++i) {
        const bool is_given = i / part.slot_bytes % num_slots / lane == 1;
        ASSERT_EQ(bytes[i], is_given ? 0 : 1) << bits << " bits, byte " << i;
      }
    }
  }
}

// 16 lanes with room for 32768 tokens of 512 bytes would take 256 MiB.
TEST_F(LaneMemory, IsThatOfTheTokensThatAreThere) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs memory of its own";
#endif
  const auto lanes = model_->start_lanes(16, kContext, /*in_pages=*/true);
  std::vector<int32_t> ids(8000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 100);
  lanes->begin(0, std::span(ids).first(512));  // scratch memory
  lanes->end(0);
  const int64_t before = read_memory_usage().held_bytes;
  const auto held = [&] { return read_memory_usage().held_bytes - before; };
  for (int64_t lane = 0; lane < 16; ++lane) lanes->begin(lane, std::span(ids).first(20));
  EXPECT_LT(held(), 16 * pooled_bytes(model_->description(), 20) + kMiB);
  lanes->begin(3, ids);
  EXPECT_GT(held(), 8000 * 512);
  EXPECT_LT(held(), 8000 * 512 + 2 * kMiB);
  lanes->end(3);
  EXPECT_LT(held(), 2 * kMiB);
}

// The prediction is compared with what is held while texts grow beyond the pool.
TEST_F(LaneMemory, IsHeldAsPredicted) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs memory of its own";
#endif
  constexpr int64_t kNew = 100, kPrompt = 1900, kNumTexts = 12;
  const LaneLimits limits = {.pool_bytes = 4 * kMiB};  // four of the texts
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t n = 0; n < kNumTexts; ++n) {
    prompts.emplace_back(kPrompt);
    for (size_t i = 0; i < kPrompt; ++i) prompts.back()[i] = static_cast<int32_t>((i * i + n) % 100);
  }
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    requests.push_back({.prompt = prompt, .options = {.max_tokens = kNew}});
  }
  for (const int bits : kKvBits) {
    model_->use_attention_bits({.kv = bits});
    generate_together(*model_, std::span(requests).first(1));  // scratch memory
    int64_t before = 0, most = 0;
    LaneUse use;
    generate_together(
        *model_, requests, limits, {},
        [&] {
          const int64_t held = read_memory_usage().held_bytes;
          if (before == 0) before = held;
          most = std::max(most, held - before);
        },
        &use);
    const int64_t predicted =
        lane_cache_bytes(model_->description(), bits, kNumTexts, kPrompt + kNew, /*in_pages=*/true, limits);
    EXPECT_LE(most, predicted + kMiB / 2) << bits << " bits";
    EXPECT_GE(most, 4 * kPrompt * model_->kv_bytes_per_token()) << bits << " bits";
    EXPECT_EQ(use.most_texts, 4);
  }
}

}  // namespace
}  // namespace pare
