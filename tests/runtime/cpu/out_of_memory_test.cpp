// The backend's threads allocate memory inside their parallel regions. With too little address space for that, the
// caller gets std::bad_alloc, and the same call works when there is room again. An exception that left a region would
// end the process.
#include <gtest/gtest.h>
#include <malloc.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <numeric>

#include "runtime/engine/backend.h"
#include "runtime/system/first_exception.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

TEST(FirstException, TheFirstOfManyLeavesTheRegion) {
  FirstException error;
  int num_done = 0;
#pragma omp parallel for num_threads(4) reduction(+ : num_done)
  for (int i = 0; i < 100; ++i) {
    error.capture([&] {
      if (i % 10 == 3) throw std::runtime_error("number " + std::to_string(i));
      ++num_done;
    });
  }
  EXPECT_EQ(num_done, 90);
  EXPECT_TRUE(error.failed());
  expect_error<std::runtime_error>([&] { error.rethrow(); }, {"number "});
  FirstException none;
  none.capture([] {});
  EXPECT_FALSE(none.failed());
  EXPECT_NO_THROW(none.rethrow());
}

constexpr int kNumThreads = 2;
constexpr int64_t kMebibyte = int64_t{1} << 20;

int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Runs `work` with no spare address space, then with one more mebibyte each time, until it succeeds. Returns how often
// it threw std::bad_alloc. All threads of the team exist before that. They share one heap without free blocks as large
// as the ones that `work` needs.
int failures_before_success(const std::function<void()>& work) {
#pragma omp parallel num_threads(kNumThreads)
  { delete[] new volatile char[100]; }
  malloc_trim(0);
  rlimit unlimited{};
  getrlimit(RLIMIT_AS, &unlimited);
  int num_failures = 0;
  for (int64_t spare = 0;; spare += kMebibyte) {
    rlimit limit = unlimited;
    limit.rlim_cur = static_cast<rlim_t>(address_space_bytes() + spare);
    setrlimit(RLIMIT_AS, &limit);
    bool is_done = false;
    try {
      work();
      is_done = true;
    } catch (const std::bad_alloc&) {
      ++num_failures;
    }
    setrlimit(RLIMIT_AS, &unlimited);
    if (is_done) return num_failures;
  }
}

constexpr int kWasRefused = 17, kWasNeverRefused = 18;

// Runs in a process of its own, whose heap is unused.
void expect_refusals(const std::function<std::function<void()>()>& prepare) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs address space of its own";
#endif
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        mallopt(M_ARENA_MAX, 1);
        mallopt(M_MMAP_THRESHOLD, 64 << 10);
        mallopt(M_TOP_PAD, 0);
        const std::function<void()> work = prepare();
        _exit(failures_before_success(work) > 0 ? kWasRefused : kWasNeverRefused);
      },
      testing::ExitedWithCode(kWasRefused), "");
}

DenseWeight zeros(int64_t num_out, int64_t num_in, std::vector<std::byte>& storage) {
  storage.assign(static_cast<size_t>(num_out * num_in * 2), std::byte{0});
  return {num_out, num_in, DType::BF16, storage};
}

QuantizedWeight int8_zeros(int64_t num_out, int64_t num_in) {
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = 8;
  weight.group_size = kPerChannel;
  weight.symmetric = true;
  weight.scale_dtype = DType::F32;
  weight.codes_OI.assign(static_cast<size_t>(num_out * num_in), 128);
  weight.scales_OG.assign(static_cast<size_t>(num_out), 1.0f);
  return weight;
}

struct Bench {
  std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), kNumThreads);
  std::vector<std::byte> storage;
  std::unique_ptr<PackedLinear> packed;
  std::optional<LinearInput> x;
  std::vector<Sequence> sequences;
  Buffer<float> y, rows;
  std::vector<int32_t> ids;

  // Makes a linear whose input has `format`, with x and y for it.
  Bench(int64_t num_rows, int64_t num_out, int64_t num_in, const InputFormat& format, bool in_codes) {
    LinearWeights weights{.name = "l", .weight = zeros(num_out, num_in, storage), .bias_O = {}, .input = format};
    if (in_codes) weights.weight = int8_zeros(num_out, num_in);
    packed = backend->pack({&weights, 1});
    x.emplace(*backend, num_rows, num_in, in_codes);
    sequences = {{.first_row = 0, .num_rows = num_rows}};
    x->prepare(*packed, bounded(sequences));
    y = backend->allocate(num_rows * num_out);
    rows = backend->allocate(num_rows * num_in);
    ids.resize(static_cast<size_t>(num_rows));
    std::iota(ids.begin(), ids.end(), 0);
  }
};

constexpr int64_t kWide = int64_t{1} << 18;  // a row of floats: 1 MiB
const InputFormat kPlain,
    kFp8 = {.type = InputType::fp8}, kInt8 = {.type = InputType::int8},
    kInt8OfSequence = {.type = InputType::int8, .range = InputRange::tensor},
    kOutliers = {.type = InputType::int8, .outliers = OutlierRule::absolute, .outlier_threshold = 1.0f};

TEST(OutOfMemory, InAProductOfManyRowsIsAnException) {
  expect_refusals([] {
    return [b = std::make_shared<Bench>(128, 64, kWide / 4, kPlain, false)] {
      b->backend->linear(*b->packed, *b->x, 128, b->y.get());
    };
  });
}

TEST(OutOfMemory, InAProductOfCodesIsAnException) {
  expect_refusals([] {
    return [b = std::make_shared<Bench>(256, 64, 65536, kInt8, true)] {
      b->backend->linear(*b->packed, *b->x, 256, b->y.get());
    };
  });
}

TEST(OutOfMemory, WhereRowsAreRoundedIsAnException) {
  for (const InputFormat& format : {kFp8, kInt8OfSequence, kOutliers}) {
    expect_refusals([&] {
      return [b = std::make_shared<Bench>(4, 16, kWide, format, false)] {
        b->backend->gather(b->rows.get(), b->ids, kWide, *b->x);
      };
    });
  }
}

TEST(OutOfMemory, WhereKeysAreRotatedIsAnException) {
  expect_refusals([] {
    const int64_t num_heads = kWide / 64;
    return [b = std::make_shared<Bench>(2, 16, 64, kPlain, false),
            shape = AttentionShape{.num_heads = num_heads, .num_kv_heads = num_heads, .head_size = 64, .scale = 1.0f},
            qkv = std::vector<float>(static_cast<size_t>(2 * 3 * kWide)), q = std::vector<float>(2 * kWide),
            rope = std::make_shared<PackedRope>(
                make_cpu_backend(detect_isa(), 1)
                    ->pack_rope(make_rope_table({.inverse_frequencies = std::vector<float>(32, 1.0f)}, 64, 2))),
            storage = std::make_shared<KvStorage>(*make_cpu_backend(detect_isa(), 1), 8, 2, num_heads, 64)]() mutable {
      KvLayer cache = storage->layer();
      b->backend->rope_store(qkv.data(), *rope, nullptr, nullptr, shape, b->ids, b->ids, cache, q.data());
    };
  });
}

TEST(OutOfMemory, WhereTokensAreRoutedIsAnException) {
  expect_refusals([] {
    return [b = std::make_shared<Bench>(2, 16, 64, kPlain, false), logits = std::vector<float>(2 * kWide),
            experts = std::vector<int32_t>(2), weights = std::vector<float>(2)]() mutable {
      b->backend->route(logits.data(), 2, kWide, {.experts_per_token = 1}, experts.data(), weights.data());
    };
  });
}

}  // namespace
}  // namespace pare
