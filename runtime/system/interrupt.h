// Stopping on request: SIGINT, SIGTERM and SIGHUP (the terminal is gone) set a flag, and long loops ask for it where
// stopping leaves nothing half done (between windows, blocks or tokens).
#pragma once

#include <exception>

namespace pare {

// Deliberately no std::runtime_error: nothing went wrong, and no handler of errors should swallow it.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

// SIGINT, SIGTERM and, unless it is ignored, SIGHUP set the flag; a second one ends the process at once, as without a
// handler. Called by the mains.
void install_interrupt_handler();

// Sets, reads and clears the flag. The first is what the handler does.
void request_interrupt() noexcept;
bool interrupt_requested() noexcept;
void clear_interrupt() noexcept;

// Throws Interrupted when the flag is set.
void throw_if_interrupted();

}  // namespace pare
