// Advice for a pattern of layers that matches none.
#pragma once

#include <string>
#include <vector>

namespace pare::compress {

// Returns what to add to a message about a pattern that matches none of the names. For a regular expression, as
// llm-compressor writes it ("re:.*down_proj"), that it is not read, and the pattern that means the same, where there is
// one and it matches. Else "".
std::string pattern_advice(const std::string& pattern, const std::vector<std::string>& names);

}  // namespace pare::compress
