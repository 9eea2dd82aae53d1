#include "distill/best_tokens.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

namespace pare::distill {
namespace {

// There are few enough blocks to be searched. A block is small enough to be read whole where one of its tokens is among
// the best.
constexpr int64_t kBlockTokens = 64;
// Lanes lie side by side, so that compilers vectorize the loop.
constexpr int64_t kLanes = 16;
static_assert(kBlockTokens % kLanes == 0);

template <typename T>
constexpr T kNone = -std::numeric_limits<T>::infinity();

// Returns the largest logit of each block of a row. The last block may be shorter.
template <typename T>
std::vector<T> largest_of_blocks(const T* logits_V, int64_t num_vocabulary) {
  std::vector<T> largest;
  largest.reserve((num_vocabulary + kBlockTokens - 1) / kBlockTokens);
  int64_t first = 0;
  for (; first + kBlockTokens <= num_vocabulary; first += kBlockTokens) {
    T lanes[kLanes];
    std::fill(lanes, lanes + kLanes, kNone<T>);
    for (int64_t i = first; i < first + kBlockTokens; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = logits_V[i + lane] > lanes[lane] ? logits_V[i + lane] : lanes[lane];
      }
    }
    largest.push_back(*std::max_element(lanes, lanes + kLanes));
  }
  if (first < num_vocabulary) largest.push_back(*std::max_element(logits_V + first, logits_V + num_vocabulary));
  return largest;
}

// Returns the tokens, in ascending order, among which the best are. Their logits are at least the K-th largest of the
// blocks' largest logits. K blocks hold at least one such token each.
template <typename T>
std::vector<int64_t> candidates(const T* logits_V, int64_t num_vocabulary, int64_t num_kept) {
  const std::vector<T> largest = largest_of_blocks(logits_V, num_vocabulary);
  const auto num_blocks = static_cast<int64_t>(largest.size());
  std::vector<int64_t> ids;
  T bound = kNone<T>;
  if (num_kept <= num_blocks) {
    std::vector<T> sorted = largest;
    std::nth_element(sorted.begin(), sorted.begin() + (num_kept - 1), sorted.end(), std::greater<>());
    bound = sorted[num_kept - 1];
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    if (largest[block] < bound) continue;
    const int64_t end = std::min((block + 1) * kBlockTokens, num_vocabulary);
    for (int64_t id = block * kBlockTokens; id < end; ++id) {
      if (logits_V[id] >= bound) ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace

template <typename T>
bool has_distribution(const T* logits_V, int64_t num_vocabulary) {
  uint32_t num_bad = 0, num_masses = 0;  // counted to the end: a loop that may leave early is not vectorized
  for (int64_t id = 0; id < num_vocabulary; ++id) {
    num_bad += !(logits_V[id] < -kNone<T>);
    num_masses |= logits_V[id] > kNone<T>;
  }
  return num_bad == 0 && num_masses != 0;
}

template <typename T>
void best_of_row(const T* logits_V, int64_t num_vocabulary, int64_t num_kept, int64_t* ids_K) {
  const std::vector<int64_t> ids = candidates(logits_V, num_vocabulary, num_kept);
  std::vector<T> sorted(ids.size());
  std::transform(ids.begin(), ids.end(), sorted.begin(), [&](int64_t id) { return logits_V[id]; });
  std::nth_element(sorted.begin(), sorted.begin() + (num_kept - 1), sorted.end(), std::greater<>());
  const T threshold = sorted[num_kept - 1];
  const int64_t num_above =
      std::count_if(sorted.begin(), sorted.begin() + num_kept, [&](T logit) { return logit > threshold; });
  int64_t num_equal = num_kept - num_above;
  int64_t* next = ids_K;
  for (const int64_t id : ids) {
    if (logits_V[id] > threshold || (logits_V[id] == threshold && num_equal-- > 0)) *next++ = id;
  }
  std::stable_sort(ids_K, ids_K + num_kept, [&](int64_t a, int64_t b) { return logits_V[a] > logits_V[b]; });
}

template bool has_distribution(const float*, int64_t);
template bool has_distribution(const double*, int64_t);
template void best_of_row(const float*, int64_t, int64_t, int64_t*);
template void best_of_row(const double*, int64_t, int64_t, int64_t*);

}  // namespace pare::distill
