// Methods of Python's str, for results that are compared with those of Python programs. Texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace pare::runtime {

// str.strip() and str.rstrip(): White_Space, and the separators U+001C to U+001F.
std::string_view strip(std::string_view text);
std::string_view strip_end(std::string_view text);

// str.replace(): from left to right, without looking at what was put in. `old` is not empty.
std::string replaced(std::string text, std::string_view old, std::string_view with);

}  // namespace pare::runtime
