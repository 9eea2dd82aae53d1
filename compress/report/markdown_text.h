// Texts of unknown origin in Markdown: names, events and recipes that must stay what they are.
#pragma once

#include <string>
#include <string_view>

namespace pare::compress {

// Returns the text as one line of Markdown that shows just these characters, in a paragraph or in the cell of a table:
// no emphasis, link, picture, code, entity, HTML or end of the cell begins in it. Control characters are shown
// (visible_line).
std::string markdown_text(std::string_view text);

// Returns a block of code that shows the text. Its fence is longer than any in the text. Control characters but for
// line breaks and tabs are shown. `language` is a word of ours.
std::string markdown_code(std::string_view text, std::string_view language);

}  // namespace pare::compress
