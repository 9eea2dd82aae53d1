#include "distill/best_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/quant/random_layer.h"

namespace pare {
using namespace distill;
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
void expect_best(const std::vector<T>& logits_V) {
  const auto num_vocabulary = static_cast<int64_t>(logits_V.size());
  std::vector<int64_t> all(num_vocabulary);
  std::iota(all.begin(), all.end(), 0);
  std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) { return logits_V[a] > logits_V[b]; });
  for (const int64_t num_kept : {1, 2, 3, 15, 16, 17, 50, 64, 65, 300, 999, 5000}) {
    if (num_kept > num_vocabulary) break;
    std::vector<int64_t> ids(num_kept);
    best_of_row(logits_V.data(), num_vocabulary, num_kept, ids.data());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), all.begin())) << num_kept << " of " << num_vocabulary;
  }
  std::vector<int64_t> ids(num_vocabulary);
  best_of_row(logits_V.data(), num_vocabulary, num_vocabulary, ids.data());
  EXPECT_EQ(ids, all);
}

// Sizes include whole blocks and incomplete ones. Values are all different, few, mostly -inf, equal, or in order.
TEST(BestTokens, AreThoseOfASort) {
  for (const int64_t num_vocabulary : {1, 2, 63, 64, 65, 128, 511, 512, 1000, 3201, 6400}) {
    const std::vector<double> normals = random_normals(num_vocabulary, static_cast<uint32_t>(num_vocabulary));
    const std::vector<std::function<double(int64_t)>> kinds = {
        [&](int64_t id) { return normals[id]; },
        [&](int64_t id) { return std::round(20.0 * normals[id]) / 20.0; },
        [&](int64_t id) { return std::round(normals[id]); },
        [&](int64_t id) { return normals[id] > 1.5 ? std::round(normals[id]) : -kInfinity; },
        [&](int64_t id) { return id == num_vocabulary / 2 ? -3.0 : -kInfinity; },
        [&](int64_t id) { return id % 2 == 0 ? 0.0 : -0.0; },
        [&](int64_t) { return 7.0; },
        [&](int64_t) { return -kInfinity; },
        [&](int64_t id) { return static_cast<double>(id); },
        [&](int64_t id) { return -static_cast<double>(id / 3); },
        [&](int64_t id) { return id / 64 == 1 ? 5.0 : normals[id]; },
        [&](int64_t id) { return normals[id] * 1e38; },
    };
    for (const auto& kind : kinds) {
      std::vector<double> wide(num_vocabulary);
      for (int64_t id = 0; id < num_vocabulary; ++id) wide[id] = kind(id);
      expect_best(wide);
      expect_best(std::vector<float>(wide.begin(), wide.end()));
    }
  }
}

TEST(BestTokens, AreOfDistributionsAlone) {
  for (const int64_t num_vocabulary : {1, 5, 64, 1001}) {
    std::vector<float> logits(num_vocabulary, -1.0f);
    const auto is_one = [&] { return has_distribution(logits.data(), num_vocabulary); };
    EXPECT_TRUE(is_one());
    for (const int64_t id : {int64_t{0}, num_vocabulary / 2, num_vocabulary - 1}) {
      for (const double bad : {kInfinity, std::nan("")}) {
        logits[id] = static_cast<float>(bad);
        EXPECT_FALSE(is_one()) << id;
        logits[id] = -1.0f;
      }
      std::fill(logits.begin(), logits.end(), -static_cast<float>(kInfinity));
      EXPECT_FALSE(is_one());
      logits[id] = std::numeric_limits<float>::lowest();
      EXPECT_TRUE(is_one()) << id;
      std::fill(logits.begin(), logits.end(), -1.0f);
    }
  }
}

}  // namespace
}  // namespace pare
