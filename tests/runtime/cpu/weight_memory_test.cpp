#include "runtime/cpu/weight_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace pare {
using namespace runtime;
namespace {

bool is_zero(const std::byte* bytes, int64_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(WeightMemory, IsZeroedAlignedAndApart) {
  const int64_t before = reserved_weight_bytes();
  {
    std::vector<std::pair<WeightBytes, int64_t>> kept;
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
      const int64_t size = i % 50 == 7 ? 5 << 20 : 1 + random() % 60000;
      WeightBytes bytes = allocate_weights(size);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(bytes.get()) % 64, 0u);
      ASSERT_TRUE(is_zero(bytes.get(), size)) << i;
      std::memset(bytes.get(), i, size);
      kept.emplace_back(std::move(bytes), size);
      // Others are freed in any order.
      if (i % 3 == 0) kept.erase(kept.begin() + random() % kept.size());
    }
    for (const auto& [bytes, size] : kept) {
      const std::byte first = bytes[0];
      EXPECT_TRUE(std::all_of(bytes.get(), bytes.get() + size, [&](std::byte byte) { return byte == first; }));
    }
    EXPECT_GT(reserved_weight_bytes(), before);
  }
  EXPECT_EQ(reserved_weight_bytes(), before) << "memory is still held";
}

// What is freed and allocated again by turns, as by a walk through a model's blocks, does not pile up.
TEST(WeightMemory, GoesBackToTheSystem) {
  const int64_t before = reserved_weight_bytes();
  int64_t most = 0;
  for (int round = 0; round < 50; ++round) {
    const WeightBytes first = allocate_weights(3 << 20), second = allocate_weights(100);
    ASSERT_TRUE(is_zero(first.get(), 3 << 20));
    std::memset(first.get(), 1, 3 << 20);
    most = std::max(most, reserved_weight_bytes() - before);
  }
  EXPECT_LE(most, 8 << 20);
  EXPECT_EQ(reserved_weight_bytes(), before);
}

TEST(WeightMemory, IsForAnyThread) {
  const int64_t before = reserved_weight_bytes();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (int i = 0; i < 200; ++i) {
        const WeightBytes bytes = allocate_weights(1000 * (i % 17 + 1));
        wrong[thread] += is_zero(bytes.get(), 1000) ? 0 : 1;
        std::memset(bytes.get(), thread + 1, 1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_EQ(reserved_weight_bytes(), before);
}

TEST(WeightMemory, EmptyOnesAreThere) {
  const WeightBytes first = allocate_weights(0), second = allocate_weights(0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace pare
