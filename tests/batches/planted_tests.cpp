// Tests that end in every way in which a test can end: run_batched_test.py has them run by tests/run_batched.py. ctest
// does not know them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace {

int num_run = 0;

TEST(Planted, Passes) {
  ++num_run;
}
TEST(Planted, Skips) {
  ++num_run;
  GTEST_SKIP() << "as planted";
}
TEST(Planted, Fails) {
  ++num_run;
  ADD_FAILURE() << "as planted";
}
TEST(Planted, FailsBesideOthers) {
  EXPECT_EQ(num_run, 0);
}
class Parameters : public testing::TestWithParam<int> {};
TEST_P(Parameters, FailsForTwo) {
  EXPECT_NE(GetParam(), 2);
}
INSTANTIATE_TEST_SUITE_P(All, Parameters, testing::Values(1, 2, 3));

TEST(PlantedCrash, Passes) {}
TEST(PlantedCrash, Aborts) {
  std::abort();
}
TEST(PlantedCrash, PassesBehind) {}

// As leaks that a sanitizer finds when the process ends.
TEST(PlantedEnd, LeavesAStatus) {
  std::atexit([] { _exit(7); });
}
TEST(PlantedEnd, Passes) {}

TEST(PlantedSleep, TakesTooLong) {
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

// Locks as they are in a process that has forked.
TEST(PlantedHang, Passes) {
  ++num_run;
}
TEST(PlantedHang, HangsBesideOthers) {
  if (num_run > 0) std::this_thread::sleep_for(std::chrono::seconds(60));
}
TEST(PlantedHang, PassesBehind) {}

TEST(PlantedCrashBesideOthers, Passes) {
  ++num_run;
}
TEST(PlantedCrashBesideOthers, Aborts) {
  if (num_run > 0) std::abort();
}

// Holds the test's standard output open for as long as it lives.
TEST(PlantedProcess, OutlivesItsTest) {
  if (fork() == 0) {
    for (;;) pause();
  }
}

}  // namespace
