// The tile registers of AMX, which a process must ask the system for.
#pragma once

namespace pare {

// Whether the CPU multiplies tiles of 8-bit codes and the system lets this process: every thread may then use them. The
// system is asked at every call.
bool request_amx();

}  // namespace pare
