// Controls how OpenMP's threads wait for one another. They spin for milliseconds. That is right on an idle machine,
// where waking a sleeping thread costs more than a small product takes. Beside other programs it is ruinous, because a
// thread spins in the place of the one that it waits for. So this module keeps measuring whether the threads have to
// wait for a CPU. While they do, it makes OpenMP spin for microseconds only.
//
// libgomp reads its settings when it is loaded, before main. But it spins 100 times instead of 300,000 while there are
// more OpenMP threads than CPUs (GOMP_SPINCOUNT in its manual). Extra threads that do nothing bring that about at any
// time, and ending them takes it back. All regions of the process follow, also LibTorch's. LLVM's OpenMP yields in that
// case.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

namespace pare::runtime {

// The scheduler's times of threads: how long they ran, and how long they could have run but had no CPU.
struct ThreadTimes {
  int64_t run_ns = 0;
  int64_t delay_ns = 0;
};

// Returns the sums over this process's threads except the calling one; empty if the kernel does not count (no
// schedstat).
std::optional<ThreadTimes> read_thread_times(const std::filesystem::path& tasks = "/proc/self/task");

// Decides from samples of ThreadTimes at equal intervals whether other programs contend for the CPUs.
class Contention {
 public:
  // Takes the next sample. Returns true if threads are to spin briefly from now on.
  bool update(const ThreadTimes& now);

 private:
  std::optional<ThreadTimes> last_, quiet_since_;
  int num_contended_ = 0, num_quiet_ = 0;  // samples in a row
  bool found_ = false;
};

// While it lives, the process has more OpenMP threads than CPUs, so that all of them spin briefly.
class ExtraThreads {
 public:
  // num_threads counts those of the teams that compute, at least 2.
  explicit ExtraThreads(int num_threads);
  ~ExtraThreads();
  ExtraThreads(const ExtraThreads&) = delete;
  ExtraThreads& operator=(const ExtraThreads&) = delete;
  // False if there was no room for them: threads then wait as before.
  bool exist() const { return exist_; }

 private:
  void hold(int num_extra);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool exist_ = false, tried_ = false, end_ = false;
  std::thread holder_;  // libgomp's threads belong to the thread that started them, and end with it
};

// Returns "adaptive", or "environment" if OMP_WAIT_POLICY or GOMP_SPINCOUNT says how threads wait, which is then left
// alone.
std::string_view waiting_policy();

// From construction to destruction, threads wait as the top of this file says, unless the environment says how.
class ThreadWaiting {
 public:
  using TimesReader = std::function<std::optional<ThreadTimes>()>;
  // num_threads counts those that the program computes with; a single one waits for nobody. `read_times` is called on a
  // thread of its own.
  explicit ThreadWaiting(
      int num_threads, TimesReader read_times = [] { return read_thread_times(); });
  ~ThreadWaiting();
  ThreadWaiting(const ThreadWaiting&) = delete;
  ThreadWaiting& operator=(const ThreadWaiting&) = delete;

  // True if threads spin briefly at the moment.
  bool spins_briefly() const;

 private:
  void watch();
  const int num_threads_;
  const TimesReader read_times_;
  mutable std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false, spins_briefly_ = false;
  std::thread thread_;
};

}  // namespace pare::runtime
