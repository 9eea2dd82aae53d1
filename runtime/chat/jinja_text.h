// Texts as Python writes values and counts characters: str(), repr(), json.dumps(), slices by code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

// Returns what `{{ value }}` prints: a text as it is, an undefined value as nothing, anything else as Python's repr.
std::string jinja_text(const JinjaValue& value);
// Python's repr(): texts in quotes.
std::string jinja_repr(const JinjaValue& value);

struct JinjaJsonForm {
  bool ensure_ascii = false;
  std::optional<int64_t> indent;  // spaces a level; none: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// Python's json.dumps(). Throws JinjaError for a value that JSON does not have.
std::string jinja_json(const JinjaValue& value, const JinjaJsonForm& form);

// Returns the number of code points of UTF-8 text.
int64_t num_characters(std::string_view text);
// Returns the code points of UTF-8 text, each as a text.
std::vector<std::string> characters(std::string_view text);

// True for characters that Python's str.isspace() and strip() count as white space.
bool is_python_space(char32_t code_point);
// Python's strip(), lstrip() and rstrip(): of white space, or of the characters in `of`.
struct StripSides {
  bool left = true;
  bool right = true;
};
std::string_view strip(std::string_view text, StripSides sides, const std::optional<std::string>& of = std::nullopt);

// Python's lower(), upper(), capitalize() and title() of ASCII text. Throws JinjaError for letters outside of ASCII,
// whose cases these do not know.
enum class LetterCase { lower, upper, capitalized, title };
std::string with_case(std::string_view text, LetterCase letter_case);

}  // namespace pare::runtime
