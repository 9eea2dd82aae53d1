// The release of this program, as the build system's project() line gives it.
#pragma once

#include <string_view>

namespace pare {

std::string_view version();  // "0.1.0"

}  // namespace pare
