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

}  // namespace
