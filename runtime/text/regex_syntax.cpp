#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "runtime/system/visible_text.h"
#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

// Contents of a character class. \p{Z} with the ASCII controls is exactly White_Space.
constexpr std::string_view kSpaceClass = R"(\p{Z}\t-\r\x{85})";
// Oniguruma counts the superscript digits and fractions of Latin-1 among a word's characters, and no others.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\u00b2\u00b3\u00b9\u00bc-\u00be";

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};
constexpr std::array<std::string_view, 16> kScripts = {
    "Arabic", "Armenian", "Bengali",  "Bopomofo", "Cyrillic", "Devanagari", "Greek", "Han",
    "Hangul", "Hebrew",   "Hiragana", "Katakana", "Latin",    "Tamil",      "Thai",  "Tibetan"};

// Group openings that mean the same in both syntaxes.
constexpr std::array<std::string_view, 7> kGroups = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape_outside_class();
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        copy(utf8_length(c));
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error(where_ + ": the regular expression '" + visible_line(pattern_) + "' uses " +
                             visible_line(what) + ", which pare does not translate");
  }

  void copy(size_t size) {
    out_ += pattern_.substr(at_, size);
    at_ += size;
  }

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void group() {
    if (next_is("(?")) {
      const auto* known = std::find_if(kGroups.begin(), kGroups.end(), [&](auto group) { return next_is(group); });
      if (known == kGroups.end()) refuse("the group '" + std::string(pattern_.substr(at_, 4)) + "'");
      copy(known->size());
    } else if (next_is("(*")) {
      refuse("'(*'");
    } else {
      out_ += "(?:";  // nothing refers to groups, and captures cost time
      ++at_;
    }
  }

  // Translates {n}, {n,} or {n,m}. Everything else after a brace differs: {,m} is 0 to m in Oniguruma, literal in
  // PCRE2.
  void interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0) ++end;
      return end > begin;
    };
    bool valid = digits();
    const bool fixed = end < pattern_.size() && pattern_[end] == '}';
    if (valid && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      digits();
    }
    valid = valid && end < pattern_.size() && pattern_[end] == '}';
    if (!valid) refuse("a '{' that does not open {n}, {n,} or {n,m}");
    copy(end + 1 - at_);
    if (next_is("+")) refuse("'{n,m}+'");         // possessive in PCRE2, a repeated repeat in Oniguruma
    if (fixed && next_is("?")) refuse("'{n}?'");  // n times in PCRE2, n times or not at all in Oniguruma
  }

  // Translates \p{X} or \P{X} at at_; also \p{^X}, which both read as a negation.
  void property() {
    const size_t close = pattern_.find('}', at_);
    if (!pattern_.substr(at_ + 2).starts_with("{") || close == std::string_view::npos) refuse("'\\p' without '{name}'");
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    out_ += pattern_.substr(at_, 3);
    if (name.starts_with('^')) {
      out_ += '^';
      name.remove_prefix(1);
    }
    const auto listed = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
    if (listed(kScripts)) {
      out_ += "sc:";
    } else if (!listed(kCategories)) {
      refuse("the property '" + std::string(name) + "'");
    }
    out_ += name;
    out_ += '}';
    at_ = close + 1;
  }

  // Translates \xHH, \x{H...} or \uHHHH at at_.
  void code_point() {
    const char kind = pattern_[at_ + 1];
    size_t begin = at_ + 2;
    const bool braces = kind == 'x' && begin < pattern_.size() && pattern_[begin] == '{';
    if (braces) ++begin;
    size_t end = begin;
    const size_t longest = braces ? 6 : kind == 'x' ? 2 : 4;
    while (end < pattern_.size() && end - begin < longest &&
           std::isxdigit(static_cast<unsigned char>(pattern_[end])) != 0) {
      ++end;
    }
    const bool complete =
        braces ? end > begin && end < pattern_.size() && pattern_[end] == '}' : end - begin == longest;
    if (!complete) refuse("an incomplete '\\" + std::string(1, kind) + "'");
    // \x80 and up without braces is a byte in Oniguruma.
    if (kind == 'x' && !braces && pattern_[begin] >= '8') refuse("'\\x' with a byte that is not ASCII");
    out_ += "\\x{" + std::string(pattern_.substr(begin, end - begin)) + "}";
    at_ = braces ? end + 1 : end;
  }

  // Translates escapes with one meaning inside and outside a class. Returns false for the others.
  bool common_escape() {
    if (at_ + 1 >= pattern_.size()) refuse("a '\\' at its end");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'x' || c == 'u') {
      code_point();
    } else if (c == 'v') {
      out_ += "\\x{0B}";
      at_ += 2;
    } else if (std::string_view("tnrfea").find(c) != std::string_view::npos) {
      copy(2);
    } else if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
      out_ += '\\';
      ++at_;
      copy(utf8_length(c));
    } else {
      return false;
    }
    return true;
  }

  void escape_outside_class() {
    if (common_escape()) return;
    const char c = pattern_[at_ + 1];
    const std::string_view content = c == 's' || c == 'S' ? kSpaceClass : c == 'w' || c == 'W' ? kWord : R"(\p{Nd})";
    if (std::string_view("sSwWdD").find(c) != std::string_view::npos) {
      out_ += std::islower(static_cast<unsigned char>(c)) != 0 ? "[" : "[^";
      out_ += content;
      out_ += ']';
    } else if (c == 'b' || c == 'B') {  // between a word's character and none: Oniguruma's words, not PCRE2's
      const std::string inside = "[" + std::string(kWord) + "]";
      const bool is_end = c == 'b';
      out_ += "(?:(?<=" + inside + ")(?" + (is_end ? "!" : "=") + inside + ")|(?<!" + inside + ")(?" +
              (is_end ? "=" : "!") + inside + "))";
    } else if (std::string_view("AzZ").find(c) != std::string_view::npos) {
      out_ += std::string("\\") + c;
    } else {
      refuse("'\\" + std::string(1, c) + "'");
    }
    at_ += 2;
  }

  void character_class() {
    copy(1);
    if (next_is("^")) copy(1);
    if (next_is("]")) refuse("a class that starts with ']'");
    bool may_open_range = false;  // true if a '-' here would follow a single character
    while (true) {
      if (at_ >= pattern_.size()) refuse("a '[' that is not closed");
      const char c = pattern_[at_];
      if (c == ']') break;
      if (c == '[') refuse("'[' inside a class");
      if (next_is("&&")) refuse("'&&' inside a class");
      if (c == '-') {
        // A '-' is literal at the ends and a range between two characters. After a set it is escaped, so that PCRE2
        // does not see a range.
        const bool last = pattern_.substr(at_ + 1).starts_with("]");
        out_ += may_open_range && !last ? "-" : "\\-";
        const bool set_follows = !last && at_ + 2 < pattern_.size() && pattern_[at_ + 1] == '\\' &&
                                 std::string_view("sSwWdDpP").find(pattern_[at_ + 2]) != std::string_view::npos;
        if (may_open_range && set_follows) refuse("a range that ends in a set");
        may_open_range = false;
        ++at_;
        continue;
      }
      if (c != '\\') {
        copy(utf8_length(c));
        may_open_range = true;
        continue;
      }
      const char escaped = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
      may_open_range = std::string_view("swdpP").find(escaped) == std::string_view::npos;
      if (escaped == 's' || escaped == 'w' || escaped == 'd') {
        out_ += escaped == 's' ? kSpaceClass : escaped == 'w' ? kWord : std::string_view(R"(\p{Nd})");
        at_ += 2;
      } else if (!common_escape()) {
        refuse("'\\" + std::string(1, escaped) + "' inside a class");
      }
    }
    copy(1);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace pare::runtime
