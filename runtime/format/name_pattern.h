// Regular expressions over module names, as in the targets and ignore lists of a quantization_config ("re:..."). Anyone
// may have written these files, so the time to match is bounded by states times characters, whatever the pattern
// (Thompson, "Regular Expression Search Algorithm", CACM 11(6), 1968). There are no captures and no backtracking.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

// Python's syntax, on ASCII: literals, ".", classes like [a-z], \d \w \s and their negations, groups, alternatives, the
// quantifiers * + ? {n} {n,} {n,m} (lazy ones match the same names), ^ $ \b \B.
class NamePattern {
 public:
  // Throws std::invalid_argument for syntax outside that list (look-around, back references, named groups, inline
  // flags), for broken syntax, for more than 1000 characters, and for a pattern that unrolls to more than 10,000
  // states.
  static NamePattern parse(std::string_view pattern);

  // True if it matches from the start of `name`, not necessarily to its end (Python's re.match).
  // num_steps grows by the states looked at.
  bool matches(std::string_view name, int64_t& num_steps) const;
  bool matches(std::string_view name) const {
    int64_t num_steps = 0;
    return matches(name, num_steps);
  }

  // The most steps that one character of a name can cost.
  size_t num_states() const { return states_.size(); }

 private:
  enum class Kind : uint8_t { characters, split, begin, end, boundary, no_boundary, accept };
  struct State {
    Kind kind = Kind::accept;
    int32_t next = -1;
    int32_t other = -1;      // for a split
    int32_t set_index = -1;  // for characters
  };
  friend class NamePatternParser;

  bool add(int32_t state, std::string_view name, size_t position, std::vector<int32_t>& active,
           std::vector<uint32_t>& mark, uint32_t step, int64_t& num_steps) const;

  std::vector<State> states_;
  std::vector<std::bitset<128>> sets_;
  int32_t start_ = 0;
};

// True if one of `names` is the module's, or the end of it after a dot. transformers reads its lists of unquantized
// modules in this way.
bool is_in_modules(std::string_view module, const std::set<std::string, std::less<>>& names);

}  // namespace pare::runtime
