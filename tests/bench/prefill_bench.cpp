// Prefill of a model with its linears in several precisions, against the checkpoint as it is: milliseconds of one
// window, the best of several rounds in which all take turns, since other processes only ever slow one down (one thread
// is timed by the processor time that it used). Weights are rounded to nearest: only their precision matters here.
//
//   bench_prefill MODEL [threads [tokens [rounds [isa [scheme...]]]]]
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/transformer.h"

namespace pare {
using namespace runtime;
namespace {

double seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Symmetric, scales in bf16.
QuantizedWeight round_weight(const DenseWeight& dense, int bits, int64_t group_size, const WeightCode* type) {
  QuantizedWeight weight;
  weight.num_out = dense.num_out;
  weight.num_in = dense.num_in;
  weight.bits = bits;
  weight.code = type;
  weight.group_size = group_size;
  std::vector<float> values(static_cast<size_t>(dense.num_out * dense.num_in));
  convert_to_float(dense.dtype, dense.data, values);
  const int64_t width = group_size == kPerChannel ? dense.num_in : group_size;
  const int center = 1 << (bits - 1);
  const float largest_value = type == &kFp8Code ? kLargestFp8 : static_cast<float>(center - 1);
  weight.codes_OI.resize(values.size());
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(width)) {
    float largest = 1e-9f;
    for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i)
      largest = std::max(largest, std::abs(values[i]));
    const float scale = round_to(largest / largest_value, DType::BF16);
    weight.scales_OG.push_back(scale);
    for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i) {
      const float code = std::clamp(std::rint(values[i] / scale), -largest_value, largest_value);
      weight.codes_OI[i] =
          type == &kFp8Code ? float_to_fp8(values[i] / scale) : static_cast<uint8_t>(static_cast<int>(code) + center);
    }
  }
  return weight;
}

struct Scheme {
  const char* name;
  int bits;  // 16: as stored
  int64_t group_size = kPerChannel;
  const WeightCode* type = &kIntegerCode;
  InputFormat input = {};
};

std::vector<Scheme> schemes() {
  const InputFormat int8 = {.type = InputType::int8};
  const InputFormat asymmetric = {.type = InputType::int8, .symmetric = false};
  const InputFormat outliers = {.type = InputType::int8, .outliers = OutlierRule::relative, .outlier_threshold = 6.0f};
  // About 2 % of the narrowest inputs, and as many of the others.
  const InputFormat listed = {.type = InputType::int8,
                              .outliers = OutlierRule::columns,
                              .outlier_columns = {7, 90, 91, 188, 230, 301, 344, 419, 420, 488, 550}};
  return {{"as stored", 16},
          {"W8A16", 8},
          {"W8A8", 8, kPerChannel, &kIntegerCode, int8},
          {"W8A8 asymmetric", 8, kPerChannel, &kIntegerCode, asymmetric},
          {"W4g64A8", 4, 64, &kIntegerCode, int8},
          {"LLM.int8", 8, kPerChannel, &kIntegerCode, outliers},
          {"LLM.int8 list", 8, kPerChannel, &kIntegerCode, listed},
          {"FP8", 8, kPerChannel, &kFp8Code, {.type = InputType::fp8}}};
}

struct Contestant {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::optional<Transformer> model;
  double best_ms = 1e30;
};

void run(int argc, char** argv) {
  const Checkpoint checkpoint = Checkpoint::open(argv[1]);
  const int num_threads = argc > 2 ? std::stoi(argv[2]) : omp_get_max_threads();
  const int64_t num_tokens = argc > 3 ? std::stoll(argv[3]) : 512;
  const int num_rounds = argc > 4 ? std::stoi(argv[4]) : 12;
  const clockid_t clock = num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const Isa isa = argc > 5 ? parse_isa(argv[5]) : detect_isa();
  const auto is_wanted = [&](const std::string& name) {
    return argc <= 6 || std::find(argv + 6, argv + argc, name) != argv + argc;
  };
  std::vector<Contestant> contestants;
  for (const Scheme& scheme : schemes()) {
    if (!is_wanted(scheme.name)) continue;
    Contestant contestant{.name = scheme.name, .backend = make_cpu_backend(isa, num_threads), .model = {}};
    contestant.model = Transformer::load(checkpoint, *contestant.backend, {}, [&](LinearWeights& linear) {
      const auto* dense = std::get_if<DenseWeight>(&linear.weight);
      if (scheme.bits == 16 || dense == nullptr) return;
      linear.weight = round_weight(*dense, scheme.bits, scheme.group_size, scheme.type);
      linear.input = scheme.input;
    });
    std::string kernels;
    for (const std::string& kernel : contestant.model->kernel_names()) kernels += " " + kernel;
    contestant.name += " (" + kernels.substr(1) + ")";
    contestants.push_back(std::move(contestant));
  }
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(checkpoint.description().vocabulary_size));
  }
  std::vector<float> hidden(ids.size() * static_cast<size_t>(checkpoint.description().hidden_size));
  for (int round = 0; round < num_rounds; ++round) {
    for (Contestant& contestant : contestants) {
      const double begin = seconds(clock);
      contestant.model->prefill_windows(ids, 1, hidden.data());
      contestant.best_ms = std::min(contestant.best_ms, 1e3 * (seconds(clock) - begin));
    }
  }
  std::printf("%lld tokens, %d threads\n", static_cast<long long>(num_tokens), num_threads);
  for (const Contestant& contestant : contestants) {
    std::printf("%8.1f ms  %5.2fx  %s\n", contestant.best_ms, contestants.front().best_ms / contestant.best_ms,
                contestant.name.c_str());
  }
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_prefill MODEL [threads [tokens [rounds [isa [scheme...]]]]]\n");
    return 2;
  }
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_prefill: %s\n", error.what());
    return 1;
  }
  return 0;
}
