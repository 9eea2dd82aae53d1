#include "runtime/machine/thread_waiting.h"

#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

constexpr std::chrono::milliseconds kSamplePeriod{20};
// Shares of the time in which threads could have run but waited for a CPU. On an idle machine that is 1 % and less;
// beside one busy program on two CPUs 25 % to 50 %, beside four 65 %.
constexpr double kContendedShare = 0.2;
constexpr double kQuietShare = 0.12;
// Samples in a row that are needed to decide. A short load does not count, and programs that take turns are one load.
constexpr int kContendedSamples = 3;
constexpr int kQuietSamples = 50;
// Samples in which threads hardly wanted a CPU say nothing.
constexpr int64_t kLeastWantedNs = std::chrono::nanoseconds(kSamplePeriod).count() / 5;
// A process should not start more threads than this for the purpose.
constexpr int kMostExtraThreads = 64;

int64_t wanted_ns(const ThreadTimes& since, const ThreadTimes& now) {
  return now.run_ns - since.run_ns + now.delay_ns - since.delay_ns;
}
double delayed_share(const ThreadTimes& since, const ThreadTimes& now) {
  return static_cast<double>(now.delay_ns - since.delay_ns) / static_cast<double>(wanted_ns(since, now));
}

// Reads "run_ns delay_ns slices" with plain system calls, because it runs beside what it measures.
std::optional<ThreadTimes> read_schedstat(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 128> text;
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  if (size <= 0) return std::nullopt;
  const char* const end = text.data() + size;
  ThreadTimes times;
  const auto run = std::from_chars(text.data(), end, times.run_ns);
  if (run.ec != std::errc() || run.ptr == end) return std::nullopt;
  const auto delay = std::from_chars(run.ptr + 1, end, times.delay_ns);
  return delay.ec == std::errc() ? std::optional(times) : std::nullopt;
}

// True if that many threads can be started now. If OpenMP cannot start one, it ends the process.
bool has_room_for_threads(int num_threads) {
  std::mutex gate;
  std::vector<std::thread> threads;
  bool has_room = true;
  {
    const std::lock_guard closed(gate);
    try {
      threads.reserve(static_cast<size_t>(num_threads));
      for (int i = 0; i < num_threads; ++i) threads.emplace_back([&] { const std::lock_guard wait(gate); });
    } catch (const std::exception&) {
      has_room = false;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return has_room;
}

}  // namespace

std::optional<ThreadTimes> read_thread_times(const std::filesystem::path& tasks) {
  const std::string own = std::to_string(syscall(SYS_gettid));
  DIR* const folder = opendir(tasks.c_str());
  if (folder == nullptr) return std::nullopt;
  std::optional<ThreadTimes> sum;
  while (const dirent* const entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name.starts_with(".") || name == own) continue;
    const std::optional<ThreadTimes> times = read_schedstat(tasks.string() + "/" + name + "/schedstat");
    if (!times) continue;  // the thread has just ended
    if (!sum) sum = ThreadTimes{};
    sum->run_ns += times->run_ns;
    sum->delay_ns += times->delay_ns;
  }
  closedir(folder);
  return sum;
}

bool Contention::update(const ThreadTimes& now) {
  // A thread that ended takes its times along, so the sampling starts anew.
  const bool fell = last_ && (now.run_ns < last_->run_ns || now.delay_ns < last_->delay_ns);
  if (!last_ || fell) {
    last_ = quiet_since_ = now;
    num_contended_ = num_quiet_ = 0;
    return found_;
  }
  const ThreadTimes before = *std::exchange(last_, now);
  if (wanted_ns(before, now) < kLeastWantedNs) return found_;
  const bool is_contended = delayed_share(before, now) >= kContendedShare;
  if (is_contended) {
    if (++num_contended_ >= kContendedSamples) found_ = true;
    quiet_since_ = now;
    num_quiet_ = 0;
    return found_;
  }
  num_contended_ = 0;
  if (++num_quiet_ >= kQuietSamples) {
    if (delayed_share(*quiet_since_, now) < kQuietShare) found_ = false;
    quiet_since_ = now;
    num_quiet_ = 0;
  }
  return found_;
}

ExtraThreads::ExtraThreads(int num_threads) {
  // One of the holder's team is the holder, which OpenMP does not count.
  const int num_extra = std::max(omp_get_num_procs() + 1 - num_threads, 1);
  if (num_extra > kMostExtraThreads) return;
  try {
    holder_ = thread_without_signals([this, num_extra] { hold(num_extra); });
  } catch (const std::system_error&) {
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tried_; });
}

ExtraThreads::~ExtraThreads() {
  if (!holder_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  holder_.join();
}

void ExtraThreads::hold(int num_extra) {
  const bool has_room = has_room_for_threads(num_extra);
  int num_found = 0;
  if (has_room) {
#pragma omp parallel num_threads(num_extra + 1)
#pragma omp master
    num_found = omp_get_num_threads();
  }
  std::unique_lock lock(mutex_);
  exist_ = num_found == num_extra + 1;
  tried_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return end_; });
}

std::string_view waiting_policy() {
  const bool is_set = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  return is_set ? "environment" : "adaptive";
}

ThreadWaiting::ThreadWaiting(int num_threads, TimesReader read_times)
    : num_threads_(num_threads), read_times_(std::move(read_times)) {
  if (num_threads < 2 || waiting_policy() != "adaptive") return;
  try {
    thread_ = thread_without_signals([this] { watch(); });
  } catch (const std::system_error&) {
    // There is no room for a thread, so the others wait as OpenMP lets them.
  }
}

ThreadWaiting::~ThreadWaiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_signal_.notify_all();
  thread_.join();
}

bool ThreadWaiting::spins_briefly() const {
  const std::lock_guard lock(mutex_);
  return spins_briefly_;
}

void ThreadWaiting::watch() {
  Contention contention;
  std::optional<ExtraThreads> extra;
  std::unique_lock lock(mutex_);
  while (!stop_signal_.wait_for(lock, kSamplePeriod, [this] { return stop_; })) {
    lock.unlock();
    try {
      const std::optional<ThreadTimes> times = read_times_();
      if (!times) return;
      const bool is_contended = contention.update(*times);
      if (is_contended && !extra) extra.emplace(num_threads_);
      if (!is_contended) extra.reset();
    } catch (const std::exception&) {
      return;  // no memory is left: the working threads report that
    }
    lock.lock();
    spins_briefly_ = extra && extra->exist();
  }
}

}  // namespace pare::runtime
