// The predicted memory, disk and time of a run, and the limits that they are compared with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "compress/walk/block_walk.h"

namespace pare::compress {

// What the machine gives a run.
struct RunLimits {
  int64_t held_bytes = 0;  // by the process already
  int64_t max_memory_bytes = 0;
  double matmul_rate = 0.0;
  int num_threads = 1;
};

struct PredictedStage {
  std::string name;
  double seconds = 0.0;
  int64_t memory_bytes = 0;  // RssAnon + RssShmem while it runs
};

struct Prediction {
  Spill spill = Spill::none;
  int walk_workers = 0;          // windows at work at a time; 0: not of a walk with windows
  bool has_few_workers = false;  // fewer than threads, because memory is short
  std::vector<PredictedStage> stages;
  int64_t output_bytes = 0;
  int64_t disk_bytes = 0;  // the most at any one time: spill, committed parts, output
  int64_t peak_memory_bytes() const;
  double seconds() const;
};

// Measures the float32 multiply-add rate of LibTorch's matrix product over num_threads threads, in floating-point
// operations per second. It takes about a tenth of a second.
double measure_matmul_rate(int num_threads);

// Returns the value of --max-memory where it is not given: four fifths of what this process may still take
// (runtime/machine/limits.h). Throws what free_memory throws.
int64_t default_memory_budget();

// Throws std::runtime_error when the disk that will hold `output` has less free space than predicted. What an
// unfinished run has left in OUTPUT.partial counts as free.
void check_disk_space(const std::filesystem::path& output, const Prediction& prediction);

// Return lines for people, and a JSON object.
std::vector<std::string> to_lines(const Prediction& prediction);
std::string to_json(const Prediction& prediction);

}  // namespace pare::compress
