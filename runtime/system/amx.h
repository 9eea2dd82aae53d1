// The tile registers of AMX, which a process must ask the system for.
#pragma once

namespace pare::runtime {

// True if the CPU multiplies tiles of 8-bit codes and of bfloat16, and the system lets this process do so. Every thread
// may then use them. Each call asks the system.
bool request_amx();

}  // namespace pare::runtime
