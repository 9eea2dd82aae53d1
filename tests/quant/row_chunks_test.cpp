#include "quant/row_chunks.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>

#include "runtime/system/interrupt.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

// One layer may take minutes, so work on its rows must stop between chunks.
TEST(RowChunks, StopWhenInterrupted) {
  const int threads = omp_get_max_threads();
  for (const int num_threads : {1, 3}) {
    omp_set_num_threads(num_threads);
    std::atomic<int> num_chunks{0};
    const auto work = [&](int64_t, int64_t) {
      if (++num_chunks == 5) request_interrupt();
    };
    EXPECT_THROW(for_row_chunks(1000, 10, work), Interrupted);
    EXPECT_LT(num_chunks, 5 + num_threads);
    clear_interrupt();
  }
  omp_set_num_threads(threads);
}

TEST(RowChunks, AreAllWorkedOnWhereInterruptionsWait) {
  std::atomic<int> num_chunks{0};
  request_interrupt();
  {
    const InterruptionLater whole;
    for_row_chunks(1000, 10, [&](int64_t, int64_t) { ++num_chunks; });
  }
  clear_interrupt();
  EXPECT_EQ(num_chunks, 100);
}

}  // namespace
}  // namespace pare
