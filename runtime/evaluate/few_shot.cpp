#include "runtime/evaluate/few_shot.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <unordered_set>

namespace pare::runtime {
namespace {

// Python's init_by_array of one word: a state that std::mt19937 reads as its own text.
class SeedOfOneWord {
 public:
  using result_type = uint32_t;
  explicit SeedOfOneWord(uint32_t word) : word_(word) {}

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) {
    constexpr size_t kSize = std::mt19937::state_size;
    std::array<uint32_t, kSize> state;
    state[0] = 19650218U;
    for (uint32_t i = 1; i < kSize; ++i) state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    size_t i = 1;
    const auto next = [&] {
      if (++i < kSize) return;
      state[0] = state[kSize - 1];
      i = 1;
    };
    for (size_t k = 0; k < kSize; ++k, next()) {
      state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + word_;
    }
    for (size_t k = 1; k < kSize; ++k, next()) {
      state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
    }
    state[0] = 0x80000000U;
    std::copy(state.begin(), state.begin() + (end - begin), begin);
  }

 private:
  uint32_t word_;
};

std::mt19937 seeded(uint32_t seed) {
  SeedOfOneWord words(seed);
  return std::mt19937(words);
}

std::string joined(std::span<const TaskDocument> examples, std::span<const size_t> chosen) {
  std::string text;
  for (const size_t n : chosen) text += examples[n].solved;
  return text;
}

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) : twister_(seeded(seed)) {}

uint32_t PythonRandom::below(uint32_t bound) {
  const int bits = static_cast<int>(std::bit_width(bound));
  uint32_t drawn = bound;
  while (drawn >= bound) drawn = static_cast<uint32_t>(twister_()) >> (32 - bits);
  return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t population, size_t count) {
  if (count > population) {
    throw std::invalid_argument(std::to_string(count) + " examples cannot be drawn from " + std::to_string(population));
  }
  // Above this many, drawing again what was drawn already is cheaper than a list of all.
  double most_listed = 21.0;
  if (count > 5) most_listed += std::pow(4.0, std::ceil(std::log(static_cast<double>(count * 3)) / std::log(4.0)));
  std::vector<size_t> chosen;
  if (static_cast<double>(population) <= most_listed) {
    std::vector<size_t> pool(population);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const uint32_t j = below(static_cast<uint32_t>(population - i));
      chosen.push_back(pool[j]);
      pool[j] = pool[population - i - 1];
    }
    return chosen;
  }
  std::unordered_set<size_t> seen;
  while (chosen.size() < count) {
    const size_t j = below(static_cast<uint32_t>(population));
    if (seen.insert(j).second) chosen.push_back(j);
  }
  return chosen;
}

std::vector<std::string> few_shot_prefixes(const Task& task, std::span<const TaskDocument> questions,
                                           std::span<const TaskDocument> examples, int64_t num_shots) {
  const auto count = static_cast<size_t>(num_shots);
  PythonRandom random(kFewShotSeed);
  std::vector<std::string> prefixes;
  for (const TaskDocument& question : questions) {
    prefixes.push_back(question.description);
    if (count == 0) continue;
    std::vector<size_t> allowed, chosen;
    for (size_t n = 0; n < examples.size(); ++n) {
      const bool is_itself = task.is_no_example && examples[n].source == question.source;
      if (examples[n].subject == question.subject && !is_itself) allowed.push_back(n);
    }
    // One more is drawn, in case the question is among them.
    const size_t num_drawn = count + (task.is_no_example ? 1 : 0);
    if (allowed.size() < count || examples.size() < num_drawn) {
      throw std::invalid_argument(std::to_string(count) + " shots need " + std::to_string(num_drawn) +
                                  " solved examples" +
                                  (question.subject.empty() ? "" : " of the subject '" + question.subject + "'") +
                                  "; there are " + std::to_string(std::min(allowed.size(), examples.size())));
    }
    if (task.takes_first_examples) {
      chosen.assign(allowed.begin(), allowed.begin() + static_cast<int64_t>(count));
    } else {
      for (const size_t n : random.sample(examples.size(), num_drawn)) {
        const bool is_itself = task.is_no_example && examples[n].source == question.source;
        if (!is_itself && chosen.size() < count) chosen.push_back(n);
      }
      if (chosen.size() < count) {  // the question is there more than once
        chosen.clear();
        for (const size_t n : random.sample(allowed.size(), count)) chosen.push_back(allowed[n]);
      }
    }
    prefixes.back() += joined(examples, chosen);
  }
  return prefixes;
}

}  // namespace pare::runtime
