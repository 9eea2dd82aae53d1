#include "compress/recipe/pattern_advice.h"

#include <algorithm>
#include <regex>
#include <string_view>

#include "compress/recipe/recipe.h"

namespace pare::compress {
namespace {

constexpr std::string_view kExpressionPrefix = "re:";

bool matches_some(const std::string& glob, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches_glob(glob, name); });
}

// Returns the glob of a simple regular expression; "": it is not simple. Such an expression matches a name's beginning,
// unless it ends in $.
std::string glob_of(std::string_view expression) {
  std::string glob;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (expression[i] == '^' && glob.empty()) continue;
    if (expression[i] == '$' && next == '\0') continue;
    if (expression[i] == '\\' && next == '.') {
      glob += '.';
      ++i;
    } else if (expression[i] == '.' && (next == '*' || next == '+')) {
      glob += '*';
      ++i;
    } else if (std::string_view("*+?()[]{}|\\^$").find(expression[i]) != std::string_view::npos) {
      return "";
    } else {
      glob += expression[i];
    }
  }
  return glob;
}

}  // namespace

std::string pattern_advice(const std::string& pattern, const std::vector<std::string>& names) {
  if (!pattern.starts_with(kExpressionPrefix)) return "";
  const std::string advice = "; regular expressions are not read here",
                    glob = glob_of(pattern.substr(kExpressionPrefix.size()));
  if (glob.empty()) return advice;
  if (matches_some(glob, names)) return advice + ": write '" + glob + "'";
  const std::string open = glob + "*";
  return !pattern.ends_with('$') && matches_some(open, names) ? advice + ": write '" + open + "'" : advice;
}

std::string pattern_of_all_blocks(const std::string& layer) {
  static const std::regex kNumber("\\.[0-9]+(?=\\.)");
  return std::regex_replace(layer, kNumber, ".*");
}

}  // namespace pare::compress
