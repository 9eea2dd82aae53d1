// Products with 8-bit activations: Gop/s of every path this machine has, beside the register roofs of VNNI and AMX and
// beside oneDNN, all in the same run. A multiply and an add are two operations. Every figure is the best of many short
// rounds, since other processes only ever slow one down; the contestants take turns round by round, so that a busy
// machine is unfair to none. avxvnni* is that path by AVX-512's encoding of its instruction (evex_dot.h).
//
//   bench_int8 [threads [M K N]]
//
// One thread is timed by its own CPU clock, several by the wall's.
//
// oneDNN picks its own instruction set; ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI in the environment gives its VNNI figures.
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/kernels/int8_avxvnni_kernels.h"
#include "runtime/cpu/kernels/int8_kernels.h"
#include "runtime/cpu/roof.h"
#include "runtime/system/aligned_memory.h"
#include "tests/bench/int8_roofs.h"
#include "tests/bench/onednn_int8.h"
#include "tests/runtime/cpu/evex_dot.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kMinRounds = 5;
constexpr int kMaxRounds = 200;
constexpr double kMaxSeconds = 3.0;
constexpr double kOutlierShare = 0.02;

struct Shape {
  int64_t m, k, n;
};
constexpr Shape kShapes[] = {{512, 2048, 5632}, {512, 5632, 2048}, {512, 2048, 2048},
                             {512, 576, 1536},  {512, 1536, 576},  {64, 2048, 5632},
                             {16, 2048, 5632},  {4, 2048, 5632},   {1, 2048, 5632}};

// Of the thread when it works alone: what other processes take does not count then.
double now_seconds(int num_threads) {
  timespec time;
  clock_gettime(num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Contestant {
  std::string name;
  std::function<void()> work;
  double seconds = 1e300;
};

void race(std::vector<Contestant>& contestants, int num_threads) {
  double spent = 0.0;
  for (int round = 0; round < kMinRounds || (round < kMaxRounds && spent < kMaxSeconds); ++round) {
    for (Contestant& contestant : contestants) {
      const double begin = now_seconds(num_threads);
      contestant.work();
      const double seconds = now_seconds(num_threads) - begin;
      contestant.seconds = std::min(contestant.seconds, seconds);
      spent += seconds;
    }
  }
}

double roof_gops(const Int8Roof& roof, int num_threads) {
  constexpr int64_t kRoofRounds = 20000;
  Contestant contestant{"", [&] {
#pragma omp parallel num_threads(num_threads)
                          roof.run(kRoofRounds);
                        }};
  std::vector<Contestant> one = {contestant};
  race(one, num_threads);
  return static_cast<double>(num_threads * kRoofRounds * roof.ops_per_round) / one[0].seconds * 1e-9;
}

// Random codes in every operand, and all that a product of `shape` needs.
struct Operands {
  Operands(const Shape& shape, WeightFormat format, int64_t group_size, std::mt19937& random) {
    const int64_t num_panels = (shape.n + kPanel - 1) / kPanel;
    const int64_t bits = format == WeightFormat::int8 ? 8 : 4;
    const int64_t num_groups = group_size == 0 ? 1 : shape.k / group_size;
    weights.format = format;
    lines = filled(num_panels * kPanel * shape.k * bits / 8, random);
    scales = allocate_aligned(num_panels * num_groups * kPanel * 4);
    for (int64_t i = 0; i < num_panels * num_groups * kPanel; ++i) reinterpret_cast<float*>(scales.get())[i] = 1e-3f;
    weights.run.lines = reinterpret_cast<const uint8_t*>(lines.get());
    weights.run.scales = reinterpret_cast<const uint8_t*>(scales.get());
    weights.run.zeros = nullptr;
    weights.run.bias = nullptr;
    weights.run.num_groups = num_groups;
    weights.run.group_len = shape.k / num_groups;
    weights.run.num_outs = shape.n;
    weights.run.scale_format = ScaleFormat::f32;
    weights.sums = nullptr;
    if (format == WeightFormat::int8) {
      sums = allocate_aligned(num_panels * num_groups * kPanel * 4);
      sum_int8_panels(weights.run, reinterpret_cast<int32_t*>(sums.get()));
      weights.sums = reinterpret_cast<const int32_t*>(sums.get());
    }
    codes = filled(shape.m * int8_row_stride(shape.k), random);
    row_scales.assign(shape.m, 0.01f);
    rows = {reinterpret_cast<const int8_t*>(codes.get()), int8_row_stride(shape.k), row_scales.data(), nullptr};
    outliers.num_columns = static_cast<int64_t>(kOutlierShare * static_cast<double>(shape.k));
    outlier_x.assign(shape.m * outliers.num_columns, 0.5f);
    outlier_weights = allocate_aligned(num_panels * outliers.num_columns * kPanel * 2);
    constexpr uint16_t kSmallBf16 = 0x3C23;  // 0.01: whatever lay there before could be denormal, and slow
    std::fill_n(reinterpret_cast<uint16_t*>(outlier_weights.get()), num_panels * outliers.num_columns * kPanel,
                kSmallBf16);
    outliers.x = outlier_x.data();
    outliers.x_stride = outliers.num_columns;
    outliers.weights = reinterpret_cast<const uint8_t*>(outlier_weights.get());
    outliers.format = ScaleFormat::bf16;
    y = allocate_aligned(shape.m * shape.n * 4);
  }

  static AlignedBytes filled(int64_t num_bytes, std::mt19937& random) {
    AlignedBytes bytes = allocate_aligned(num_bytes);
    for (int64_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>(random() >> 8);
    return bytes;
  }

  Int8Weights weights;
  Int8Rows rows;
  OutlierColumns outliers;
  AlignedBytes lines, scales, sums, codes, outlier_weights, y;
  std::vector<float> row_scales, outlier_x;
};

struct Roofs {
  double vnni, amx;
};

struct Path {
  std::string name;
  const Int8Kernels& kernels;
};

std::vector<Path> paths_of_machine() {
  std::vector<Path> paths;
  for (const Isa isa : {Isa::avx2, Isa::avxvnni, Isa::vnni, Isa::amx}) {
    if (supports_isa(isa)) {
      paths.push_back({std::string(isa_name(isa)), int8_kernels(isa)});
    } else if (isa == Isa::avxvnni && EvexVnni::is_there()) {
      static const Int8Kernels by_evex = make_avxvnni_kernels<EvexVnni>();
      paths.push_back({"avxvnni*", by_evex});
    }
  }
  return paths;
}

void bench(const Shape& shape, const std::vector<Path>& paths, int num_threads, const Roofs& roofs) {
  std::mt19937 random(1);
  const Operands w8(shape, WeightFormat::int8, 0, random);
  const Operands w4(shape, WeightFormat::int4, 64, random);
  std::vector<Contestant> contestants;
  for (const Path& path : paths) {
    const Int8Kernels& kernels = path.kernels;
    auto add = [&](const std::string& name, const Operands& operands, const OutlierColumns* outliers) {
      contestants.push_back({name + " " + path.name, [&, outliers] {
                               int8_multiply(kernels, operands.weights, operands.rows, shape.m, outliers,
                                             reinterpret_cast<float*>(operands.y.get()), shape.n, num_threads);
                             }});
    };
    add("w8a8", w8, nullptr);
    add("w8a8 + 2 % outliers", w8, &w8.outliers);
    add("w4g64a8", w4, nullptr);
  }
  if (has_onednn()) contestants.push_back({"w8a8 oneDNN", onednn_int8_product(shape.m, shape.k, shape.n)});
  race(contestants, num_threads);
  std::printf("%ld x %ld x %ld\n", shape.m, shape.k, shape.n);
  const double ops = 2.0 * static_cast<double>(shape.m * shape.k * shape.n);
  for (const Contestant& contestant : contestants) {
    const double gops = ops / contestant.seconds * 1e-9;
    std::printf("  %-26s %9.1f us %7.0f Gop/s", contestant.name.c_str(), contestant.seconds * 1e6, gops);
    if (roofs.vnni > 0.0) std::printf("  %4.0f %% of VNNI", 100.0 * gops / roofs.vnni);
    if (roofs.amx > 0.0) std::printf("  %3.0f %% of AMX", 100.0 * gops / roofs.amx);
    if (has_onednn()) std::printf("  %5.2f x oneDNN", contestants.back().seconds / contestant.seconds);
    std::printf("\n");
  }
}

void run(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::stoi(argv[1]) : omp_get_max_threads();
  omp_set_num_threads(num_threads);
  const std::vector<Path> paths = paths_of_machine();
  Roofs roofs{};
  if (supports_isa(Isa::vnni)) roofs.vnni = roof_gops(vnni_roof(), num_threads);
  if (supports_isa(Isa::amx)) roofs.amx = roof_gops(amx_roof(), num_threads);
  std::printf("%d threads; roofs: VNNI %.0f Gop/s, AMX %.0f Gop/s; %s\n", num_threads, roofs.vnni, roofs.amx,
              onednn_description().c_str());
  if (argc > 4) {
    bench({std::stoll(argv[2]), std::stoll(argv[3]), std::stoll(argv[4])}, paths, num_threads, roofs);
    return;
  }
  for (const Shape& shape : kShapes) bench(shape, paths, num_threads, roofs);
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_int8: %s\n", error.what());
    return 1;
  }
  return 0;
}
