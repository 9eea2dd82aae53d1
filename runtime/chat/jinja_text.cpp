#include "runtime/chat/jinja_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

// Returns the shortest digits that give the same double, as Python's repr(float) writes them (float_repr_style short):
// an exponent below 1e-4 and from 1e16 on.
std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const double size = std::abs(number);
  const bool has_exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  std::array<char, 40> buffer;
  const std::to_chars_result end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                    has_exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer.data(), end.ptr);
  if (!has_exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string hex_escape(char32_t code_point, const char* prefix, size_t num_digits) {
  std::string digits(num_digits, '0');
  for (size_t i = num_digits; i-- > 0; code_point >>= 4) digits[i] = "0123456789abcdef"[code_point & 15];
  return prefix + digits;
}

struct CodePoints {
  char32_t first, last;
};
// The code points that Python's str.isprintable() denies, but for unassigned ones.
constexpr std::array kNotPrintable = {
    CodePoints{0x00, 0x1F},     CodePoints{0x7F, 0xA0},       CodePoints{0xAD, 0xAD},     CodePoints{0x600, 0x605},
    CodePoints{0x1680, 0x1680}, CodePoints{0x180E, 0x180E},   CodePoints{0x2000, 0x200F}, CodePoints{0x2028, 0x202F},
    CodePoints{0x205F, 0x206F}, CodePoints{0x3000, 0x3000},   CodePoints{0xD800, 0xF8FF}, CodePoints{0xFEFF, 0xFEFF},
    CodePoints{0xFFF0, 0xFFFB}, CodePoints{0xE0000, 0x10FFFF}};

bool is_printable(char32_t code_point) {
  return std::ranges::none_of(
      kNotPrintable, [&](const CodePoints& range) { return code_point >= range.first && code_point <= range.last; });
}

std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_decode(text, at);
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      (result += '\\') += static_cast<char>(c);
    } else if (c == U'\n' || c == U'\r' || c == U'\t') {
      (result += '\\') += c == U'\n' ? 'n' : c == U'\r' ? 'r' : 't';
    } else if (is_printable(c)) {
      result += text.substr(at, utf8_length(text[at]));
    } else if (c <= 0xFF) {
      result += hex_escape(c, "\\x", 2);
    } else {
      result += c <= 0xFFFF ? hex_escape(c, "\\u", 4) : hex_escape(c, "\\U", 8);
    }
  }
  return result + quote;
}

// Joins the items' texts, which `write` gives.
template <typename Items, typename Write>
std::string joined(const Items& items, const Write& write) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += write(item);
  }
  return text;
}

std::string json_quoted(std::string_view text, bool ensure_ascii) {
  std::string result = "\"";
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_decode(text, at);
    constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    const size_t escape = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
    if (escape != std::string_view::npos) {
      (result += '\\') += "\"\\nrtbf"[escape];
    } else if (c < 0x20 || (ensure_ascii && c > 0x7E && c <= 0xFFFF)) {
      result += hex_escape(c, "\\u", 4);
    } else if (ensure_ascii && c > 0xFFFF) {  // a surrogate pair
      result += hex_escape(0xD800 + ((c - 0x10000) >> 10), "\\u", 4);
      result += hex_escape(0xDC00 + ((c - 0x10000) & 0x3FF), "\\u", 4);
    } else {
      result += text.substr(at, utf8_length(text[at]));
    }
  }
  return result + '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JinjaJsonForm& form) : form_(form) {}

  std::string write(const JinjaValue& value, int64_t level) const {
    if (value.text() != nullptr) return json_quoted(*value.text(), form_.ensure_ascii);
    if (value.is_none()) return "null";
    if (value.boolean() != nullptr) return *value.boolean() ? "true" : "false";
    if (value.real() != nullptr && !std::isfinite(*value.real())) {
      return std::isnan(*value.real()) ? "NaN" : *value.real() < 0 ? "-Infinity" : "Infinity";
    }
    if (value.is_number()) return jinja_text(value);
    if (value.list() != nullptr) {
      return within('[', ']', value.list()->items, level,
                    [&](const JinjaValue& item) { return write(item, level + 1); });
    }
    if (value.dict() != nullptr) return write_dict(*value.dict(), level);
    throw JinjaError(std::string("tojson: JSON has no ") + value.type_name());
  }

 private:
  std::string write_dict(const JinjaDict& dict, int64_t level) const {
    auto items = dict.items;
    if (form_.sort_keys) {
      std::ranges::stable_sort(items, [](const auto& a, const auto& b) { return jinja_less(a.first, b.first); });
    }
    return within('{', '}', items, level, [&](const auto& item) {
      const JinjaValue& key = item.first;
      if (key.list() != nullptr || key.dict() != nullptr) throw JinjaError("tojson: a key must be a text");
      const std::string name = key.text() != nullptr ? *key.text() : write(key, 0);
      return json_quoted(name, form_.ensure_ascii) + form_.key_separator + write(item.second, level + 1);
    });
  }

  template <typename Items, typename Write>
  std::string within(char open, char close, const Items& items, int64_t level, const Write& write_item) const {
    std::string text(1, open);
    const auto begin_line = [&](int64_t at) {
      if (form_.indent)
        (text += '\n') += std::string(static_cast<size_t>(std::max<int64_t>(0, *form_.indent * at)), ' ');
    };
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) text += form_.item_separator;
      is_first = false;
      begin_line(level + 1);
      text += write_item(item);
    }
    if (!items.empty()) begin_line(level);
    return text + close;
  }

  const JinjaJsonForm& form_;
};

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

std::string jinja_text(const JinjaValue& value) {
  if (value.is_undefined()) return "";
  return value.text() != nullptr ? *value.text() : jinja_repr(value);
}

std::string jinja_repr(const JinjaValue& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.boolean() != nullptr) return *value.boolean() ? "True" : "False";
  if (value.integer() != nullptr) return std::to_string(*value.integer());
  if (value.real() != nullptr) return real_text(*value.real());
  if (value.text() != nullptr) return python_quoted(*value.text());
  if (const JinjaList* list = value.list()) {
    const std::string items = joined(list->items, jinja_repr);
    if (!list->is_tuple) return "[" + items + "]";
    return "(" + items + (list->items.size() == 1 ? ",)" : ")");
  }
  if (const JinjaDict* dict = value.dict()) {
    return "{" +
           joined(dict->items,
                  [](const auto& item) { return jinja_repr(item.first) + ": " + jinja_repr(item.second); }) +
           "}";
  }
  throw JinjaError(std::string("cannot print ") + value.type_name());
}

std::string jinja_json(const JinjaValue& value, const JinjaJsonForm& form) {
  return JsonWriter(form).write(value, 0);
}

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    all.emplace_back(text.substr(at, utf8_length(text[at])));
  }
  return all;
}

bool is_python_space(char32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

std::string_view strip(std::string_view text, StripSides sides, const std::optional<std::string>& of) {
  const auto is_taken = [&](size_t at) {
    if (!of) return is_python_space(utf8_decode(text, at));
    // A character's bytes are found in valid UTF-8 at the start of a character alone.
    return of->find(text.substr(at, utf8_length(text[at]))) != std::string::npos;
  };
  while (sides.left && !text.empty() && is_taken(0)) text.remove_prefix(utf8_length(text[0]));
  while (sides.right && !text.empty() && is_taken(utf8_previous(text, text.size()))) {
    text.remove_suffix(text.size() - utf8_previous(text, text.size()));
  }
  return text;
}

std::string with_case(std::string_view text, LetterCase letter_case) {
  std::string result(text);
  bool starts_word = true;  // title: after anything that is no letter
  for (size_t i = 0; i < result.size(); ++i) {
    char& c = result[i];
    if (static_cast<unsigned char>(c) >= 0x80) {
      throw JinjaError("the case of letters outside of ASCII cannot be changed, found '" + std::string(text) + "'");
    }
    const bool is_upper = letter_case == LetterCase::upper || (letter_case == LetterCase::capitalized && i == 0) ||
                          (letter_case == LetterCase::title && starts_word);
    starts_word = !is_ascii_letter(c);
    if (is_ascii_letter(c)) c = static_cast<char>(is_upper ? c & ~0x20 : c | 0x20);
  }
  return result;
}

}  // namespace pare::runtime
