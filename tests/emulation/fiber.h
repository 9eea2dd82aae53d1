// Threads of control with stacks of their own, which change places only where they say so: x86-64, System V.
#pragma once

#include <cstddef>

namespace pare::emulation {

// One function on one stack. The scheduler resumes it, it suspends itself; there is never more than one running.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber() { release(); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on where the fiber stopped, at first in entry(), which must end with finish(). Returns when it gives way.
  void resume(void (*entry)());
  // Called on the fiber: back to the scheduler, until the next resume.
  void suspend();
  // Called on the fiber: back to the scheduler for good. Nothing on the stack is destroyed.
  [[noreturn]] void finish();
  // Gives the stack back; of a fiber that will not be resumed again.
  void release();

  // Whether the address lies in the guard pages below the stack: it has overflowed.
  bool is_guard(const void* address) const;
  // Where a function may be made to start on this stack, whatever was on it.
  void* entry_stack_pointer() const;
  void* stack() const { return stack_; }
  static size_t stack_bytes();

 private:
  char* stack_ = nullptr;  // lowest address
  void* stack_pointer_ = nullptr;
  void* sanitizer_state_ = nullptr;
};

}  // namespace pare::emulation
