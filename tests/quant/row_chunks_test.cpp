#include "quant/row_chunks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

TEST(RowChunks, OfSeveralWorksShareTheThreads) {
  const int torch_threads = at::get_num_threads();
  const int threads = omp_get_max_threads();
  for (const int num_threads : {1, 2, 5}) {
    omp_set_num_threads(num_threads);
    std::vector<std::vector<int>> visits = {std::vector<int>(3), std::vector<int>(40), {}, std::vector<int>(17)};
    for_each_together(static_cast<int64_t>(visits.size()), [&](int64_t i) {
      std::vector<int>& rows = visits[static_cast<size_t>(i)];
      for (int step = 0; step < 3; ++step) {  // the next chunks begin when all of the last ones have ended
        for_row_chunks(static_cast<int64_t>(rows.size()), 4, [&](int64_t first_row, int64_t num_rows) {
          EXPECT_EQ(at::get_num_threads(), 1);
          for (int64_t row = first_row; row < first_row + num_rows; ++row) {
            EXPECT_EQ(rows[static_cast<size_t>(row)], step);
            ++rows[static_cast<size_t>(row)];
          }
        });
        for (const int row : rows) EXPECT_EQ(row, step + 1);
      }
    });
    for (const std::vector<int>& rows : visits) EXPECT_EQ(rows, std::vector<int>(rows.size(), 3));
    EXPECT_EQ(omp_get_max_threads(), num_threads);
  }
  omp_set_num_threads(threads);
  for_row_chunks(8, 4, [](int64_t, int64_t) {});  // works as before
  EXPECT_EQ(at::get_num_threads(), torch_threads);
}

TEST(RowChunks, TheLowestOfSeveralWorksThatFailIsNamed) {
  const int threads = omp_get_max_threads();
  for (const int num_threads : {1, 3}) {
    omp_set_num_threads(num_threads);
    std::atomic<int> begun{0};
    const auto work = [&](int64_t i) {
      ++begun;
      while (num_threads > 1 && begun < 3) std::this_thread::yield();  // a work that is not begun when one fails is not
      for_row_chunks(3, 1, [&](int64_t row, int64_t) {
        if (row == 1) throw std::runtime_error("work " + std::to_string(i));
      });
    };
    try {
      for_each_together(3, work);
      FAIL() << "expected an exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "work 0");
    }
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
