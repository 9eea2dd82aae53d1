// Threads of control with stacks of their own, which change places only where they ask for it (x86-64, System V).
#pragma once

#include <cstddef>

namespace pare::emulation {

// One function on one stack. The scheduler resumes it, and it suspends itself. Never more than one runs.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber() { release(); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Continues where the fiber stopped, at first in entry(), which must end with finish(). Returns when the fiber
  // suspends itself.
  void resume(void (*entry)());
  // Must be called on the fiber. Switches back to the scheduler until the next resume.
  void suspend();
  // Must be called on the fiber. Switches back to the scheduler for good. Nothing on the stack is destroyed.
  [[noreturn]] void finish();
  // Returns the stack of a fiber that will not be resumed again.
  void release();

  // Returns whether the address lies in the guard pages below the stack, which means that the stack has overflowed.
  bool is_guard(const void* address) const;
  // Returns the place where a function can be started on this stack, whatever was on it.
  void* entry_stack_pointer() const;
  void* stack() const { return stack_; }
  static size_t stack_bytes();

 private:
  char* stack_ = nullptr;  // the lowest address
  void* stack_pointer_ = nullptr;
  void* sanitizer_state_ = nullptr;
};

}  // namespace pare::emulation
