// The emulator's side of AddressSanitizer and UndefinedBehaviorSanitizer. address_check.cpp is linked with kernels that
// are compiled with both sanitizers, address_check_off.cpp with others.
#pragma once

#include <cstddef>
#include <string>

namespace pare::emulation::address_check {

bool is_on();

// These stand around every change of stacks. The first takes the stack that comes next, and the second gives the one
// that was left. `state` holds the sanitizer's data about a stack; it is null when the stack ends.
void before_switch(void** state, const void* next_stack, size_t bytes);
void after_switch(void* state, const void** left_stack, size_t* bytes);

// Make accesses of instrumented code faults, or allow them again.
void poison(const void* begin, size_t bytes);
void unpoison(const void* begin, size_t bytes);

// Returns the first fault found since the last call, in one line, or an empty text.
std::string take_report();

}  // namespace pare::emulation::address_check
