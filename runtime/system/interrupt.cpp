#include "runtime/system/interrupt.h"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace pare {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

extern "C" void handle_signal(int) {
  requested.store(true);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = handle_signal;
  sigemptyset(&action.sa_mask);
  // SA_RESETHAND: the second signal meets the default action. SA_RESTART: reads and writes in flight are not torn.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  // nohup's children have it ignored, and shall not hear of it.
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
  if (interrupt_requested()) throw Interrupted();
}

}  // namespace pare
