// The release of this program, and the compiler that built it.
#pragma once

#include <string_view>

namespace pare::runtime {

std::string_view version();   // "0.2.0", from the project() line of CMakeLists.txt
std::string_view compiler();  // "GCC 12.2.0", "clang 16.0.6"

}  // namespace pare::runtime
