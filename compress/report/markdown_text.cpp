#include "compress/report/markdown_text.h"

#include <algorithm>

#include "runtime/system/visible_text.h"

namespace pare::compress {

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kSpecial = "\\`*_[]<>|#&~$!";
  std::string shown;
  for (const char c : runtime::visible_line(text)) {
    if (kSpecial.find(c) != std::string_view::npos) shown += '\\';
    shown += c;
  }
  return shown;
}

std::string markdown_code(std::string_view text, std::string_view language) {
  std::string shown = runtime::visible(text);
  size_t longest = 0, length = 0;
  for (const char c : shown) {
    length = c == '`' ? length + 1 : 0;
    longest = std::max(longest, length);
  }
  const std::string fence(std::max<size_t>(3, longest + 1), '`');
  if (!shown.ends_with('\n')) shown += '\n';
  return fence + std::string(language) + "\n" + shown + fence + "\n";
}

}  // namespace pare::compress
