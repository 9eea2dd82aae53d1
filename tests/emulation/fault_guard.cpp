#include "tests/emulation/fault_guard.h"

#include <ucontext.h>

#include <cstdint>
#include <cstring>

#include "tests/emulation/address_check.h"
#include "tests/emulation/device_memory.h"
#include "tests/emulation/source_line.h"
#include "tests/emulation/thread_block.h"

namespace pare::emulation {
namespace {

// The handler has a stack of its own, because the fault may be that a fiber's stack is full.
alignas(16) char handler_stack[64 * 1024];

// The handler stores these for fail_with_fault.
const void* fault_instruction;
const void* fault_address;
bool is_general_protection;

std::string what_was_touched(const Fiber& fiber) {
  if (is_general_protection) return "a misaligned vector access, or an address that no memory can have";
  if (fiber.is_guard(fault_address)) return "its stack is full (" + std::to_string(Fiber::stack_bytes()) + " bytes)";
  if (device_memory::is_device(fault_address)) return "access to device memory that is not allocated";
  if (reinterpret_cast<uintptr_t>(fault_address) < 65536) return "access through a null pointer";
  return "access to an address that is not the device's";
}

// Runs on the faulting thread's stack, from its beginning, in place of the code that faulted.
[[noreturn]] void fail_with_fault() {
  Block& block = *Block::current();
  const Fiber& fiber = block.running().fiber;
  address_check::unpoison(fiber.stack(), Fiber::stack_bytes());
  block.fail(what_was_touched(fiber) + " at " + source_line(fault_instruction));
}

void handle(int signal, siginfo_t* info, void* context) {
  Block* block = Block::current();
  if (block == nullptr || !block->is_running()) {
    ::signal(signal, SIG_DFL);  // not a kernel's fault: it happens again and ends the process
    return;
  }
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  fault_instruction = reinterpret_cast<const void*>(registers[REG_RIP]);
  fault_address = info->si_addr;
  is_general_protection = info->si_code == SI_KERNEL;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&fail_with_fault);
  registers[REG_RSP] = reinterpret_cast<greg_t>(block->running().fiber.entry_stack_pointer());
}

}  // namespace

FaultGuard::FaultGuard() {
  stack_t stack{};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof(handler_stack);
  sigaltstack(&stack, &old_stack_);
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &old_segmentation_fault_);
  sigaction(SIGBUS, &action, &old_bus_error_);
}

FaultGuard::~FaultGuard() {
  sigaction(SIGSEGV, &old_segmentation_fault_, nullptr);
  sigaction(SIGBUS, &old_bus_error_, nullptr);
  sigaltstack(&old_stack_, nullptr);
}

}  // namespace pare::emulation
