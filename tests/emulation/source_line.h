// Names for addresses of code, from the program's own debugging information.
#pragma once

#include <string>

namespace pare::emulation {

// Returns "file.cu:12" for an instruction: the innermost function of a .cu or .cuh file, where others were inlined into
// it. Returns "an unknown line" when the code has no debugging information.
std::string source_line(const void* instruction);

// Returns the mangled name of the function that begins there, or null when the program's symbols do not have it. The
// name lives as long as the program.
const char* symbol_name(const void* function);

}  // namespace pare::emulation
