// Finds accesses to one byte, at least one of them a write, that no barrier orders: within a block, and between blocks
// of one launch; reads of shared memory that nothing has written; and accesses outside of allocations and arrays.
// race_check.cpp is linked with kernels that are compiled with -fsanitize=thread, race_check_off.cpp with others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pare::emulation::race_check {

bool is_on();

void begin_launch();
// What was found since begin_launch(), in words; empty when nothing was.
std::string end_launch();
void begin_block(const std::string& name, unsigned num_threads);

// All earlier accesses of the block, or of the lanes of the mask, now come before all later ones.
void block_barrier();
void warp_barrier(unsigned warp, uint32_t mask);

// An atomic operation of the running thread, called from where `instruction` points to.
void atomic(const void* address, size_t bytes, const void* instruction);

// Of global memory that is freed: what its cells hold takes many times its size.
void forget(const void* begin, size_t bytes);

}  // namespace pare::emulation::race_check
