// The emulator's side of AddressSanitizer and UndefinedBehaviorSanitizer. address_check.cpp is linked with kernels that
// are compiled with both, address_check_off.cpp with others.
#pragma once

#include <cstddef>
#include <string>

namespace pare::emulation::address_check {

bool is_on();

// Around every change of stacks: before it the stack that comes next, after it the one that was left. `state` carries
// what the sanitizer keeps of a stack; null when it ends.
void before_switch(void** state, const void* next_stack, size_t bytes);
void after_switch(void* state, const void** left_stack, size_t* bytes);

// Accesses of instrumented code are faults, or are not.
void poison(const void* begin, size_t bytes);
void unpoison(const void* begin, size_t bytes);

// The first fault found since the last call, in one line; empty when there is none.
std::string take_report();

}  // namespace pare::emulation::address_check
