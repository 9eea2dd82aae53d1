// Stopping on request: SIGINT, SIGTERM and SIGHUP (the terminal is gone) set a flag, and long loops ask for it where
// stopping leaves nothing half done (between windows, blocks or tokens), and where what is half done is made again.
#pragma once

#include <exception>
#include <functional>
#include <thread>

namespace pare {

// Deliberately no std::runtime_error: nothing went wrong, and no handler of errors should swallow it.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

// SIGINT, SIGTERM and, unless it is ignored, SIGHUP set the flag; a second one of a kind ends the process at once, as
// without a handler. The first SIGINT says on standard error that it was heard. Called by the mains.
void install_interrupt_handler();

// Sets, reads and clears the flag. The first is what the handler does.
void request_interrupt() noexcept;
bool interrupt_requested() noexcept;
void clear_interrupt() noexcept;

// Throws Interrupted when the flag is set and no InterruptionLater lives.
void throw_if_interrupted();

// Around what would be lost if it were left in the middle, and is soon done: a step of a training, a state being saved.
// On whichever thread, throw_if_interrupted waits for its end.
class InterruptionLater {
 public:
  InterruptionLater() noexcept;
  ~InterruptionLater();
  InterruptionLater(const InterruptionLater&) = delete;
  InterruptionLater& operator=(const InterruptionLater&) = delete;
};

// A thread that no signal interrupts: they go to those that work. Throws what std::thread throws.
std::thread thread_without_signals(const std::function<void()>& work);

}  // namespace pare
