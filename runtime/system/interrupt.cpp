#include "runtime/system/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace pare::runtime {
namespace {

std::atomic<bool> requested{false};
std::atomic<int> num_later{0};  // living InterruptionLater objects
thread_local const std::function<void()>* check_of_thread = nullptr;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

// A bar on the line is erased first; it comes back below.
constexpr std::string_view kHeard =
    "stopping at a point where nothing is left half done; a second Ctrl-C ends the program at once\n";
constexpr std::string_view kHeardOnTerminal =
    "\r\x1b[2Kstopping at a point where nothing is left half done; a second Ctrl-C ends the program at once\n";
std::string_view heard = kHeard;

extern "C" void handle_signal(int signal) {
  requested.store(true);
  if (signal != SIGINT) return;
  const int error = errno;
  if (::write(STDERR_FILENO, heard.data(), heard.size()) < 0) errno = error;  // nobody reads it
  errno = error;
}

}  // namespace

void install_interrupt_handler() {
  heard = ::isatty(STDERR_FILENO) == 1 ? kHeardOnTerminal : kHeard;
  struct sigaction action = {};
  action.sa_handler = handle_signal;
  sigemptyset(&action.sa_mask);
  // SA_RESETHAND: a second signal gets the default action. SA_RESTART: reads and writes in progress are not cut short.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  // Children of nohup ignore SIGHUP and shall go on doing so.
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

void request_interrupt() noexcept {
  requested.store(true);
}
bool interrupt_requested() noexcept {
  return requested.load();
}
void clear_interrupt() noexcept {
  requested.store(false);
}

void throw_if_interrupted() {
  if (num_later.load() > 0) return;
  if (interrupt_requested()) throw Interrupted();
  if (check_of_thread != nullptr) (*check_of_thread)();
}

InterruptionCheck::InterruptionCheck(std::function<void()> check)
    : check_(std::move(check)), before_(std::exchange(check_of_thread, &check_)) {}
InterruptionCheck::~InterruptionCheck() {
  check_of_thread = before_;
}

InterruptionLater::InterruptionLater() noexcept {
  ++num_later;
}
InterruptionLater::~InterruptionLater() {
  --num_later;
}

std::thread thread_without_signals(const std::function<void()>& work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(work);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace pare::runtime
