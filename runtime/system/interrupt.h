// Stopping on request. SIGINT, SIGTERM and SIGHUP (the terminal is gone) set a flag. Long loops check it where stopping
// leaves nothing half done (between windows, blocks or tokens), or where half-done work is made again.
#pragma once

#include <exception>
#include <functional>
#include <thread>

namespace pare::runtime {

// Deliberately not a std::runtime_error: nothing went wrong, and no handler of errors should swallow it.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

// SIGINT, SIGTERM and, unless it is ignored, SIGHUP set the flag. A second signal of the same kind ends the process at
// once, as without a handler. The first SIGINT prints on standard error that it was received. The mains call this.
void install_interrupt_handler();

// These set, read and clear the flag. The handler calls the first.
void request_interrupt() noexcept;
bool interrupt_requested() noexcept;
void clear_interrupt() noexcept;

// Throws Interrupted if the flag is set, and what the thread's InterruptionCheck throws. Does nothing while an
// InterruptionLater lives.
void throw_if_interrupted();

// While it lives, long work of the thread that made it calls `check` wherever it may be stopped. What that throws ends
// the work. It is for programs that handle signals by themselves. The newest of several counts.
class InterruptionCheck {
 public:
  explicit InterruptionCheck(std::function<void()> check);
  ~InterruptionCheck();
  InterruptionCheck(const InterruptionCheck&) = delete;
  InterruptionCheck& operator=(const InterruptionCheck&) = delete;

 private:
  std::function<void()> check_;
  const std::function<void()>* before_;
};

// Protects short work that would be lost if it were left in the middle: a step of a training, a state being saved. On
// every thread, throw_if_interrupted does nothing until its end.
class InterruptionLater {
 public:
  InterruptionLater() noexcept;
  ~InterruptionLater();
  InterruptionLater(const InterruptionLater&) = delete;
  InterruptionLater& operator=(const InterruptionLater&) = delete;
};

// Starts a thread that receives no signals: they go to the threads that work. Throws what std::thread throws.
std::thread thread_without_signals(const std::function<void()>& work);

}  // namespace pare::runtime
