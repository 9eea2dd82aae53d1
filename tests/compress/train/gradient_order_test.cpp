// Checks micro-batches on several threads: the order in which they add, and the end of those that wait for a failed
// one.
#include "compress/train/gradient_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace pare {
using namespace compress;
namespace {

// The later a micro-batch comes in the order, the earlier it is ready.
TEST(GradientOrder, AddsInOrderWhoeverIsReadyFirst) {
  constexpr int64_t kMicroBatches = 6, kPlaces = 5;
  GradientOrder order(kPlaces);
  std::vector<std::vector<int64_t>> added(kPlaces);
  std::vector<std::thread> threads;
  for (int64_t m = kMicroBatches - 1; m >= 0; --m) {
    threads.emplace_back([&, m] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * (kMicroBatches - m)));
      for (int64_t place = kPlaces - 1; place >= 0; --place) {
        GradientTurn{&order, m}.add(place, [&] { added[static_cast<size_t>(place)].push_back(m); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int64_t>& order_of_place : added) {
    EXPECT_EQ(order_of_place, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  }
}

TEST(GradientOrder, WhoWaitsForOneThatFailedIsTold) {
  GradientOrder order(2);
  std::atomic<int> num_told = 0, num_added = 0;
  std::vector<std::thread> threads;
  for (int64_t m = 1; m < 4; ++m) {
    threads.emplace_back([&, m] {
      try {
        order.add(m, 0, [&] { ++num_added; });
      } catch (const std::runtime_error&) {
        ++num_told;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  order.give_up();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_told, 3);
  EXPECT_EQ(num_added, 0);
  EXPECT_THROW(order.add(0, 1, [] {}), std::runtime_error);
}

TEST(GradientOrder, WithoutAnOrderAddsAtOnce) {
  int num_added = 0;
  GradientTurn{}.add(0, [&] { ++num_added; });
  EXPECT_EQ(num_added, 1);
}

}  // namespace
}  // namespace pare
