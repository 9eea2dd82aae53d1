#include "runtime/chat/jinja_filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_set>

#include "runtime/chat/jinja_operations.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/chat/python_case.h"
#include "runtime/system/interrupt.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;
using Filter = Value (*)(const Value& value, Arguments& arguments);

std::string text_of(const Value& value) {
  return jinja_text(value);
}

template <LetterCase kCase>
Value change_case(const Value& value, Arguments&) {
  return with_case(text_of(value), kCase);
}

// Jinja's own rule: after white space and after -({[< a word begins.
Value title(const Value& value, Arguments&) {
  const std::string text = text_of(value);
  const auto ends_word = [&](size_t at) {
    return is_python_space(utf8_decode(text, at)) || std::string_view("-({[<").find(text[at]) != std::string_view::npos;
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && !ends_word(end)) end += utf8_length(text[end]);
    if (end > at) {
      const size_t first = utf8_length(text[at]);
      result += with_case(text.substr(at, first), LetterCase::upper);
      result += with_case(std::string_view(text).substr(at + first, end - at - first), LetterCase::lower);
    } else {
      end += utf8_length(text[end]);
      result += text.substr(at, end - at);
    }
    at = end;
  }
  return result;
}

Value default_value(const Value& value, Arguments& arguments) {
  Value otherwise = arguments.take("default_value", "");
  const bool for_false_too = arguments.take("boolean", false).is_true();
  return value.is_undefined() || (for_false_too && !value.is_true()) ? otherwise : value;
}

Value trim(const Value& value, Arguments& arguments) {
  const Value chars = arguments.take("chars", JinjaNone{});
  const std::string text = text_of(value);
  return strip(text, {}, chars.is_none() ? std::nullopt : std::optional(text_of(chars)));
}

Value join(const Value& value, Arguments& arguments) {
  const std::string between = text_of(arguments.take("d", ""));
  const Value attribute = arguments.take("attribute", JinjaNone{});
  std::string text;
  bool is_first = true;
  for (const Value& item : jinja_items(value)) {
    if (!is_first) text += between;
    is_first = false;
    text += text_of(attribute.is_none() ? item : jinja_path(item, attribute));
    check_jinja_text(text.size());
  }
  return text;
}

Value replace(const Value& value, Arguments& arguments) {
  const std::string old_part = text_of(arguments.require("old")), new_part = text_of(arguments.require("new"));
  const Value count = arguments.take("count", JinjaNone{});
  if (!count.is_none() && !count.is_integral()) throw JinjaError("replace: 'count' must be a whole number");
  return replaced(text_of(value), old_part, new_part, count.is_none() ? -1 : count.as_integer());
}

Value indent(const Value& value, Arguments& arguments) {
  const Value width = arguments.take("width", 4);
  const bool first = arguments.take("first", false).is_true(), blank = arguments.take("blank", false).is_true();
  if (width.text() == nullptr && !width.is_integral()) {
    throw JinjaError(std::string("indent: expected a whole number or a text as 'width', found ") + width.type_name());
  }
  if (width.is_integral() && width.as_integer() > 1000) throw JinjaError("indent: the width is too large");
  const std::string spaces = width.text() != nullptr
                                 ? *width.text()
                                 : std::string(static_cast<size_t>(std::max<int64_t>(0, width.as_integer())), ' ');
  // As in Jinja, a line break at the end is one more line.
  Arguments none;
  const Value lines = *call_jinja_method(Value(text_of(value) + "\n"), "splitlines", none);
  std::string result = first ? spaces : "";
  for (size_t i = 0; i < lines.list()->items.size(); ++i) {
    const std::string& line = *lines.list()->items[i].text();
    if (i > 0) result += '\n';
    if (i > 0 && (blank || !line.empty())) result += spaces;
    result += line;
    check_jinja_text(result.size());
  }
  return result;
}

// Returns the number that a text begins and ends with, but for white space; none if it is no number.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  text = strip(text, {});
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {  // an underscore may stand between two digits
    const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) digits += text[i];
  }
  Number number = 0;
  const std::from_chars_result read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Value to_integer(const Value& value, Arguments& arguments) {
  const Value otherwise = arguments.take("default", 0);
  if (arguments.take_integer("base", 10) != 10) throw JinjaError("int: expected base 10");
  std::optional<double> number;
  if (value.is_integral()) return value.as_integer();
  if (value.real() != nullptr) number = *value.real();
  if (value.text() != nullptr) {
    if (const auto whole = parse_number<int64_t>(*value.text())) return *whole;
    number = parse_number<double>(*value.text());
  }
  constexpr double kLimit = 9.2e18;
  return number && std::abs(*number) < kLimit ? Value(static_cast<int64_t>(*number)) : otherwise;
}

Value to_real(const Value& value, Arguments& arguments) {
  const Value otherwise = arguments.take("default", 0.0);
  if (value.is_number()) return value.as_real();
  const std::optional<double> number = value.text() != nullptr ? parse_number<double>(*value.text()) : std::nullopt;
  return number ? Value(*number) : otherwise;
}

// Returns what an item is ordered or told apart by.
struct Key {
  Value attribute;
  bool case_sensitive;

  Value operator()(const Value& item) const {
    throw_if_interrupted();
    const Value key = attribute.is_none() ? item : jinja_path(item, attribute);
    return case_sensitive || key.text() == nullptr ? key : Value(with_case(*key.text(), LetterCase::lower));
  }
};

void sort_by(std::vector<Value>& items, const Key& key, bool reverse) {
  std::ranges::stable_sort(items, [&](const Value& a, const Value& b) {
    return reverse ? jinja_less(key(b), key(a)) : jinja_less(key(a), key(b));
  });
}

Value sort(const Value& value, Arguments& arguments) {
  const bool reverse = arguments.take("reverse", false).is_true();
  const bool case_sensitive = arguments.take("case_sensitive", false).is_true();
  std::vector<Value> items = jinja_items(value);
  sort_by(items, {arguments.take("attribute", JinjaNone{}), case_sensitive}, reverse);
  return items;
}

Value sort_dict(const Value& value, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).is_true();
  const std::string by = arguments.take_text("by", "key");
  if (by != "key" && by != "value") throw JinjaError("dictsort: expected 'key' or 'value' as 'by', found '" + by + "'");
  const bool reverse = arguments.take("reverse", false).is_true();
  if (value.dict() == nullptr) throw JinjaError(std::string("dictsort: expected a dict, found ") + value.type_name());
  std::vector<Value> items;
  for (const auto& [key, item] : value.dict()->items) items.push_back(Value::tuple({key, item}));
  sort_by(items, {Value(by == "key" ? 0 : 1), case_sensitive}, reverse);
  return items;
}

Value items(const Value& value, Arguments&) {
  if (value.is_undefined()) return std::vector<Value>{};
  if (value.dict() == nullptr) throw JinjaError(std::string("items: expected a dict, found ") + value.type_name());
  std::vector<Value> all;
  for (const auto& [key, item] : value.dict()->items) all.push_back(Value::tuple({key, item}));
  return all;
}

Value unique(const Value& value, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).is_true();
  const Key key{arguments.take("attribute", JinjaNone{}), case_sensitive};
  std::vector<Value> kept;
  std::unordered_set<std::string> keys;
  for (const Value& item : jinja_items(value)) {
    if (keys.insert(jinja_key(key(item))).second) kept.push_back(item);
  }
  return kept;
}

template <bool kLargest>
Value extreme(const Value& value, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).is_true();
  const Key key{arguments.take("attribute", JinjaNone{}), case_sensitive};
  const std::vector<Value> all = jinja_items(value);
  if (all.empty()) return JinjaUndefined{"an item of an empty list"};
  const auto less = [&](const Value& a, const Value& b) { return jinja_less(key(a), key(b)); };
  return kLargest
             ? *std::max_element(all.begin(), all.end(), [&](const Value& a, const Value& b) { return less(a, b); })
             : *std::min_element(all.begin(), all.end(), less);
}

Value sum(const Value& value, Arguments& arguments) {
  const Value attribute = arguments.take("attribute", JinjaNone{});
  Value total = arguments.take("start", 0);
  for (const Value& item : jinja_items(value)) {
    throw_if_interrupted();
    total = jinja_binary(JinjaOperator::add, total, attribute.is_none() ? item : jinja_path(item, attribute));
  }
  return total;
}

// value[0] or value[-1] of what a loop sees.
Value item_at(const Value& value, int64_t index, const char* name) {
  if (jinja_length(value) == 0) return JinjaUndefined{name};
  return value.dict() == nullptr ? jinja_item(value, index)
         : index == 0            ? value.dict()->items.front().first
                                 : value.dict()->items.back().first;
}

Value reverse(const Value& value, Arguments&) {
  if (value.text() != nullptr) return jinja_slice(value, JinjaNone{}, JinjaNone{}, -1);
  std::vector<Value> all = jinja_items(value);
  std::ranges::reverse(all);
  return all;
}

// Python's round() of a whole number to a multiple of 10 ^ digits; halves to even.
Value rounded_to_tens(int64_t number, int64_t digits) {
  if (digits > 18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < digits; ++i) unit *= 10;
  const int64_t rest = number % unit, size = std::abs(rest), base = number - rest;
  const bool goes_out = size > unit - size || (size == unit - size && base / unit % 2 != 0);
  return goes_out ? jinja_binary(JinjaOperator::add, base, number < 0 ? -unit : unit) : Value(base);
}

// Python's round(): the double nearest to the decimal number nearest to `number`, whose halves go to even.
double rounded(double number, int64_t digits) {
  constexpr int64_t kMostDigits = 323;  // a double has no further ones
  if (!std::isfinite(number) || digits > kMostDigits) return number;
  if (digits >= 0) {
    std::array<char, 700> text;
    std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), number);
    return std::strtod(text.data(), nullptr);
  }
  if (digits < -308) return 0.0 * number;
  // All steps but the last one are exact up to 10 ^ 27, the greatest power that a long double holds.
  const long double unit = std::pow(10.0L, static_cast<long double>(-digits)), size = std::fabs(number);
  const long double rest = std::fmod(size, unit), base = size - rest;
  const bool goes_out = rest > unit - rest || (rest == unit - rest && std::fmod(base, 2 * unit) != 0);
  return std::copysign(static_cast<double>(goes_out ? base + unit : base), number);
}

Value round(const Value& value, Arguments& arguments) {
  const int64_t precision = arguments.take_integer("precision", 0);
  const std::string method = arguments.take_text("method", "common");
  if (!value.is_number()) throw JinjaError(std::string("round: expected a number, found ") + value.type_name());
  if (method == "common") {
    if (value.real() != nullptr) return rounded(*value.real(), precision);
    return precision >= 0 ? value.as_integer()
                          : rounded_to_tens(value.as_integer(), -std::max<int64_t>(precision, -99));
  }
  if (method != "ceil" && method != "floor") {
    throw JinjaError("round: expected 'common', 'ceil' or 'floor', found '" + method + "'");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = value.as_real() * scale;
  if (scale == 0 || !std::isfinite(scaled)) throw JinjaError("round: the number has not so many digits");
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value absolute(const Value& value, Arguments&) {
  if (!value.is_number()) throw JinjaError(std::string("abs: expected a number, found ") + value.type_name());
  return value.as_real() < 0 ? jinja_minus(value) : value;
}

Value batch(const Value& value, Arguments& arguments) {
  const int64_t size = arguments.require_integer("linecount");
  const Value fill = arguments.take("fill_with", JinjaNone{});
  if (size < 1) throw JinjaError("batch: expected at least 1 item in each");
  std::vector<Value> batches, batch_items;
  for (const Value& item : jinja_items(value)) {
    if (static_cast<int64_t>(batch_items.size()) == size) batches.emplace_back(std::exchange(batch_items, {}));
    batch_items.push_back(item);
  }
  if (!batch_items.empty()) {
    if (size > 1'000'000 && !fill.is_none()) throw JinjaError("batch: a batch is too large");
    while (!fill.is_none() && static_cast<int64_t>(batch_items.size()) < size) batch_items.push_back(fill);
    batches.emplace_back(std::move(batch_items));
  }
  return batches;
}

Value group_by(const Value& value, Arguments& arguments) {
  const Value attribute = arguments.require("attribute");
  const Value otherwise = arguments.take("default", JinjaNone{});
  const bool case_sensitive = arguments.take("case_sensitive", false).is_true();
  const Key order{attribute, case_sensitive};
  const auto key_of = [&](const Value& item) {
    const Value key = order(item);
    return key.is_undefined() ? otherwise : key;
  };
  std::vector<Value> all = jinja_items(value);
  std::ranges::stable_sort(all, [&](const Value& a, const Value& b) { return jinja_less(key_of(a), key_of(b)); });
  std::vector<Value> groups, members;
  for (size_t i = 0; i < all.size(); ++i) {
    members.push_back(all[i]);
    if (i + 1 < all.size() && key_of(all[i + 1]) == key_of(all[i])) continue;
    const Value name = jinja_path(members.front(), attribute);
    groups.push_back(Value::tuple({name.is_undefined() ? otherwise : name, std::exchange(members, {})}));
  }
  return groups;
}

Value to_json(const Value& value, Arguments& arguments) {
  JinjaJsonForm form;
  form.ensure_ascii = arguments.take("ensure_ascii", false).is_true();
  const Value width = arguments.take("indent", JinjaNone{});
  if (!width.is_none() && (!width.is_integral() || width.as_integer() > 100)) {
    throw JinjaError("tojson: expected a whole number up to 100 as 'indent', found " + jinja_repr(width));
  }
  if (!width.is_none()) {
    form.indent = width.as_integer();
    form.item_separator = ",";
  }
  const Value separators = arguments.take("separators", JinjaNone{});
  if (separators.list() != nullptr && separators.list()->items.size() == 2) {
    form.item_separator = text_of(separators.list()->items[0]);
    form.key_separator = text_of(separators.list()->items[1]);
  } else if (!separators.is_none()) {
    throw JinjaError("tojson: expected two texts as 'separators'");
  }
  form.sort_keys = arguments.take("sort_keys", false).is_true();
  return jinja_json(value, form);
}

Value escape(const Value& value, Arguments&) {
  std::string text;
  for (const char c : text_of(value)) {
    switch (c) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      case '"':
        text += "&#34;";
        break;
      case '\'':
        text += "&#39;";
        break;
      default:
        text += c;
    }
    check_jinja_text(text.size());
  }
  return text;
}

Value center(const Value& value, Arguments& arguments) {
  const int64_t width = arguments.take_integer("width", 80);
  const std::string text = text_of(value);
  if (width <= num_characters(text)) return text;
  const int64_t missing = width - num_characters(text);
  if (missing > 10'000) throw JinjaError("center: the width is too large");
  const int64_t left = missing / 2 + (missing & width & 1);
  return std::string(static_cast<size_t>(left), ' ') + text + std::string(static_cast<size_t>(missing - left), ' ');
}

Value truncate(const Value& value, Arguments& arguments) {
  const int64_t length = arguments.take_integer("length", 255);
  const bool cuts_words = arguments.take("killwords", false).is_true();
  const std::string end = arguments.take_text("end", "...");
  const int64_t leeway = arguments.take_integer("leeway", 5);
  const std::string text = text_of(value);
  if (length < num_characters(end)) throw JinjaError("truncate: the length is below that of its end");
  if (leeway < 0) throw JinjaError("truncate: the leeway is below 0");
  const int64_t kept = length - num_characters(end);
  if (num_characters(text) - length <= leeway) return text;
  std::string result = *jinja_slice(text, JinjaNone{}, kept, JinjaNone{}).text();
  if (!cuts_words) result = result.substr(0, std::min(result.rfind(' '), result.size()));
  return result + end;
}

Value count_words(const Value& value, Arguments&) {
  int64_t count = 0;
  bool in_word = false;
  const std::string text = text_of(value);
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_decode(text, at);
    const bool is_of_word = c == U'_' || is_python_alphanumeric(c);
    count += is_of_word && !in_word ? 1 : 0;
    in_word = is_of_word;
  }
  return count;
}

// Takes what is left of a call's arguments, for a filter or a test that this one applies.
Arguments rest_of(Arguments& arguments, std::string callee) {
  Arguments rest;
  rest.callee = std::move(callee);
  rest.named = std::exchange(arguments.named, {});
  while (true) {
    Value value = arguments.take("");
    if (value.is_undefined()) break;
    rest.positional.push_back(std::move(value));
  }
  return rest;
}

Value map(const Value& value, Arguments& arguments) {
  std::vector<Value> results;
  const auto attribute = std::ranges::find_if(arguments.named, [](const auto& a) { return a.first == "attribute"; });
  if (arguments.positional.empty() && attribute != arguments.named.end()) {
    const Value path = arguments.take("attribute");
    const Value otherwise = arguments.take("default");
    if (!value.is_true()) return results;
    for (const Value& item : jinja_items(value)) results.push_back(jinja_path(item, path, otherwise));
    return results;
  }
  const std::string name = arguments.require_text("filter");
  if (!is_jinja_filter(name)) throw JinjaError("map: there is no filter called '" + name + "'");
  const Arguments rest = rest_of(arguments, name);
  if (!value.is_true()) return results;  // Jinja takes none for an empty list here
  size_t num_bytes = 0;
  for (const Value& item : jinja_items(value)) {
    Arguments call = rest;
    throw_if_interrupted();
    results.push_back(apply_jinja_filter(name, item, call));
    num_bytes += results.back().own_bytes();
    check_jinja_text(num_bytes);
  }
  return results;
}

// select, reject, selectattr and rejectattr.
template <bool kKeeps, bool kOfAttribute>
Value select(const Value& value, Arguments& arguments) {
  const Value attribute = kOfAttribute ? arguments.require("attribute") : Value(JinjaNone{});
  const Value test = arguments.take("test");
  const std::string name = test.is_undefined() ? "" : text_of(test);
  if (!name.empty() && !is_jinja_test(name)) {
    throw JinjaError(arguments.callee + ": there is no test called '" + name + "'");
  }
  const Arguments rest = rest_of(arguments, name);
  std::vector<Value> kept;
  if (!value.is_true()) return kept;  // as in map
  for (const Value& item : jinja_items(value)) {
    const Value tested = kOfAttribute ? jinja_path(item, attribute) : item;
    Arguments call = rest;
    if ((name.empty() ? tested.is_true() : apply_jinja_test(name, tested, call)) == kKeeps) kept.push_back(item);
  }
  return kept;
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> kFilters = {
      {"abs", absolute},
      {"attr", [](const Value& v, Arguments& a) { return jinja_attribute(v, a.require_text("name")); }},
      {"batch", batch},
      {"capitalize", change_case<LetterCase::capitalized>},
      {"center", center},
      {"count", [](const Value& v, Arguments&) { return Value(jinja_length(v)); }},
      {"d", default_value},
      {"default", default_value},
      {"dictsort", sort_dict},
      {"e", escape},
      {"escape", escape},
      {"first", [](const Value& v, Arguments&) { return item_at(v, 0, "the first item of an empty list"); }},
      {"float", to_real},
      {"format",
       [](const Value& v, Arguments& a) { return Value(jinja_format(text_of(v), rest_of(a, "format").positional)); }},
      {"groupby", group_by},
      {"indent", indent},
      {"int", to_integer},
      {"items", items},
      {"join", join},
      {"last", [](const Value& v, Arguments&) { return item_at(v, -1, "the last item of an empty list"); }},
      {"length", [](const Value& v, Arguments&) { return Value(jinja_length(v)); }},
      {"list", [](const Value& v, Arguments&) { return Value(jinja_items(v)); }},
      {"lower", change_case<LetterCase::lower>},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"replace", replace},
      {"reverse", reverse},
      {"round", round},
      {"safe", [](const Value& v, Arguments&) { return v; }},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
      {"sort", sort},
      {"string", [](const Value& v, Arguments&) { return Value(text_of(v)); }},
      {"sum", sum},
      {"title", title},
      {"tojson", to_json},
      {"trim", trim},
      {"truncate", truncate},
      {"unique", unique},
      {"upper", change_case<LetterCase::upper>},
      {"wordcount", count_words},
  };
  return kFilters;
}

}  // namespace

bool is_jinja_filter(std::string_view name) {
  return filters().contains(name);
}

JinjaValue apply_jinja_filter(std::string_view name, const JinjaValue& value, JinjaArguments& arguments) {
  const auto filter = filters().find(name);
  if (filter == filters().end()) throw JinjaError("there is no filter called \'" + std::string(name) + "\'");
  JinjaValue result = filter->second(value, arguments);
  arguments.finish();
  return result;
}

}  // namespace pare::runtime
