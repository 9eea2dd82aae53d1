// Cuts a template into its text and the tokens of its tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

struct JinjaToken {
  enum class Kind { text, begin_print, end_print, begin_block, end_block, name, string, integer, real, symbol, end };
  Kind kind = Kind::end;
  int line = 0;
  std::string text;  // of a string its value, of a symbol its sign
  int64_t integer = 0;
  double real = 0;
};

// Returns the tokens of a template in UTF-8; the last is `end`. White space around tags goes as in Jinja 3.1 with
// trim_blocks and lstrip_blocks, and one line break at the template's end with it. Throws JinjaError (where, line).
std::vector<JinjaToken> lex_jinja(std::string_view text, const std::string& where);

// Starts a message: "where:line: ".
std::string jinja_place(const std::string& where, int line);

}  // namespace pare::runtime
