// Finds accesses to one byte, at least one of them a write, that no barrier orders, within a block and between blocks
// of one launch. Also finds reads of shared memory that nothing has written, and accesses outside of allocations and
// arrays. race_check.cpp is linked with kernels that are compiled with -fsanitize=thread, race_check_off.cpp with
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pare::emulation::race_check {

bool is_on();

void begin_launch();
// Describes what was found since begin_launch(), or returns an empty text.
std::string end_launch();
void begin_block(const std::string& name, unsigned num_threads);

// After these calls all earlier accesses of the block, or of the lanes of the mask, come before all later ones.
void block_barrier();
void warp_barrier(unsigned warp, uint32_t mask);

// Records an atomic operation of the running thread, called from the place that `instruction` points to.
void atomic(const void* address, size_t bytes, const void* instruction);

// Forgets global memory that is freed. Its cells take many times its size.
void forget(const void* begin, size_t bytes);

}  // namespace pare::emulation::race_check
