// While a guard lives, a kernel's thread that touches inaccessible memory fails with a message (Block::fail) instead of
// ending the process. Faults of the host stay what they are.
#pragma once

#include <signal.h>

namespace pare::emulation {

class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  stack_t old_stack_{};
  struct sigaction old_segmentation_fault_ {};
  struct sigaction old_bus_error_ {};
};

}  // namespace pare::emulation
