#include "runtime/machine/thread_waiting.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "tests/runtime/commands/pare_runtime.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kMs = 1'000'000;

// Samples of threads that need a CPU for 100 ms between two samples, and wait for `delayed` percent of that time.
struct Samples {
  ThreadTimes now;
  const ThreadTimes& next(int64_t delayed) {
    now.run_ns += (100 - delayed) * kMs;
    now.delay_ns += delayed * kMs;
    return now;
  }
};

TEST(Contention, IsFoundAtOnceAndEndsAfterAWhileOfQuiet) {
  Contention contention;
  Samples samples;
  EXPECT_FALSE(contention.update(samples.next(90)));  // nothing to compare with
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(contention.update(samples.next(1)));
  EXPECT_FALSE(contention.update(samples.next(60)));  // one alone is a hiccup
  EXPECT_FALSE(contention.update(samples.next(1)));
  int num_contended = 0;
  while (!contention.update(samples.next(num_contended % 2 == 0 ? 60 : 30))) ASSERT_LT(++num_contended, 5);
  // Threads are contended now and then.
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(contention.update(samples.next(i % 10 == 0 ? 60 : 1)));
  int num_quiet = 0;
  while (contention.update(samples.next(1))) ASSERT_LT(++num_quiet, 100);
  EXPECT_GT(num_quiet, 10);
}

TEST(Contention, SamplesOfIdleThreadsSayNothing) {
  Contention contention;
  ThreadTimes now;
  for (int i = 0; i < 100; ++i) {
    now.delay_ns += kMs;  // 1 ms of waiting in 1 ms of work
    EXPECT_FALSE(contention.update(now));
  }
}

TEST(Contention, AThreadThatEndsTakesItsTimesAlong) {
  Contention contention;
  Samples samples;
  for (int i = 0; i < 9; ++i) contention.update(samples.next(60));
  ASSERT_TRUE(contention.update(samples.next(60)));
  samples.now = {.run_ns = 3 * kMs, .delay_ns = 2 * kMs};
  EXPECT_TRUE(contention.update(samples.now));
  for (int i = 0; i < 100; ++i) contention.update(samples.next(0));
  EXPECT_FALSE(contention.update(samples.next(0)));
}

TEST(ThreadTimes, AreSummedOverTheOtherThreads) {
  const TemporaryFolder folder;
  const auto add = [&](const std::string& thread, const std::string& text) {
    std::filesystem::create_directory(folder.path() / thread);
    std::ofstream(folder.path() / thread / "schedstat") << text;
  };
  add("11", "1000 20 3\n");
  add("12", "4000 500 7\n");
  add(std::to_string(syscall(SYS_gettid)), "7 7 7\n");
  add("13", "");  // the thread has just ended
  const std::optional<ThreadTimes> times = read_thread_times(folder.path());
  ASSERT_TRUE(times);
  EXPECT_EQ(times->run_ns, 5000);
  EXPECT_EQ(times->delay_ns, 520);
  EXPECT_FALSE(read_thread_times(folder.path() / "missing"));
}

TEST(ThreadTimes, AreThoseOfThisProcess) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
    }
  });
  const std::optional<ThreadTimes> before = read_thread_times();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool grew = !before;  // a kernel without schedstat counts as grown
  while (!grew && std::chrono::steady_clock::now() < deadline) grew = read_thread_times()->run_ns > before->run_ns;
  stop = true;
  busy.join();
  EXPECT_TRUE(grew);
}

int64_t cpu_ns(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Returns the CPU time that a thread spends on waiting 100 ms for the other one of its team.
int64_t spinning_ns() {
  clockid_t clock = {};
#pragma omp parallel num_threads(2)
  if (omp_get_thread_num() == 1) pthread_getcpuclockid(pthread_self(), &clock);
  usleep(100'000);  // the other thread sleeps by now
  const int64_t before = cpu_ns(clock);
#pragma omp parallel num_threads(2)
  if (omp_get_thread_num() == 0) usleep(100'000);
  return cpu_ns(clock) - before;
}

// Waits until ThreadWaiting finds contention, or none, as expected, and returns its state.
bool spins_briefly_after(const ThreadWaiting& waiting, bool expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (waiting.spins_briefly() != expected && std::chrono::steady_clock::now() < deadline) usleep(10'000);
  return waiting.spins_briefly();
}

// libgomp reads its settings when it is loaded. So these tests run in processes of their own, which the tests below
// start.
TEST(ThreadWaitingChild, DISABLED_Adapts) {
  std::atomic<bool> contended{false};
  Samples samples;
  const ThreadWaiting waiting(2, [&] { return samples.next(contended ? 60 : 0); });
  const int64_t long_ns = spinning_ns();
  contended = true;
  ASSERT_TRUE(spins_briefly_after(waiting, true));
  const int64_t brief_ns = spinning_ns();
  contended = false;
  ASSERT_FALSE(spins_briefly_after(waiting, false));
  const int64_t again_ns = spinning_ns();
  // Long spinning is 300,000 turns of a loop of a few nanoseconds each, and brief spinning 100 turns.
  EXPECT_GT(long_ns, 5 * brief_ns);
  EXPECT_GT(again_ns, 5 * brief_ns);
}

TEST(ThreadWaitingChild, DISABLED_LeavesTheEnvironmentsPolicy) {
  std::atomic<bool> was_asked{false};
  Samples samples;
  const ThreadWaiting waiting(2, [&] {
    was_asked = true;
    return samples.next(60);
  });
  EXPECT_EQ(waiting_policy(), "environment");
  EXPECT_GT(spinning_ns(), kMs);  // the thread never sleeps; spinning briefly takes some microseconds
  EXPECT_FALSE(was_asked);
}

class ThreadWaitingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (dlsym(RTLD_DEFAULT, "kmp_set_blocktime") != nullptr) GTEST_SKIP() << "LLVM's OpenMP";
    if (omp_get_num_procs() < 2) GTEST_SKIP() << "of one CPU's threads all spin briefly";
  }
  static void run_child(const std::string& test, const std::string& environment) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string line = "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT " + environment + " '" + program +
                             "' --gtest_also_run_disabled_tests --gtest_filter=ThreadWaitingChild.DISABLED_" + test;
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
  }
};

TEST_F(ThreadWaitingTest, SpinsBrieflyWhileOthersContendAndOnlyThen) {
  run_child("Adapts", "");
}
TEST_F(ThreadWaitingTest, LeavesTheEnvironmentsPolicy) {
  run_child("LeavesTheEnvironmentsPolicy", "OMP_WAIT_POLICY=active");
}

TEST(ThreadWaiting, OfOneThreadNothingIsWatched) {
  std::atomic<bool> was_asked{false};
  {
    const ThreadWaiting waiting(1, [&] {
      was_asked = true;
      return ThreadTimes();
    });
    usleep(200'000);
  }
  EXPECT_FALSE(was_asked);
}

// Both programs report which policy is in force.
class WaitingOfPrograms : public PareRuntime {
 protected:
  std::string policy(const std::string& environment) const {
    const Outcome result = run(
        "bench " + model_.string() + " --prefill-tokens 8 --decode-tokens 4 --repetitions 1 --threads 2 --json --quiet",
        "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT " + environment);
    EXPECT_EQ(result.status, 0) << result.err;
    return nlohmann::json::parse(result.out).at("thread_waiting");
  }
};

TEST_F(WaitingOfPrograms, IsAdaptiveUnlessTheEnvironmentSays) {
  EXPECT_EQ(policy(""), "adaptive");
  EXPECT_EQ(policy("OMP_NUM_THREADS=2"), "adaptive");
  EXPECT_EQ(policy("OMP_WAIT_POLICY=passive"), "environment");
  EXPECT_EQ(policy("GOMP_SPINCOUNT=10"), "environment");
}

}  // namespace
}  // namespace pare
