// Advice for a pattern of layers that matches none.
#pragma once

#include <string>
#include <vector>

namespace pare::compress {

// Returns what to add to a message about a pattern that matches none of the names. For a regular expression, as
// llm-compressor writes it ("re:.*down_proj"), that it is not read, and the pattern that means the same, where there is
// one and it matches. Else "".
std::string pattern_advice(const std::string& pattern, const std::vector<std::string>& names);

// Returns a pattern of the layers that have this name in any block: "model.layers.*.mlp.down_proj".
std::string pattern_of_all_blocks(const std::string& layer);

}  // namespace pare::compress
