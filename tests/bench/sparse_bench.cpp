// 2:4 weights beside the same weights packed with their zeros: decode and prefill, all taking turns in one run, so that
// what the machine does meanwhile falls on all. Ratios are medians over the rounds.
//
//   bench_sparse [threads [rounds [isa [MODEL [precision...]]]]]
//
// One thread is timed by the processor time that it used. isa "-": the widest. MODEL "-": the linears of TinyLlama's 22
// blocks, decode of all (1.1 GB of 2:4 bf16; no cache holds the packed weights, as the size of the last level beside
// them shows) and prefill of one block's. With MODEL, a checkpoint in 16 bits (make_random_model.py): decode of 16
// tokens and prefill of 512 by the whole model, its head in 16 bits. Of every four weights the largest two are kept,
// and weights are rounded to nearest: only precision and pattern matter here.
#include <omp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/roof.h"
#include "runtime/engine/transformer.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kPrefillTokens = 512;
constexpr int64_t kDecodeTokens = 16;
constexpr int kLayers = 22;

struct Shape {
  const char* name;
  int64_t num_out;
  int64_t num_in;
};
constexpr Shape kShapes[] = {{"qkv", 2560, 2048}, {"o", 2048, 2048}, {"gate_up", 11264, 2048}, {"down", 2048, 5632}};

struct Precision {
  const char* name;
  int bits;  // 16: bf16
  int64_t group_size = kPerChannel;
  bool symmetric = true;
};
constexpr Precision kPrecisions[] = {{"bf16", 16},
                                     {"w8", 8},
                                     {"w4g64", 4, 64},
                                     {"w4g128", 4, 128},
                                     {"w4g64z", 4, 64, false},
                                     {"w4g128z", 4, 128, false}};

double seconds_of(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Sets all but the largest two of every four inputs to zero.
void prune(std::span<float> values) {
  for (size_t i = 0; i + 4 <= values.size(); i += 4) {
    size_t order[4] = {i, i + 1, i + 2, i + 3};
    std::sort(order, order + 4, [&](size_t a, size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
    values[order[2]] = values[order[3]] = 0.0f;
  }
}

// Grids over the range of each group, with zero in it; scales in bf16.
QuantizedWeight rounded(std::span<const float> values, int64_t num_out, int64_t num_in, Precision precision) {
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = precision.bits;
  weight.group_size = precision.group_size;
  weight.symmetric = precision.symmetric;
  const auto width = static_cast<size_t>(num_in / weight.num_groups());
  const float top = static_cast<float>((1 << weight.bits) - 1), center = static_cast<float>(1 << (weight.bits - 1));
  for (size_t begin = 0; begin < values.size(); begin += width) {
    const std::span<const float> group = values.subspan(begin, width);
    const float low = std::min(0.0f, *std::min_element(group.begin(), group.end()));
    const float high = std::max(0.0f, *std::max_element(group.begin(), group.end()));
    const float range = weight.symmetric ? 2.0f * std::max(-low, high) : high - low;
    const float scale = round_to(std::max(range, 1e-6f) / top, DType::BF16);
    const float zero = weight.symmetric ? center : std::clamp(std::rint(-low / scale), 0.0f, top);
    weight.scales_OG.push_back(scale);
    if (!weight.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(zero));
    for (float value : group) {
      weight.codes_OI.push_back(static_cast<uint8_t>(std::clamp(std::rint(value / scale) + zero, 0.0f, top)));
    }
  }
  return weight;
}

// `linear` of dense weights pruned and in `precision`; with or without the promise that it is 2:4.
LinearWeights pruned(const LinearWeights& linear, Precision precision, SparsePattern pattern) {
  const auto& dense = std::get<DenseWeight>(linear.weight);
  std::vector<float> values(static_cast<size_t>(dense.num_out * dense.num_in));
  convert_to_float(dense.dtype, dense.data, values);
  prune(values);
  LinearWeights result = linear;
  if (precision.bits == 16) {
    auto bytes = std::make_shared<std::vector<std::byte>>(values.size() * 2);
    convert_from_float(DType::BF16, values, *bytes);
    result.weight = DenseWeight{dense.num_out, dense.num_in, DType::BF16, *bytes, pattern, bytes};
  } else {
    QuantizedWeight weight = rounded(values, dense.num_out, dense.num_in, precision);
    weight.pattern = pattern;
    result.weight = std::move(weight);
  }
  return result;
}

// One packing of all weights.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual std::string name() const = 0;
  virtual int64_t decode_bytes() const = 0;  // read for a token
  virtual void decode() = 0;
  virtual void prefill() = 0;
  virtual int64_t tokens_of_decode() const = 0;

  std::vector<double> decode_seconds, prefill_seconds;
};

class Linears final : public Contestant {
 public:
  Linears(std::span<const LinearWeights> shapes, Precision precision, SparsePattern pattern, Isa isa, int num_threads)
      : x_(kPrefillTokens * 5632, 0.0f), y_(kPrefillTokens * 11264) {
    std::mt19937 random(2);
    for (float& value : x_) value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
    for (const LinearWeights& shape : shapes) {
      const LinearWeights weights = pruned(shape, precision, pattern);
      for (int layer = 0; layer < kLayers; ++layer) {
        linears_.push_back(pack_linear(isa, std::span(&weights, 1), num_threads));
      }
    }
  }
  std::string name() const override { return linears_.front()->kernel_name(); }
  int64_t decode_bytes() const override {
    int64_t bytes = 0;
    for (const auto& linear : linears_) bytes += linear->resident_bytes();
    return bytes;
  }
  // Layer after layer, as a model does.
  void decode() override {
    for (size_t layer = 0; layer < kLayers; ++layer) multiply(layer, 1);
  }
  void prefill() override { multiply(0, kPrefillTokens); }
  int64_t tokens_of_decode() const override { return 1; }

 private:
  void multiply(size_t layer, int64_t num_rows) {
    for (size_t i = layer; i < linears_.size(); i += kLayers) linears_[i]->multiply(x_.data(), num_rows, y_.data());
  }

  std::vector<std::unique_ptr<CpuPackedLinear>> linears_;
  std::vector<float> x_, y_;
};

class Model final : public Contestant {
 public:
  Model(const Checkpoint& checkpoint, Precision precision, SparsePattern pattern, Isa isa, int num_threads)
      : backend_(make_cpu_backend(isa, num_threads)),
        model_(Transformer::load(checkpoint, *backend_, {},
                                 [&](LinearWeights& linear) { linear = pruned(linear, precision, pattern); })) {
    for (int64_t i = 0; i < kPrefillTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(i * 7919 % checkpoint.description().vocabulary_size));
    }
  }
  std::string name() const override {
    std::string names;
    for (const std::string& kernel : model_.kernel_names()) names += (names.empty() ? "" : " ") + kernel;
    return names;
  }
  int64_t decode_bytes() const override { return model_.bytes_per_token(); }
  void decode() override {
    const auto session = model_.start(kDecodeTokens);
    for (int64_t i = 0; i < kDecodeTokens; ++i) session->feed(std::span(ids_).subspan(i, 1));
  }
  void prefill() override { model_.start(kPrefillTokens)->feed(ids_); }
  int64_t tokens_of_decode() const override { return kDecodeTokens; }

 private:
  std::unique_ptr<Backend> backend_;
  Transformer model_;
  std::vector<int32_t> ids_;
};

template <class Work>
double seconds_of(clockid_t clock, const Work& work) {
  const double begin = seconds_of(clock);
  work();
  return seconds_of(clock) - begin;
}

// Rounds of (roof, dense, 2:4), the last two changing places from round to round.
void compare(Contestant& dense, Contestant& sparse, int num_rounds, int num_threads) {
  const clockid_t clock = num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> roofs, decode_ratios, prefill_ratios;
  for (int round = -1; round < num_rounds; ++round) {
    const double roof = measure_read_gbps(sparse.decode_bytes(), num_threads);
    Contestant* const order[2] = {round % 2 == 0 ? &dense : &sparse, round % 2 == 0 ? &sparse : &dense};
    double decode[2], prefill[2];
    for (int i = 0; i < 2; ++i) decode[i] = seconds_of(clock, [&] { order[i]->decode(); });
    for (int i = 0; i < 2; ++i) prefill[i] = seconds_of(clock, [&] { order[i]->prefill(); });
    if (round < 0) continue;  // pages and caches are warm now
    roofs.push_back(roof);
    for (int i = 0; i < 2; ++i) {
      order[i]->decode_seconds.push_back(decode[i] / static_cast<double>(order[i]->tokens_of_decode()));
      order[i]->prefill_seconds.push_back(prefill[i]);
    }
    decode_ratios.push_back(dense.decode_seconds.back() / sparse.decode_seconds.back());
    prefill_ratios.push_back(dense.prefill_seconds.back() / sparse.prefill_seconds.back());
  }
  const double roof = median(roofs);
  for (const Contestant* contestant : {&dense, &sparse}) {
    const double seconds = median(contestant->decode_seconds);
    const double gbps = static_cast<double>(contestant->decode_bytes()) / seconds * 1e-9;
    std::printf(
        "%-50s decode %7.1f MB %8.3f ms %6.2f GB/s = %3.0f %% of the read roof %5.2f   prefill of %ld: %8.2f ms\n",
        contestant->name().c_str(), static_cast<double>(contestant->decode_bytes()) * 1e-6, seconds * 1e3, gbps,
        100.0 * gbps / roof, roof, kPrefillTokens, median(contestant->prefill_seconds) * 1e3);
  }
  const auto [low, high] = std::minmax_element(decode_ratios.begin(), decode_ratios.end());
  std::printf("  2:4 against dense: decode x %.3f (%.3f to %.3f), prefill x %.3f\n", median(decode_ratios), *low, *high,
              median(prefill_ratios));
  std::fflush(stdout);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

LinearWeights random_linear(const Shape& shape) {
  std::mt19937 random(1);
  auto bytes = std::make_shared<std::vector<std::byte>>(shape.num_out * shape.num_in * 2);
  auto* const halves = reinterpret_cast<uint16_t*>(bytes->data());
  for (int64_t i = 0; i < shape.num_out * shape.num_in; ++i) {
    halves[i] = static_cast<uint16_t>((random() & 0x80FF) | 0x3C00);
  }
  LinearWeights linear;
  linear.name = shape.name;
  linear.weight = DenseWeight{shape.num_out, shape.num_in, DType::BF16, *bytes, {}, bytes};
  return linear;
}

void run(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::stoi(argv[1]) : omp_get_max_threads();
  const int num_rounds = argc > 2 ? std::stoi(argv[2]) : 11;
  const Isa isa = argc > 3 && std::string(argv[3]) != "-" ? parse_isa(argv[3]) : detect_isa();
  const std::string model = argc > 4 ? argv[4] : "-";
  const auto is_wanted = [&](const Precision& precision) {
    return argc <= 5 || std::find(argv + 5, argv + argc, std::string(precision.name)) != argv + argc;
  };
  std::optional<Checkpoint> checkpoint;
  if (model != "-") checkpoint = Checkpoint::open(model);
  std::vector<LinearWeights> shapes;
  for (const Shape& shape : kShapes) {
    if (!checkpoint) shapes.push_back(random_linear(shape));
  }
  std::printf("%s, last-level cache %ld MB; %s, %d threads, medians of %d rounds\n", processor_name().c_str(),
              sysconf(_SC_LEVEL3_CACHE_SIZE) >> 20, std::string(isa_name(isa)).c_str(), num_threads, num_rounds);
  const auto contestant = [&](Precision precision, SparsePattern pattern) -> std::unique_ptr<Contestant> {
    if (checkpoint) return std::make_unique<Model>(*checkpoint, precision, pattern, isa, num_threads);
    return std::make_unique<Linears>(shapes, precision, pattern, isa, num_threads);
  };
  for (const Precision& precision : kPrecisions) {
    if (!is_wanted(precision)) continue;
    const auto dense = contestant(precision, {}), sparse = contestant(precision, kTwoOfFour);
    compare(*dense, *sparse, num_rounds, num_threads);
  }
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_sparse: %s\n", error.what());
    return 1;
  }
  return 0;
}
