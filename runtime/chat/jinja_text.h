// Texts as Python writes values and counts characters: str(), repr(), json.dumps(), strip().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

// The limit of one text that a template makes, in bytes. A chat is far shorter, and no template must fill the memory.
constexpr size_t kMaxJinjaText = size_t{64} << 20;
// Throws JinjaError for a text that is longer. What writes long texts asks while it writes.
void check_jinja_text(size_t bytes);

// These throw JinjaError as check_jinja_text does.
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

// Python's strip(), lstrip() and rstrip(): of white space, or of the characters in `of`.
struct StripSides {
  bool left = true;
  bool right = true;
};
std::string_view strip(std::string_view text, StripSides sides, const std::optional<std::string>& of = std::nullopt);

}  // namespace pare::runtime
