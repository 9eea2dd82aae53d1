// Regular expressions of tokenizer files. They are written for Oniguruma (which the `tokenizers` package uses). Here
// PCRE2 runs them, after a translation that keeps their meaning or refuses constructs that would mean something else.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pare::runtime {

// Returns an Oniguruma expression in PCRE2's syntax, for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE. The two differ in:
//   \s   Oniguruma: White_Space. PCRE2 adds U+180E.                  \w  Alphabetic, M, Nd, Pc; PCRE2 10.42: L, N, '_'.
//   \p{Han} is a script; PCRE2 would take the script extensions.     \v  vertical tab; in PCRE2 a class of line ends.
// Throws std::runtime_error naming the expression and the construct that is not translated (back references, named
// groups, classes in classes, \b, \h, \R, \X, ...).
std::string translate_regex(std::string_view pattern, const std::string& where);

class Regex {
 public:
  // Throws std::runtime_error (where, expression, reason).
  Regex(std::string_view pattern, const std::string& where);
  // Returns the expression of one extended grapheme cluster (UAX #29).
  static Regex graphemes();
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls `found(begin, end)` for the matches in `text` (valid UTF-8) from left to right, as Oniguruma's find_iter
  // does: an empty match directly after the last match is skipped. Throws std::runtime_error if a match needs more
  // steps or memory than is allowed. May be called from several threads.
  void for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const;
  // Returns where the first match ends, or 0 if there is none. Throws as above.
  size_t end_of_first_match(std::string_view text) const;

 private:
  Regex() = default;
  // Returns begin and end of the next match, or nothing.
  std::optional<std::pair<size_t, size_t>> match(std::string_view text, size_t from) const;
  void compile(const std::string& translated);
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace pare::runtime
