// Attention of one layer over a long context: a decoded token and a window of prefill, with keys and values of every
// width. Decode is shown beside the time in which the keys and values are read at the memory-read roof, and beside
// float32. Every figure is the best of several rounds, since other processes only ever slow one down.
//
//   bench_attention [threads [context [query heads [kv heads [head size [isa]]]]]]
//
// The default is the shape of a model with 8 billion weights: 32 query heads, 8 kv heads, heads of 128, 16384 tokens.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/roof.h"
#include "runtime/engine/backend.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kRounds = 12;
constexpr int64_t kWindowTokens = 512;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Work>
double best_ms(const Work& work) {
  double best = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = now_seconds();
    work();
    best = std::min(best, now_seconds() - begin);
  }
  return best * 1e3;
}

void fill_cache(Backend& backend, const AttentionShape& shape, KvLayer& cache) {
  const int64_t width = shape.num_heads * shape.head_size, kv_width = shape.num_kv_heads * shape.head_size;
  RopeDescription rope;
  for (int64_t j = 0; j < shape.head_size / 2; ++j) rope.inverse_frequencies.push_back(1.0f);
  const PackedRope table = backend.pack_rope(make_rope_table(rope, shape.head_size, cache.num_slots));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> qkv(static_cast<size_t>(width + 2 * kv_width)), q(static_cast<size_t>(width));
  for (float& value : qkv) value = normal(random);
  for (int32_t t = 0; t < cache.num_slots; ++t) {
    const std::vector<int32_t> place = {t};
    backend.rope_store(qkv.data(), table, nullptr, nullptr, shape, place, place, cache, q.data());
  }
}

void run(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) { return argc > i ? std::stoll(argv[i]) : otherwise; };
  const int num_threads = static_cast<int>(number(1, omp_get_max_threads()));
  const int64_t context = number(2, 16384);
  const AttentionShape shape = {
      .num_heads = number(3, 32), .num_kv_heads = number(4, 8), .head_size = number(5, 128), .scale = 0.1f};
  const auto backend = make_cpu_backend(argc > 6 ? parse_isa(argv[6]) : detect_isa(), num_threads);
  const int64_t width = shape.num_heads * shape.head_size, window = std::min(kWindowTokens, context);
  std::vector<float> q(static_cast<size_t>(window * width), 0.01f), x(q.size());
  const int64_t float_bytes = context * KvStorage::bytes_per_token(32, shape.num_kv_heads, shape.head_size);
  const double roof = measure_read_gbps(float_bytes, num_threads);
  std::printf("%s, %d threads, %lld tokens, %lld heads, %lld kv heads of %lld, memory-read roof %.1f GB/s\n",
              backend->name().c_str(), num_threads, static_cast<long long>(context),
              static_cast<long long>(shape.num_heads), static_cast<long long>(shape.num_kv_heads),
              static_cast<long long>(shape.head_size), roof);
  double float_ms = 0.0;
  for (const int bits : {32, 16, 8}) {
    const KvStorage storage(*backend, bits, context, shape.num_kv_heads, shape.head_size);
    KvLayer cache = storage.layer();
    fill_cache(*backend, shape, cache);
    const std::vector<Sequence> token = {{0, 1, context - 1, 0}}, rows = {{0, window, 0, 0}};
    const double decode = best_ms([&] { backend->attention(q.data(), cache, bounded(token), shape, x.data()); });
    const double prefill = best_ms([&] { backend->attention(q.data(), cache, bounded(rows), shape, x.data()); });
    if (bits == 32) float_ms = decode;
    const int64_t bytes = context * KvStorage::bytes_per_token(bits, shape.num_kv_heads, shape.head_size);
    std::printf(
        "%2d bits: decode %7.2f ms, %5.1f GB/s, %3.0f %% of the roof, %.2f of float32's time (bytes %.2f); "
        "window of %lld %7.2f ms\n",
        bits, decode, static_cast<double>(bytes) / decode / 1e6,
        100.0 * static_cast<double>(bytes) / decode / 1e6 / roof, decode / float_ms,
        static_cast<double>(bytes) / static_cast<double>(float_bytes), static_cast<long long>(window), prefill);
  }
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    pare::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_attention: %s\n", error.what());
    return 1;
  }
  return 0;
}
