// Measures how fast a model runs here, and how near that is to the limits of this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "runtime/device/make_backend.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"

namespace pare::runtime {

struct BenchOptions {
  int64_t prefill_tokens = 512;
  int64_t decode_tokens = 64;  // of each text, decoded one by one after a prompt of kDecodePrompt tokens
  int64_t batch = 1;           // texts that are decoded together, one token of each at a time
  int64_t repetitions = 5;
  static constexpr int64_t kDecodePrompt = 8;
  static constexpr int64_t kMostBatch = 4096;
};

// The speeds over the repetitions.
struct Speed {
  double best = 0.0;
  double median = 0.0;
};

struct BenchResult {
  std::string backend;                // "cpu-avx512"
  std::vector<std::string> kernels;   // names of the linears' kernels
  std::string activations = "exact";  // the mode in which the model ran (runtime/engine/activation_mode.h)
  int num_threads = 0;                // for a CPU; 0 for a device
  BenchOptions options;
  Speed prefill_tokens_per_second;
  Speed decode_tokens_per_second;  // of all texts together

  // Prefill. The share counts only the blocks' linears, 2 * parameters * tokens. The attention's two products and the
  // one row of logits are given too, but not counted.
  int64_t linear_flops = 0;
  int64_t attention_flops = 0;
  int64_t head_flops = 0;
  double prefill_roof_gflops = 0.0;  // best of the run
  std::string prefill_roof_name;     // "FMA" or "AMX"
  double prefill_gflops = 0.0;       // linear_flops at the best speed
  double prefill_share = 0.0;        // share of the roof

  // Decode. One token reads every packed linear, but for skipped columns, and one row of the embedding. A batch reads
  // them once for a token of each text. (In a mixture its texts go to several experts, and decode_gbps counts those of
  // one.) The keys and values that a token also reads, on average, are given but not counted.
  // bytes_read_per_token is without the columns that linears with sparse inputs skipped.
  int64_t bytes_per_token = 0, bytes_read_per_token = 0;
  InputZeros input_zeros;
  int kv_bits = 0;
  int attention_bits = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t roof_footprint_bytes = 0;  // bytes read to measure the roof: roof_footprint_bytes of bytes_per_token
  // The highest and the lowest that were measured. A machine whose memory serves its processors by several ways may
  // double it within a second, as its system or its host moves threads.
  double read_roof_gbps = 0.0, lowest_read_roof_gbps = std::numeric_limits<double>::infinity();
  bool reads_more = false;    // a batch in a mixture: it reads more experts than bytes_per_token counts
  double decode_gbps = 0.0;   // at the best speed
  double decode_share = 0.0;  // median of each speed's share of the higher roof of those right before and behind it

  int64_t resident_bytes = 0;
  int64_t peak_memory_bytes = 0;  // sampled RssAnon + RssShmem; callers may add the peak while loading
};

// Throws std::invalid_argument if an option is below 1 or exceeds the model's context.
void check_bench(const ModelDescription& model, const BackendOptions& options_of_backend, const BenchOptions& options);

// Returns what the bench takes beside the weights. Tokens beyond the context, which bench refuses, do not count.
DeviceWorkload bench_workload(const ModelDescription& model, const BackendOptions& options_of_backend,
                              const BenchOptions& options, int kv_bits);

// `options_of_backend` are those that made the model's backend, on a CPU with a number of threads. The roofs are
// measured with them between the repetitions, so that disturbances of the machine affect both; that of reading in front
// of each decode and behind it. Throws what check_bench throws; Interrupted between repetitions. `progress`
// (repetitions done, repetitions) may be empty.
BenchResult bench(Transformer& model, const BackendOptions& options_of_backend, const BenchOptions& options,
                  const std::function<void(int64_t, int64_t)>& progress = {});

// Returns the operations of queries times keys and of weights times values in all blocks: 2 * 2 * H * K for each pair
// of a token and one that it sees.
int64_t attention_flops(const ModelDescription& model, int64_t num_tokens);

std::string to_json(const BenchResult& result);
std::string to_text(const BenchResult& result);

}  // namespace pare::runtime
