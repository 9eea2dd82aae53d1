#include <algorithm>
#include <array>
#include <map>

#include "runtime/chat/jinja_operations.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/chat/python_case.h"
#include "runtime/system/interrupt.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

using TextMethod = JinjaValue (*)(const std::string& text, JinjaArguments& arguments);

std::optional<std::string> optional_text(JinjaArguments& arguments, std::string_view name) {
  const JinjaValue value = arguments.take(name, JinjaNone{});
  if (value.is_none()) return std::nullopt;
  if (value.text() == nullptr) {
    throw JinjaError(arguments.callee + ": expected a text as '" + std::string(name) + "', found " + value.type_name());
  }
  return *value.text();
}

// Cuts at white space, as split() without a separator does: after `most` cuts the rest stays as it is.
std::vector<std::string> words(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string> all;
  const StripSides side{.left = !from_right, .right = from_right};
  for (text = strip(text, side); !text.empty(); text = strip(text, side)) {
    check_jinja_items(all.size());
    size_t cut = from_right ? 0 : text.size();
    if (most < 0 || static_cast<int64_t>(all.size()) < most) {
      size_t at = from_right ? text.size() : 0;
      while (from_right ? at > 0 : at < text.size()) {
        const size_t next = from_right ? utf8_previous(text, at) : at + utf8_length(text[at]);
        if (is_python_space(utf8_decode(text, std::min(at, next)))) break;
        at = next;
      }
      cut = at;
    }
    all.emplace_back(from_right ? text.substr(cut) : text.substr(0, cut));
    text = from_right ? text.substr(0, cut) : text.substr(cut);
  }
  if (from_right) std::ranges::reverse(all);
  return all;
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator, int64_t most, bool from_right) {
  if (separator.empty()) throw JinjaError("split: the separator is empty");
  std::vector<std::string> all;
  while (most < 0 || static_cast<int64_t>(all.size()) < most) {
    throw_if_interrupted();
    check_jinja_items(all.size());
    const size_t found = from_right ? find_last(text, separator) : find_first(text, separator);
    if (found == std::string_view::npos) break;
    all.emplace_back(from_right ? text.substr(found + separator.size()) : text.substr(0, found));
    text = from_right ? text.substr(0, found) : text.substr(found + separator.size());
  }
  all.emplace_back(text);
  if (from_right) std::ranges::reverse(all);
  return all;
}

JinjaValue texts(std::vector<std::string> all, bool is_tuple = false) {
  JinjaList list{.items = {}, .is_tuple = is_tuple};
  for (std::string& text : all) list.items.emplace_back(std::move(text));
  return list;
}

template <bool kFromRight>
JinjaValue split(const std::string& text, JinjaArguments& arguments) {
  const std::optional<std::string> separator = optional_text(arguments, "sep");
  const int64_t most = arguments.take_integer("maxsplit", -1);
  return texts(separator ? split_at(text, *separator, most, kFromRight) : words(text, most, kFromRight));
}

template <bool kFromRight>
JinjaValue partition(const std::string& text, JinjaArguments& arguments) {
  const std::string separator = arguments.require_text("sep");
  std::vector<std::string> parts = split_at(text, separator, 1, kFromRight);
  if (parts.size() == 2) return texts({parts[0], separator, parts[1]}, /*is_tuple=*/true);
  return texts(kFromRight ? std::vector<std::string>{"", "", text} : std::vector<std::string>{text, "", ""}, true);
}

JinjaValue split_lines(const std::string& text, JinjaArguments& arguments) {
  const bool keeps_ends = arguments.take("keepends", false).is_true();
  std::vector<std::string> lines;
  for (size_t begin = 0, at = 0; at < text.size();) {
    const char32_t c = utf8_decode(text, at);
    size_t next = at + utf8_length(text[at]);
    const bool is_break =
        (c >= U'\n' && c <= U'\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (c == U'\r' && next < text.size() && text[next] == '\n') ++next;
    if (is_break || next == text.size()) {
      lines.push_back(text.substr(begin, (is_break && !keeps_ends ? at : next) - begin));
      begin = next;
      check_jinja_items(lines.size());
    }
    at = next;
  }
  return texts(std::move(lines));
}

template <bool kLeft, bool kRight>
JinjaValue strip_method(const std::string& text, JinjaArguments& arguments) {
  return strip(text, {.left = kLeft, .right = kRight}, optional_text(arguments, "chars"));
}

template <LetterCase kCase>
JinjaValue case_method(const std::string& text, JinjaArguments&) {
  return with_case(text, kCase);
}

// startswith and endswith take a text or a tuple of texts.
template <bool kAtEnd>
JinjaValue has_affix(const std::string& text, JinjaArguments& arguments) {
  const JinjaValue affix = arguments.require("affix");
  const auto matches = [&](const JinjaValue& one) {
    if (one.text() == nullptr) throw JinjaError(arguments.callee + ": expected a text, found " + one.type_name());
    return kAtEnd ? text.ends_with(*one.text()) : text.starts_with(*one.text());
  };
  if (affix.list() == nullptr) return matches(affix);
  return std::ranges::any_of(affix.list()->items, matches);
}

template <bool kAtEnd>
JinjaValue remove_affix(const std::string& text, JinjaArguments& arguments) {
  const std::string affix = arguments.require_text("affix");
  if (kAtEnd) return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
  return text.starts_with(affix) ? text.substr(affix.size()) : text;
}

template <bool kFromRight, bool kMustBeThere>
JinjaValue find_method(const std::string& text, JinjaArguments& arguments) {
  const std::string part = arguments.require_text("sub");
  const size_t found = kFromRight ? find_last(text, part) : find_first(text, part);
  if (found != std::string::npos) return num_characters(std::string_view(text).substr(0, found));
  if (kMustBeThere) throw JinjaError(arguments.callee + ": the text does not hold '" + part + "'");
  return -1;
}

JinjaValue count_method(const std::string& text, JinjaArguments& arguments) {
  const std::string part = arguments.require_text("sub");
  if (part.empty()) return num_characters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = find_first(text, part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

JinjaValue replace_method(const std::string& text, JinjaArguments& arguments) {
  const std::string old_part = arguments.require_text("old"), new_part = arguments.require_text("new");
  return replaced(text, old_part, new_part, arguments.take_integer("count", -1));
}

JinjaValue join_method(const std::string& text, JinjaArguments& arguments) {
  std::string joined;
  bool is_first = true;
  for (const JinjaValue& item : jinja_items(arguments.require("iterable"))) {
    if (item.text() == nullptr) throw JinjaError(std::string("join: expected texts, found ") + item.type_name());
    if (!is_first) joined += text;
    is_first = false;
    joined += *item.text();
    check_jinja_text(joined.size());
  }
  return joined;
}

template <bool (*kIsOne)(char32_t)>
JinjaValue all_are(const std::string& text, JinjaArguments&) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    if (!kIsOne(utf8_decode(text, at))) return false;
  }
  return !text.empty();
}

// islower and isupper: there are letters of this case, and none of another.
template <bool (*kIsWanted)(char32_t), bool (*kIsOther)(char32_t)>
JinjaValue has_one_case(const std::string& text, JinjaArguments&) {
  bool is_there = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_decode(text, at);
    if (kIsOther(c) || is_python_title(c)) return false;
    is_there = is_there || kIsWanted(c);
  }
  return is_there;
}

// str.format of {} , {0} and {name}, without formats of their own.
JinjaValue format_method(const std::string& text, JinjaArguments& arguments) {
  std::string result;
  size_t next = 0;
  bool has_index = false;
  const std::vector<JinjaValue> positional = arguments.positional;
  for (size_t i = 0; i < text.size(); ++i) {
    check_jinja_text(result.size());
    if ((text[i] == '{' || text[i] == '}') && i + 1 < text.size() && text[i + 1] == text[i]) {
      result += text[i++];
      continue;
    }
    if (text[i] != '{') {
      result += text[i];
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string::npos) throw JinjaError("format: '" + text + "' has a brace that does not end");
    const std::string field = text.substr(i + 1, end - i - 1);
    const bool is_index =
        !field.empty() && field.size() < 4 && std::ranges::all_of(field, [](char c) { return c >= '0' && c <= '9'; });
    if (field.empty() || is_index) {
      if (is_index ? next > 0 : has_index) throw JinjaError("format: '" + text + "' mixes {} and {0}");
      has_index = is_index;
      const size_t index = field.empty() ? next++ : std::stoul(field);
      if (index >= positional.size()) throw JinjaError("format: '" + text + "' needs more values than it is given");
      result += jinja_text(positional[index]);
    } else {
      const auto named = std::ranges::find_if(arguments.named, [&](const auto& item) { return item.first == field; });
      if (named == arguments.named.end()) throw JinjaError("format: there is no value for '{" + field + "}'");
      result += jinja_text(named->second);
    }
    i = end;
  }
  arguments.positional.clear();
  arguments.named.clear();
  return result;
}

const std::map<std::string_view, TextMethod>& text_methods() {
  static const std::map<std::string_view, TextMethod> kMethods = {
      {"strip", strip_method<true, true>},
      {"lstrip", strip_method<true, false>},
      {"rstrip", strip_method<false, true>},
      {"split", split<false>},
      {"rsplit", split<true>},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"splitlines", split_lines},
      {"lower", case_method<LetterCase::lower>},
      {"upper", case_method<LetterCase::upper>},
      {"capitalize", case_method<LetterCase::capitalized>},
      {"title", case_method<LetterCase::title>},
      {"startswith", has_affix<false>},
      {"endswith", has_affix<true>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"find", find_method<false, false>},
      {"rfind", find_method<true, false>},
      {"index", find_method<false, true>},
      {"rindex", find_method<true, true>},
      {"count", count_method},
      {"replace", replace_method},
      {"join", join_method},
      {"format", format_method},
      {"isdigit", all_are<is_python_digit>},
      {"isnumeric", all_are<is_python_numeric>},
      {"isdecimal", all_are<is_python_decimal>},
      {"isalpha", all_are<is_python_alphabetic>},
      {"isalnum", all_are<is_python_alphanumeric>},
      {"isspace", all_are<is_python_space>},
      {"islower", has_one_case<is_python_lower, is_python_upper>},
      {"isupper", has_one_case<is_python_upper, is_python_lower>},
  };
  return kMethods;
}

constexpr std::array<std::string_view, 5> kDictMethods = {"get", "copy", "items", "keys", "values"};

std::optional<JinjaValue> call_dict_method(const JinjaValue& value, const std::string& name,
                                           JinjaArguments& arguments) {
  const JinjaDict& dict = *value.dict();
  if (name == "get") {
    const JinjaValue key = arguments.require("key");
    JinjaValue otherwise = arguments.take("default", JinjaNone{});
    const JinjaValue* found = dict.find(key);
    return found != nullptr ? *found : std::move(otherwise);
  }
  if (name == "copy") return value;
  if (name != "items" && name != "keys" && name != "values") return std::nullopt;
  std::vector<JinjaValue> items;
  for (const auto& [key, item] : dict.items) {
    items.push_back(name == "items" ? JinjaValue::tuple({key, item}) : name == "keys" ? key : item);
  }
  return items;
}

std::optional<JinjaValue> call_list_method(const JinjaValue& value, const std::string& name,
                                           JinjaArguments& arguments) {
  const std::vector<JinjaValue>& items = value.list()->items;
  if (name == "copy" && !value.list()->is_tuple) return value;
  if (name == "count") return std::ranges::count(items, arguments.require("value"));
  if (name != "index") return std::nullopt;
  const JinjaValue wanted = arguments.require("value");
  const auto found = std::ranges::find(items, wanted);
  if (found == items.end()) throw JinjaError("index: the list does not hold " + jinja_repr(wanted));
  return found - items.begin();
}

bool changes_value(const JinjaValue& value, std::string_view name) {
  constexpr std::string_view kOfLists = " append extend insert remove pop clear sort reverse ";
  constexpr std::string_view kOfDicts = " update pop popitem setdefault clear ";
  const std::string_view methods = value.list() != nullptr ? kOfLists : value.dict() != nullptr ? kOfDicts : "";
  return methods.find(" " + std::string(name) + " ") != std::string_view::npos;
}

}  // namespace

bool has_jinja_method(const JinjaValue& value, std::string_view name) {
  if (value.text() != nullptr) return text_methods().contains(name);
  if (value.dict() != nullptr) return std::ranges::find(kDictMethods, name) != kDictMethods.end();
  return value.list() != nullptr && (name == "count" || name == "index" || name == "copy");
}

std::optional<JinjaValue> call_jinja_method(const JinjaValue& value, const std::string& name,
                                            JinjaArguments& arguments) {
  if (changes_value(value, name)) {
    throw JinjaError("'" + name + "' would change a " + value.type_name() + ", which a template may not");
  }
  std::optional<JinjaValue> result;
  if (value.text() != nullptr) {
    const auto method = text_methods().find(name);
    if (method != text_methods().end()) result = method->second(*value.text(), arguments);
  } else if (value.dict() != nullptr) {
    result = call_dict_method(value, name, arguments);
  } else if (value.list() != nullptr) {
    result = call_list_method(value, name, arguments);
  }
  if (result) arguments.finish();
  return result;
}

}  // namespace pare::runtime
