// The solved examples that stand before a question, drawn as lm-evaluation-harness 0.4.13 draws them
// (lm_eval/api/samplers.py): by Python's random.sample, from one generator that goes on from question to question.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/task_documents.h"

namespace pare::runtime {

// Python's random.Random of a whole number (CPython 3.11, Modules/_randommodule.c and Lib/random.py).
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);
  // Returns random.sample(range(population), count). Throws std::invalid_argument for more than there are.
  std::vector<size_t> sample(size_t population, size_t count);

 private:
  uint32_t below(uint32_t bound);  // random.randrange(bound)
  std::mt19937 twister_;
};

// The harness' seed for examples, unless its user gives another.
inline constexpr uint32_t kFewShotSeed = 1234;

// Returns what stands before each question: its description, then num_shots of `examples`, solved. Tasks that take the
// first examples take those of the question's subject. Throws std::invalid_argument if there are too few examples.
std::vector<std::string> few_shot_prefixes(const Task& task, std::span<const TaskDocument> questions,
                                           std::span<const TaskDocument> examples, int64_t num_shots);

}  // namespace pare::runtime
