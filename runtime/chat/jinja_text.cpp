#include "runtime/chat/jinja_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "runtime/chat/python_case.h"
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

void add_hex_escape(char32_t code_point, const char* prefix, size_t num_digits, std::string& text) {
  text += prefix;
  for (size_t i = num_digits; i-- > 0;) text += "0123456789abcdef"[(code_point >> (4 * i)) & 15];
}

void add_quoted(std::string_view value, std::string& text) {
  const bool has_single = value.find('\'') != std::string_view::npos;
  const char quote = has_single && value.find('"') == std::string_view::npos ? '"' : '\'';
  text += quote;
  for (size_t at = 0; at < value.size(); at += utf8_length(value[at])) {
    const char32_t c = utf8_decode(value, at);
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      (text += '\\') += static_cast<char>(c);
    } else if (c == U'\n' || c == U'\r' || c == U'\t') {
      (text += '\\') += c == U'\n' ? 'n' : c == U'\r' ? 'r' : 't';
    } else if (is_python_printable(c)) {
      text += value.substr(at, utf8_length(value[at]));
    } else if (c <= 0xFF) {
      add_hex_escape(c, "\\x", 2, text);
    } else if (c <= 0xFFFF) {
      add_hex_escape(c, "\\u", 4, text);
    } else {
      add_hex_escape(c, "\\U", 8, text);
    }
    check_jinja_text(text.size());
  }
  text += quote;
}

void add_repr(const JinjaValue& value, std::string& text);

// Adds the items, each of which `add` adds.
template <typename Items, typename Add>
void add_items(const Items& items, std::string& text, const Add& add) {
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) text += ", ";
    is_first = false;
    add(item);
    check_jinja_text(text.size());
  }
}

void add_repr(const JinjaValue& value, std::string& text) {
  if (value.is_undefined()) {
    text += "Undefined";
  } else if (value.is_none()) {
    text += "None";
  } else if (value.boolean() != nullptr) {
    text += *value.boolean() ? "True" : "False";
  } else if (value.integer() != nullptr) {
    text += std::to_string(*value.integer());
  } else if (value.real() != nullptr) {
    text += real_text(*value.real());
  } else if (value.text() != nullptr) {
    add_quoted(*value.text(), text);
  } else if (const JinjaList* list = value.list()) {
    text += list->is_tuple ? '(' : '[';
    add_items(list->items, text, [&](const JinjaValue& item) { add_repr(item, text); });
    text += !list->is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
  } else if (const JinjaDict* dict = value.dict()) {
    text += '{';
    add_items(dict->items, text, [&](const auto& item) {
      add_repr(item.first, text);
      text += ": ";
      add_repr(item.second, text);
    });
    text += '}';
  } else {
    throw JinjaError(std::string("cannot print ") + value.type_name());
  }
}

class JsonWriter {
 public:
  JsonWriter(const JinjaJsonForm& form, std::string& text) : form_(form), text_(text) {}

  void write(const JinjaValue& value, int64_t level) {
    if (value.text() != nullptr) {
      write_quoted(*value.text());
    } else if (value.is_none()) {
      text_ += "null";
    } else if (value.boolean() != nullptr) {
      text_ += *value.boolean() ? "true" : "false";
    } else if (value.real() != nullptr && !std::isfinite(*value.real())) {
      text_ += std::isnan(*value.real()) ? "NaN" : *value.real() < 0 ? "-Infinity" : "Infinity";
    } else if (value.is_number()) {
      text_ += jinja_text(value);
    } else if (value.list() != nullptr) {
      write_items('[', ']', value.list()->items, level, [&](const JinjaValue& item) { write(item, level + 1); });
    } else if (value.dict() != nullptr) {
      write_dict(*value.dict(), level);
    } else {
      throw JinjaError(std::string("tojson: expected what JSON has, found ") + value.type_name());
    }
  }

 private:
  void write_quoted(std::string_view value) {
    text_ += '"';
    for (size_t at = 0; at < value.size(); at += utf8_length(value[at])) {
      const char32_t c = utf8_decode(value, at);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      const size_t escape = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        (text_ += '\\') += "\"\\nrtbf"[escape];
      } else if (c < 0x20 || (form_.ensure_ascii && c > 0x7E && c <= 0xFFFF)) {
        add_hex_escape(c, "\\u", 4, text_);
      } else if (form_.ensure_ascii && c > 0xFFFF) {  // a surrogate pair
        add_hex_escape(0xD800 + ((c - 0x10000) >> 10), "\\u", 4, text_);
        add_hex_escape(0xDC00 + ((c - 0x10000) & 0x3FF), "\\u", 4, text_);
      } else {
        text_ += value.substr(at, utf8_length(value[at]));
      }
      check_jinja_text(text_.size());
    }
    text_ += '"';
  }

  void write_dict(const JinjaDict& dict, int64_t level) {
    auto items = dict.items;
    if (form_.sort_keys) {
      std::ranges::stable_sort(items, [](const auto& a, const auto& b) { return jinja_less(a.first, b.first); });
    }
    write_items('{', '}', items, level, [&](const auto& item) {
      const JinjaValue& key = item.first;
      if (key.list() != nullptr || key.dict() != nullptr) throw JinjaError("tojson: a key must be a text");
      if (key.text() != nullptr) {
        write_quoted(*key.text());
      } else {  // numbers and the like, in quotes
        text_ += '"';
        write(key, 0);
        text_ += '"';
      }
      text_ += form_.key_separator;
      write(item.second, level + 1);
    });
  }

  void begin_line(int64_t level) {
    if (!form_.indent) return;
    text_ += '\n';
    text_.append(static_cast<size_t>(std::max<int64_t>(0, *form_.indent * level)), ' ');
  }

  template <typename Items, typename Write>
  void write_items(char open, char close, const Items& items, int64_t level, const Write& write_item) {
    text_ += open;
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) text_ += form_.item_separator;
      is_first = false;
      begin_line(level + 1);
      write_item(item);
      check_jinja_text(text_.size());
    }
    if (!items.empty()) begin_line(level);
    text_ += close;
  }

  const JinjaJsonForm& form_;
  std::string& text_;
};

}  // namespace

void check_jinja_text(size_t bytes) {
  if (bytes > kMaxJinjaText) {
    throw JinjaError("a text is too long: more than " + std::to_string(kMaxJinjaText) + " bytes");
  }
}

std::string jinja_text(const JinjaValue& value) {
  if (value.is_undefined()) return "";
  return value.text() != nullptr ? *value.text() : jinja_repr(value);
}

std::string jinja_repr(const JinjaValue& value) {
  std::string text;
  add_repr(value, text);
  return text;
}

std::string jinja_json(const JinjaValue& value, const JinjaJsonForm& form) {
  std::string text;
  JsonWriter(form, text).write(value, 0);
  return text;
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

std::string_view strip(std::string_view text, StripSides sides, const std::optional<std::string>& of) {
  std::set<char32_t> taken;
  for (size_t at = 0; of && at < of->size(); at += utf8_length((*of)[at])) taken.insert(utf8_decode(*of, at));
  const auto is_taken = [&](size_t at) {
    const char32_t c = utf8_decode(text, at);
    return of ? taken.contains(c) : is_python_space(c);
  };
  while (sides.left && !text.empty() && is_taken(0)) text.remove_prefix(utf8_length(text[0]));
  while (sides.right && !text.empty() && is_taken(utf8_previous(text, text.size()))) {
    text.remove_suffix(text.size() - utf8_previous(text, text.size()));
  }
  return text;
}

}  // namespace pare::runtime
