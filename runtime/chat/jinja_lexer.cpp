#include "runtime/chat/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "runtime/chat/jinja_value.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

using TokenKind = JinjaToken::Kind;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool starts_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Returns the text with every line break as \n, without the one at its end.
std::string with_plain_lines(std::string_view text) {
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 < text.size() && text[i + 1] == '\n') continue;
      lines += '\n';
    } else {
      lines += text[i];
    }
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& where) : text_(with_plain_lines(text)), where_(where) {}

  std::vector<JinjaToken> run() {
    if (const auto offset = find_invalid_utf8(text_)) {
      fail("not UTF-8: byte " + std::to_string(*offset) + " does not start a valid character");
    }
    while (at_ < text_.size()) {
      const size_t tag = find_tag();
      if (tag == std::string::npos) {
        add_text(std::string_view(text_).substr(at_));
        at_ = text_.size();
        break;
      }
      read_tag(tag);
    }
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw JinjaError(jinja_place(where_, line_) + what); }

  void add(TokenKind kind, std::string text = {}) {
    JinjaToken& token = tokens_.emplace_back();
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::text, std::string(text));
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  size_t find_tag() const {
    for (size_t i = at_; (i = text_.find('{', i)) != std::string::npos && i + 1 < text_.size(); ++i) {
      if (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#') return i;
    }
    return std::string::npos;
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  // Adds the text before the tag, without what the tag's sign and lstrip_blocks take away.
  void add_text_before(size_t tag) {
    std::string_view before = std::string_view(text_).substr(at_, tag - at_);
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    if (sign == '-') {
      while (!before.empty()) {
        const size_t last = utf8_previous(before, before.size());
        if (!is_white_space(utf8_decode(before, last))) break;
        before = before.substr(0, last);
      }
    } else if (sign != '+' && text_[tag + 1] != '{') {
      const size_t line_start = before.rfind('\n') + 1;  // 0: there is no line break
      const bool from_line_start = line_start > 0 || starts_line_;
      if (from_line_start && std::ranges::all_of(before.substr(line_start), is_space)) {
        before = before.substr(0, line_start);
      }
    }
    add_text(before);
  }

  void read_tag(size_t tag) {
    add_text_before(tag);
    advance(tag);
    const char kind = peek(1);
    const size_t begin = at_ + (peek(2) == '-' || peek(2) == '+' ? 3 : 2);
    if (kind == '#') {
      const size_t end = text_.find("#}", begin);
      if (end == std::string::npos) fail("the comment that begins here does not end: expected '#}'");
      finish_tag(end, end > begin ? text_[end - 1] : '\0');
      return;
    }
    advance(begin);
    if (kind == '%' && read_raw()) return;
    add(kind == '{' ? TokenKind::begin_print : TokenKind::begin_block);
    read_expression(kind == '{' ? "}}" : "%}");
  }

  // Ends a tag whose closing delimiter is at `end`. A minus before it takes the white space after it; a line break
  // after a block or a comment goes unless a plus stands there.
  void finish_tag(size_t end, char sign) {
    const bool is_print = text_[end] == '}';
    size_t next = end + 2;
    if (sign == '-') {
      while (next < text_.size() && is_white_space(utf8_decode(text_, next))) next += utf8_length(text_[next]);
    } else if (sign != '+' && !is_print && next < text_.size() && text_[next] == '\n') {
      ++next;
    }
    advance(next);
    starts_line_ = next > 0 && text_[next - 1] == '\n';
  }

  // Reads `raw %}...{% endraw %}` if that stands here.
  bool read_raw() {
    size_t i = at_;
    if (!skip_word(i, "raw")) return false;
    if (text_[i] == '-' || text_[i] == '+') ++i;
    finish_raw_begin(i);
    for (size_t tag = at_; (tag = text_.find("{%", tag)) != std::string::npos; tag += 2) {
      size_t end = tag + 2;
      if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
      if (!skip_word(end, "endraw")) continue;
      add_text_before(tag);
      advance(end);
      const bool has_sign = peek() == '-' || peek() == '+';
      finish_tag(at_ + (has_sign ? 1 : 0), has_sign ? peek() : '\0');
      return true;
    }
    fail("the raw block that begins here does not end: expected '{% endraw %}'");
  }

  // A raw block's own line break stays, as in Jinja.
  void finish_raw_begin(size_t end) {
    size_t next = end + 2;
    if (text_[end - 1] == '-') {
      while (next < text_.size() && is_white_space(utf8_decode(text_, next))) next += utf8_length(text_[next]);
    }
    advance(next);
    starts_line_ = text_[next - 1] == '\n';
  }

  // Moves `i` past white space, the word and white space if the end of the tag follows them.
  bool skip_word(size_t& i, std::string_view word) const {
    size_t at = i;
    while (at < text_.size() && is_space(text_[at])) ++at;
    if (text_.compare(at, word.size(), word) != 0) return false;
    at += word.size();
    while (at < text_.size() && is_space(text_[at])) ++at;
    const size_t end = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? at + 1 : at;
    if (text_.compare(end, 2, "%}") != 0) return false;
    i = at;
    return true;
  }

  // Reads the tokens up to the tag's end, which does not count inside of brackets.
  void read_expression(std::string_view end) {
    std::string open;
    const int first_line = line_;
    while (true) {
      while (at_ < text_.size() && is_white_space(utf8_decode(text_, at_))) advance(at_ + utf8_length(text_[at_]));
      if (at_ >= text_.size()) {
        line_ = first_line;
        fail("the tag that begins here does not end: expected '" + std::string(end) + "'");
      }
      const bool has_sign = peek() == '-' || (peek() == '+' && end == "%}");
      const size_t close = at_ + (has_sign ? 1 : 0);
      if (open.empty() && text_.compare(close, 2, end) == 0) {
        add(end == "}}" ? TokenKind::end_print : TokenKind::end_block);
        finish_tag(close, has_sign ? peek() : '\0');
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = peek();
    if (c == '\'' || c == '"') return read_string(c);
    if (is_digit(c)) return read_number();
    if (starts_name(c)) {
      size_t end = at_;
      while (end < text_.size() && (starts_name(text_[end]) || is_digit(text_[end]))) ++end;
      add(TokenKind::name, text_.substr(at_, end - at_));
      return advance(end);
    }
    constexpr std::array<std::string_view, 26> kSymbols = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                           "<",  ">",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* symbol =
        std::ranges::find_if(kSymbols, [&](std::string_view s) { return text_.compare(at_, s.size(), s) == 0; });
    if (symbol == kSymbols.end()) fail("unexpected '" + text_.substr(at_, utf8_length(c)) + "'");
    if (const size_t opens = std::string_view("([{").find(c); opens != std::string_view::npos) {
      open += ")]}"[opens];
    } else if (std::string_view(")]}").find(c) != std::string_view::npos) {
      if (open.empty() || open.back() != c) {
        fail("unexpected '" + std::string(1, c) + "'" +
             (open.empty() ? "" : ", expected '" + std::string(1, open.back()) + "'"));
      }
      open.pop_back();
    }
    add(TokenKind::symbol, std::string(*symbol));
    advance(at_ + symbol->size());
  }

  void read_number() {
    std::string digits;
    size_t i = at_;
    const auto take_digits = [&] {
      while (i < text_.size() &&
             (is_digit(text_[i]) || (text_[i] == '_' && i + 1 < text_.size() && is_digit(text_[i + 1])))) {
        if (text_[i] != '_') digits += text_[i];
        ++i;
      }
    };
    take_digits();
    bool is_real = false;
    if (i + 1 < text_.size() && text_[i] == '.' && is_digit(text_[i + 1])) {
      is_real = true;
      digits += text_[i++];
      take_digits();
    }
    const size_t exponent = i + 1 < text_.size() && (text_[i + 1] == '+' || text_[i + 1] == '-') ? i + 2 : i + 1;
    if (i < text_.size() && (text_[i] == 'e' || text_[i] == 'E') && exponent < text_.size() &&
        is_digit(text_[exponent])) {
      is_real = true;
      digits += text_.substr(i, exponent - i);
      i = exponent;
      take_digits();
    }
    add(is_real ? TokenKind::real : TokenKind::integer, digits);
    JinjaToken& token = tokens_.back();
    const char* last = digits.data() + digits.size();
    const std::from_chars_result read = is_real ? std::from_chars(digits.data(), last, token.real)
                                                : std::from_chars(digits.data(), last, token.integer);
    if (read.ec != std::errc() || read.ptr != last) fail("the number " + digits + " is out of range");
    if (i < text_.size() && starts_name(text_[i])) fail("unexpected '" + text_.substr(i, 1) + "' after a number");
    advance(i);
  }

  void read_string(char quote) {
    std::string value;
    size_t i = at_ + 1;
    while (true) {
      if (i >= text_.size()) fail("the text in quotes that begins here does not end");
      const char c = text_[i++];
      if (c == quote) break;
      if (c != '\\' || i >= text_.size()) {
        value += c;
        continue;
      }
      i = add_escape(i, value);
    }
    add(TokenKind::string, std::move(value));
    advance(i);
  }

  // Adds what the escape after a backslash means in Python, and returns where the text goes on.
  size_t add_escape(size_t i, std::string& value) const {
    const char c = text_[i];
    constexpr std::string_view kNames = "\n\\'\"abfnrtv";
    constexpr std::array<std::string_view, 11> kMeanings = {"",   "\\", "'",  "\"", "\a", "\b",
                                                            "\f", "\n", "\r", "\t", "\v"};
    if (const size_t name = kNames.find(c); name != std::string_view::npos) {
      value += kMeanings[name];
      return i + 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      return add_code_point(i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, /*exactly=*/true, value);
    }
    if (c == 'N') fail("'\\N{...}': characters are not known by their names; write '\\u' and four hex digits");
    if (c >= '0' && c <= '7') return add_code_point(i, 3, 8, /*exactly=*/false, value);
    (value += '\\') += c;
    return i + 1;
  }

  size_t add_code_point(size_t i, size_t num_digits, int base, bool exactly, std::string& value) const {
    uint32_t code_point = 0;
    const char* first = text_.data() + i;
    const char* last = text_.data() + std::min(text_.size(), i + num_digits);
    const std::from_chars_result read = std::from_chars(first, last, code_point, base);
    const auto length = static_cast<size_t>(read.ptr - first);
    if (read.ec != std::errc() || (exactly && length != num_digits) || code_point > 0x10FFFF ||
        (code_point >= 0xD800 && code_point <= 0xDFFF)) {
      fail("an escape in a text gives no character");
    }
    utf8_append(code_point, value);
    return i + length;
  }

  const std::string text_;
  const std::string& where_;
  size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

std::vector<JinjaToken> lex_jinja(std::string_view text, const std::string& where) {
  return Lexer(text, where).run();
}

std::string jinja_place(const std::string& where, int line) {
  return where + ":" + std::to_string(line) + ": ";
}

}  // namespace pare::runtime
