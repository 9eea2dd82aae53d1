#include "runtime/text/python_text.h"

#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

}  // namespace

std::string_view strip_end(std::string_view text) {
  while (!text.empty()) {
    const size_t last = utf8_previous(text, text.size());
    if (!is_python_space(utf8_decode(text, last))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view strip(std::string_view text) {
  text = strip_end(text);
  while (!text.empty() && is_python_space(utf8_decode(text, 0))) text.remove_prefix(utf8_length(text[0]));
  return text;
}

std::string replaced(std::string text, std::string_view old, std::string_view with) {
  for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + with.size())) {
    text.replace(at, old.size(), with);
  }
  return text;
}

}  // namespace pare::runtime
