// Packed linears in the shapes of SmolLM2-135M: decode (one row) in GB/s and as a share of the memory-read roof,
// prefill (many rows) in GFLOP/s and as a share of the roof (FMA or AMX). Roofs are measured in the same run; every
// figure is the best of several rounds, since other processes only ever slow one down.
//
//   bench_linear [threads [rows of prefill [isa]]]
//
// Decode visits 30 layers of weights and the head in turn, as a model does, so that no weight is read from a small
// cache.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/roof.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kLayers = 30;
constexpr int kRounds = 10;

struct Shape {
  const char* name;
  int64_t num_out;
  int64_t num_in;
};
constexpr Shape kShapes[] = {{"qkv", 960, 576}, {"o", 576, 576}, {"gate_up", 3072, 576}, {"down", 576, 1536}};
constexpr Shape kHead = {"head", 49152, 576};

// bits 16: dense bf16; else quantized in groups of group_size, symmetric, bf16 scales. FP8 in blocks of 128 columns has
// groups of 64 where there are 576 inputs (group_of_block).
struct Precision {
  int bits;
  int64_t group_size;
  const WeightCode* code = &kIntegerCode;
};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns codes in equal numbers or, of FP8, as normally distributed weights have them: few are subnormal.
std::vector<uint8_t> codes_to_draw_from(const Precision& precision, std::mt19937& random) {
  std::vector<uint8_t> codes(1 << 16);
  std::normal_distribution<float> normal(0.0f, 112.0f);  // FP8's largest value is four standard deviations
  for (uint8_t& code : codes) {
    code = precision.code->is_integer() ? static_cast<uint8_t>(random() >> 8 & ((1u << precision.bits) - 1))
                                        : float_to_fp8(normal(random));
  }
  return codes;
}

std::unique_ptr<CpuPackedLinear> random_linear(Isa isa, const Shape& shape, Precision precision, int num_threads,
                                               std::mt19937& random) {
  LinearWeights weights;
  weights.name = shape.name;
  const int64_t count = shape.num_out * shape.num_in;
  std::vector<uint16_t> dense;
  if (precision.bits == 16) {
    dense.resize(count);
    for (uint16_t& value : dense) value = static_cast<uint16_t>(0x3C00 | (random() & 0x80FF));
    weights.weight = DenseWeight{shape.num_out, shape.num_in, DType::BF16, std::as_bytes(std::span(dense))};
  } else {
    QuantizedWeight weight;
    weight.num_out = shape.num_out;
    weight.num_in = shape.num_in;
    weight.code = precision.code;
    weight.bits = precision.bits;
    weight.group_size = precision.group_size;
    weight.codes_OI.resize(count);
    const std::vector<uint8_t> codes = codes_to_draw_from(precision, random);
    for (uint8_t& code : weight.codes_OI) code = codes[random() % codes.size()];
    weight.scales_OG.assign(shape.num_out * weight.num_groups(), 0.0078125f);
    weights.weight = std::move(weight);
  }
  return pack_linear(isa, std::span(&weights, 1), num_threads);
}

template <class Work>
double best_seconds(const Work& work) {
  double best = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = now_seconds();
    work();
    best = std::min(best, now_seconds() - begin);
  }
  return best;
}

void bench(Isa isa, Precision precision, Precision head_precision, int num_threads, int64_t num_rows,
           double gflops_roof) {
  std::mt19937 random(1);
  std::vector<std::unique_ptr<CpuPackedLinear>> linears;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : kShapes) linears.push_back(random_linear(isa, shape, precision, num_threads, random));
  }
  linears.push_back(random_linear(isa, kHead, head_precision, num_threads, random));
  std::vector<float> x(num_rows * 1536);
  for (float& value : x) value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
  std::vector<float> y(std::max(num_rows * 3072, kHead.num_out));

  int64_t bytes = 0;
  for (const auto& linear : linears) bytes += linear->resident_bytes();
  const double read_roof = measure_read_gbps(bytes, num_threads);
  auto decode = [&] {
    for (const auto& linear : linears) linear->multiply(x.data(), 1, y.data());
  };
  const double seconds = best_seconds(decode);
  std::printf("%-28s + %-24s decode: %6.1f MB %7.3f ms %6.1f GB/s = %3.0f %% of read roof %.1f\n",
              linears.front()->kernel_name().c_str(), linears.back()->kernel_name().c_str(),
              static_cast<double>(bytes) * 1e-6, seconds * 1e3, static_cast<double>(bytes) / seconds * 1e-9,
              100.0 * static_cast<double>(bytes) / seconds * 1e-9 / read_roof, read_roof);
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    int64_t shape_bytes = 0;
    for (size_t j = i; j + 1 < linears.size(); j += std::size(kShapes)) shape_bytes += linears[j]->resident_bytes();
    const double shape_seconds = best_seconds([&] {
      for (size_t j = i; j + 1 < linears.size(); j += std::size(kShapes)) linears[j]->multiply(x.data(), 1, y.data());
    });
    const double flops = 2.0 * static_cast<double>(kShapes[i].num_out * kShapes[i].num_in * num_rows);
    const double prefill_seconds = best_seconds([&] { linears[i]->multiply(x.data(), num_rows, y.data()); });
    std::printf(
        "  %-8s [%5ld, %5ld]  decode %6.2f us %6.1f GB/s   prefill of %ld rows %7.1f GFLOP/s = %3.0f %% of roof\n",
        kShapes[i].name, kShapes[i].num_out, kShapes[i].num_in, shape_seconds / kLayers * 1e6,
        static_cast<double>(shape_bytes) / shape_seconds * 1e-9, num_rows, flops / prefill_seconds * 1e-9,
        100.0 * flops / prefill_seconds * 1e-9 / gflops_roof);
  }
  const double head_seconds = best_seconds([&] { linears.back()->multiply(x.data(), 1, y.data()); });
  std::printf("  %-8s [%5ld, %5ld]  decode %6.0f us %6.1f GB/s\n", kHead.name, kHead.num_out, kHead.num_in,
              head_seconds * 1e6, static_cast<double>(linears.back()->resident_bytes()) / head_seconds * 1e-9);
}

void run(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::stoi(argv[1]) : omp_get_max_threads();
  const int64_t num_rows = argc > 2 ? std::stoll(argv[2]) : 512;
  const Isa isa = argc > 3 ? parse_isa(argv[3]) : detect_isa();
  const double gflops_roof = measure_prefill_gflops(isa, num_threads);
  std::printf("%s, %d threads: %s roof %.1f GFLOP/s\n", std::string(isa_name(isa)).c_str(), num_threads,
              prefill_roof_name(isa).c_str(), gflops_roof);
  const Precision bf16{16, 0}, w8{8, kPerChannel}, w4{4, 64}, w3{3, 64}, w2{2, 64};
  const Precision fp8{8, kPerChannel, &kFp8Code}, fp8_blocks{8, 64, &kFp8Code};
  bench(isa, bf16, bf16, num_threads, num_rows, gflops_roof);
  bench(isa, w8, w8, num_threads, num_rows, gflops_roof);
  bench(isa, fp8, fp8, num_threads, num_rows, gflops_roof);
  bench(isa, fp8_blocks, fp8_blocks, num_threads, num_rows, gflops_roof);
  bench(isa, w4, w8, num_threads, num_rows, gflops_roof);
  bench(isa, w3, w8, num_threads, num_rows, gflops_roof);
  bench(isa, w2, w8, num_threads, num_rows, gflops_roof);
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_linear: %s\n", error.what());
    return 1;
  }
  return 0;
}
