#include "tests/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <vector>

#include "tests/emulation/address_check.h"

// Saves the registers that a function must preserve on the present stack, and stores its stack pointer in *saved. Then
// restores the same from the stack at `next`. Signal masks and floating-point modes belong to the process and stay.
extern "C" void pare_emulation_switch(void** saved, void* next);
asm(R"(
.text
.p2align 4
.globl pare_emulation_switch
.type pare_emulation_switch, @function
pare_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pare_emulation_switch, .-pare_emulation_switch
)");

namespace pare::emulation {
namespace {

// A sanitizer's report needs most of a stack. Pages are taken when they are touched.
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 64 * 1024;
constexpr int kSavedRegisters = 6;

void* scheduler_stack_pointer;
// AddressSanitizer needs these two of the stack that resumes fibers.
const void* scheduler_stack;
size_t scheduler_stack_bytes;
// Stacks that no fiber has. The one that was returned last is taken first, because it is in the cache.
std::vector<char*> free_stacks;
void (*first_function)();

char* take_stack() {
  if (!free_stacks.empty()) {
    char* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<char*>(memory) + kGuardBytes;
}

void start() {
  address_check::after_switch(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  first_function();
  __builtin_trap();  // entry() ends with finish()
}

}  // namespace

void Fiber::resume(void (*entry)()) {
  if (stack_ == nullptr) {
    stack_ = take_stack();
    void** top = static_cast<void**>(entry_stack_pointer());
    *top = nullptr;                            // start() returns nowhere
    *--top = reinterpret_cast<void*>(&start);  // the switch returns here
    for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    stack_pointer_ = top;
    first_function = entry;
  }
  void* state = nullptr;
  address_check::before_switch(&state, stack_, kStackBytes);
  pare_emulation_switch(&scheduler_stack_pointer, stack_pointer_);
  address_check::after_switch(state, nullptr, nullptr);
}

void Fiber::suspend() {
  address_check::before_switch(&sanitizer_state_, scheduler_stack, scheduler_stack_bytes);
  pare_emulation_switch(&stack_pointer_, scheduler_stack_pointer);
  address_check::after_switch(sanitizer_state_, &scheduler_stack, &scheduler_stack_bytes);
}

void Fiber::finish() {
  address_check::before_switch(nullptr, scheduler_stack, scheduler_stack_bytes);
  pare_emulation_switch(&stack_pointer_, scheduler_stack_pointer);
  __builtin_trap();
}

void Fiber::release() {
  if (stack_ == nullptr) return;
  address_check::unpoison(stack_, kStackBytes);
  free_stacks.push_back(stack_);
  stack_ = nullptr;
}

bool Fiber::is_guard(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  return stack_ != nullptr && byte >= stack_ - kGuardBytes && byte < stack_;
}

void* Fiber::entry_stack_pointer() const {
  return stack_ + kStackBytes - 3 * sizeof(void*);  // functions start 8 bytes off a multiple of 16
}

size_t Fiber::stack_bytes() {
  return kStackBytes;
}

}  // namespace pare::emulation
