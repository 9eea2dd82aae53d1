// Names for addresses of code, from the program's own debugging information.
#pragma once

#include <string>

namespace pare::emulation {

// "file.cu:12" of the instruction: the innermost function of a .cu or .cuh file, where others were inlined into one.
// "an unknown line" when the code has no debugging information.
std::string source_line(const void* instruction);

// The mangled name of the function that begins there; null when the program's symbols do not have it. Lives as long as
// the program.
const char* symbol_name(const void* function);

}  // namespace pare::emulation
