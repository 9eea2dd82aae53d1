// Decode of linears whose inputs are partly zero, in column panels, beside the same weights in panels, which multiply
// every zero. All take turns in one run. Times are minima over the rounds: what else the machine does only adds to
// them. One thread is timed by the processor time that it used.
//
//   bench_zero_inputs [threads [rounds [isa [MODEL]]]]
//
// isa "-": the widest. Without MODEL: the second feed-forward linear (fc2) of OPT-1.3B's 24 layers, 2048 x 8192 random
// weights each, one token after another. With MODEL, a checkpoint of OPT in bf16 (make_random_model.py --shape
// opt-1.3b): decode of 16 tokens by the whole model. The bias of its first linears (fc1) is moved so that ReLU gives
// the wanted shares of zeros; the shares that were met are printed.
#include <omp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/roof.h"
#include "runtime/engine/transformer.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kLayers = 24;
constexpr int64_t kNumOut = 2048, kNumIn = 8192;
constexpr int64_t kDecodeTokens = 16;
constexpr double kShares[] = {0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98};

double seconds(int num_threads) {
  timespec time;
  clock_gettime(num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Precision {
  const char* name;
  int bits;  // 16: bf16
  int64_t group_size = kPerChannel;
};
constexpr Precision kPrecisions[] = {{"bf16", 16}, {"w8", 8}, {"w4g128", 4, 128}};

LinearWeights random_linear(Precision precision, bool has_sparse_input) {
  std::mt19937 random(1);
  LinearWeights linear;
  linear.name = precision.name;
  linear.has_sparse_input = has_sparse_input;
  if (precision.bits == 16) {
    auto bytes = std::make_shared<std::vector<std::byte>>(kNumOut * kNumIn * 2);
    auto* const halves = reinterpret_cast<uint16_t*>(bytes->data());
    for (int64_t i = 0; i < kNumOut * kNumIn; ++i) halves[i] = static_cast<uint16_t>((random() & 0x80FF) | 0x3C00);
    linear.weight = DenseWeight{kNumOut, kNumIn, DType::BF16, *bytes, {}, bytes};
    return linear;
  }
  QuantizedWeight weight;
  weight.num_out = kNumOut;
  weight.num_in = kNumIn;
  weight.bits = precision.bits;
  weight.group_size = precision.group_size;
  for (int64_t i = 0; i < kNumOut * kNumIn; ++i) {
    weight.codes_OI.push_back(static_cast<uint8_t>(random() >> (32 - precision.bits)));
  }
  weight.scales_OG.assign(static_cast<size_t>(kNumOut * weight.num_groups()), 0.0078125f);
  linear.weight = std::move(weight);
  return linear;
}

// Independent zeros.
std::vector<float> sparse_x(double share, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(kNumIn);
  for (float& value : x) {
    const double draw = static_cast<double>(random()) * 0x1p-32;
    value = draw < share ? 0.0f : static_cast<float>(random() % 2001) * 1e-3f - 1.0005f;
  }
  return x;
}

void compare_linears(Precision precision, Isa isa, int num_threads, int num_rounds) {
  std::vector<std::unique_ptr<CpuPackedLinear>> panels, columns;
  {
    const LinearWeights dense = random_linear(precision, false), sparse = random_linear(precision, true);
    for (int layer = 0; layer < kLayers; ++layer) {
      panels.push_back(pack_linear(isa, std::span(&dense, 1), num_threads));
      columns.push_back(pack_linear(isa, std::span(&sparse, 1), num_threads));
    }
  }
  const double megabytes = static_cast<double>(panels.front()->resident_bytes()) * kLayers * 1e-6;
  std::printf("%s: %.1f MB\n", columns.front()->kernel_name().c_str(), megabytes);
  std::vector<float> y(kNumOut);
  std::vector<std::vector<std::vector<float>>> x;  // [share][layer]
  for (const double share : kShares) {
    x.emplace_back();
    for (uint32_t layer = 0; layer < kLayers; ++layer) x.back().push_back(sparse_x(share, layer + 1));
  }
  const auto decode = [&](const auto& linears, size_t share) {
    const double start = seconds(num_threads);
    for (size_t layer = 0; layer < kLayers; ++layer) linears[layer]->multiply(x[share][layer].data(), 1, y.data());
    return seconds(num_threads) - start;
  };
  constexpr size_t kNumShares = std::size(kShares);
  double least_panels = std::numeric_limits<double>::infinity(), roof = 0.0;
  std::vector<double> least(kNumShares, std::numeric_limits<double>::infinity());
  std::vector<double> skipped(kNumShares, 0.0);
  for (int round = 0; round < num_rounds; ++round) {
    roof = std::max(roof, measure_read_gbps(static_cast<int64_t>(megabytes * 1e6), num_threads));
    for (size_t share = 0; share < kNumShares; ++share) {
      least_panels = std::min(least_panels, decode(panels, share));
      int64_t before = 0, after = 0;
      for (const auto& linear : columns) before += linear->input_zeros().skipped_bytes;
      least[share] = std::min(least[share], decode(columns, share));
      for (const auto& linear : columns) after += linear->input_zeros().skipped_bytes;
      skipped[share] = static_cast<double>(after - before) * 1e-6;
    }
  }
  std::printf("  panels, every column         %8.1f MB %8.3f ms  %6.2f GB/s, the roof of reading is %.2f\n", megabytes,
              least_panels * 1e3, megabytes * 1e-3 / least_panels, roof);
  for (size_t share = 0; share < kNumShares; ++share) {
    const double read = megabytes - skipped[share];
    std::printf("  columns, %4.1f %% of x zero    %8.1f MB %8.3f ms  %6.2f GB/s   x %.2f\n", 100.0 * kShares[share],
                read, least[share] * 1e3, read * 1e-3 / least[share], least_panels / least[share]);
  }
  std::fflush(stdout);
}

// z with P(N(0, 1) < z) = share, by bisection.
double normal_quantile(double share) {
  double low = -8.0, high = 8.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
  }
  return low;
}

// The whole model. Its norms' gains are 1, so the inputs of fc1 have a variance of 1. An output of fc1 is then nearly
// normal, with the norm of its row of weights as its deviation, and a bias of -z deviations gives a share of zeros.
class Model {
 public:
  Model(const Checkpoint& checkpoint, bool by_columns, double share, Isa isa, int num_threads)
      : num_threads_(num_threads),
        backend_(make_cpu_backend(isa, num_threads)),
        model_(Transformer::load(checkpoint, *backend_, {}, [&](LinearWeights& linear) {
          if (!by_columns) linear.has_sparse_input = false;
          if (linear.name.ends_with("fc1")) move_bias(linear, share);
        })) {
    for (int64_t i = 0; i < kDecodeTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(i * 7919 % checkpoint.description().vocabulary_size));
    }
  }

  double seconds_per_token() {
    const auto session = model_.start(kDecodeTokens);
    const double start = seconds(num_threads_);
    for (int64_t i = 0; i < kDecodeTokens; ++i) session->feed(std::span(ids_).subspan(static_cast<size_t>(i), 1));
    return (seconds(num_threads_) - start) / kDecodeTokens;
  }
  const Transformer& transformer() const { return model_; }

 private:
  static void move_bias(LinearWeights& linear, double share) {
    const double z = normal_quantile(share);
    std::vector<float> row(static_cast<size_t>(linear.num_in()));
    linear.bias_O.resize(static_cast<size_t>(linear.num_out()));
    for (int64_t o = 0; o < linear.num_out(); ++o) {
      weight_rows(linear, o, 1, row);
      double squares = 0.0;
      for (const float w : row) squares += static_cast<double>(w) * w;
      linear.bias_O[static_cast<size_t>(o)] = static_cast<float>(-z * std::sqrt(squares));
    }
  }

  int num_threads_;
  std::unique_ptr<Backend> backend_;
  Transformer model_;
  std::vector<int32_t> ids_;
};

void compare_models(const std::string& path, Isa isa, int num_threads, int num_rounds) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const double share : {0.5, 0.75, 0.9, 0.95, 0.98}) {
    Model panels(checkpoint, false, share, isa, num_threads), columns(checkpoint, true, share, isa, num_threads);
    double least_panels = std::numeric_limits<double>::infinity(), least_columns = least_panels;
    for (int round = 0; round < num_rounds; ++round) {
      least_panels = std::min(least_panels, panels.seconds_per_token());
      least_columns = std::min(least_columns, columns.seconds_per_token());
    }
    const InputZeros zeros = columns.transformer().input_zeros();
    const double megabytes = static_cast<double>(panels.transformer().bytes_per_token()) * 1e-6;
    const double read = static_cast<double>(columns.transformer().bytes_read_per_token()) * 1e-6;
    std::printf(
        "%.1f %% of x zero: panels %.1f MB a token, %.2f tokens/s; columns %.1f MB, %.2f tokens/s: x %.3f, bytes x "
        "%.3f\n",
        100.0 * static_cast<double>(zeros.num_zeros) / static_cast<double>(zeros.num_inputs), megabytes,
        1.0 / least_panels, read, 1.0 / least_columns, least_panels / least_columns, megabytes / read);
    std::fflush(stdout);
  }
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

void run(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::stoi(argv[1]) : omp_get_max_threads();
  const int num_rounds = argc > 2 ? std::stoi(argv[2]) : 11;
  const Isa isa = argc > 3 && std::string(argv[3]) != "-" ? parse_isa(argv[3]) : detect_isa();
  std::printf("%s, last-level cache %ld MB; %s, %d threads, minima of %d rounds\n", processor_name().c_str(),
              sysconf(_SC_LEVEL3_CACHE_SIZE) >> 20, std::string(isa_name(isa)).c_str(), num_threads, num_rounds);
  if (argc > 4) return compare_models(argv[4], isa, num_threads, num_rounds);
  for (const Precision& precision : kPrecisions) compare_linears(precision, isa, num_threads, num_rounds);
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_zero_inputs: %s\n", error.what());
    return 1;
  }
  return 0;
}
