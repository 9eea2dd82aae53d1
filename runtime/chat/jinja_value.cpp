#include "runtime/chat/jinja_value.h"

#include <algorithm>
#include <cmath>

namespace pare::runtime {
namespace {

bool less_lists(const JinjaList& a, const JinjaList& b) {
  for (size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i) {
    if (a.items[i] == b.items[i]) continue;
    return jinja_less(a.items[i], b.items[i]);
  }
  return a.items.size() < b.items.size();
}

bool equal_dicts(const JinjaDict& a, const JinjaDict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::ranges::all_of(a.items, [&](const auto& item) {
    const JinjaValue* other = b.find(item.first);
    return other != nullptr && item.second == *other;
  });
}

[[noreturn]] void refuse_argument(const JinjaArguments& call, std::string_view name, const char* expected,
                                  const JinjaValue& found) {
  throw JinjaError(call.callee + ": expected " + expected + " as '" + std::string(name) + "', found " +
                   found.type_name());
}

void check_depth(int depth) {
  if (depth <= kMaxJinjaDepth) return;
  throw JinjaError("more than " + std::to_string(kMaxJinjaDepth) + " lists, dicts and methods inside one another");
}

// Counts what is put into a list or dict.
template <typename Container>
void count_item(const JinjaValue& item, Container& container) {
  if (item.names() != nullptr) throw JinjaError("a namespace cannot be put into a list, a dict or a namespace");
  check_depth(item.depth() + 1);
  container.depth = std::max(container.depth, item.depth() + 1);
  container.num_values += item.num_values();
  if (container.num_values > kMaxJinjaValues) {
    throw JinjaError("a list or dict of more than " + std::to_string(kMaxJinjaValues) +
                     " values, with those in its own lists and dicts");
  }
}

}  // namespace

JinjaValue::JinjaValue(JinjaList list) {
  list.depth = 1;
  list.num_values = 0;
  for (const JinjaValue& item : list.items) count_item(item, list);
  value_ = std::make_shared<const JinjaList>(std::move(list));
}

JinjaValue::JinjaValue(JinjaDict dict) {
  dict.depth = 1;
  dict.num_values = 0;
  for (const auto& [key, value] : dict.items) {
    count_item(key, dict);
    count_item(value, dict);
  }
  value_ = std::make_shared<const JinjaDict>(std::move(dict));
}

JinjaValue::JinjaValue(JinjaFunction function) {
  check_depth(function.depth);
  value_ = std::make_shared<const JinjaFunction>(std::move(function));
}

int JinjaValue::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  return function() != nullptr ? function()->depth : 0;
}

int64_t JinjaValue::num_values() const {
  return 1 + (list() != nullptr ? list()->num_values : dict() != nullptr ? dict()->num_values : 0);
}

size_t JinjaValue::own_bytes() const {
  if (const Text* held = std::get_if<Text>(&value_)) return held->use_count() == 1 ? (*held)->size() : 0;
  const List* held = std::get_if<List>(&value_);
  return held != nullptr && held->use_count() == 1 ? (*held)->items.size() * sizeof(JinjaValue) : 0;
}

const JinjaValue* JinjaDict::find(const JinjaValue& key) const {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return item.first == key; });
  return found == items.end() ? nullptr : &found->second;
}

const JinjaValue* JinjaDict::find(std::string_view key) const {
  const auto found = std::ranges::find_if(
      items, [&](const auto& item) { return item.first.text() != nullptr && *item.first.text() == key; });
  return found == items.end() ? nullptr : &found->second;
}

void JinjaDict::set(JinjaValue key, JinjaValue value) {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return item.first == key; });
  if (found == items.end()) {
    items.emplace_back(std::move(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

bool JinjaValue::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (is_integral()) return as_integer() != 0;
  if (real() != nullptr) return *real() != 0.0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->items.empty();
  if (dict() != nullptr) return !dict()->items.empty();
  return true;
}

const char* JinjaValue::type_name() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "None";
  if (boolean() != nullptr) return "bool";
  if (integer() != nullptr) return "int";
  if (real() != nullptr) return "float";
  if (text() != nullptr) return "str";
  if (list() != nullptr) return list()->is_tuple ? "tuple" : "list";
  if (dict() != nullptr) return "dict";
  return function() != nullptr ? "a function" : "a namespace";
}

bool JinjaValue::is_same(const JinjaValue& other) const {
  if (value_.index() != other.value_.index()) return false;
  if (list() != nullptr) return list() == other.list();
  if (dict() != nullptr) return dict() == other.dict();
  return *this == other;
}

bool operator==(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr) {
    if (a.list() == b.list()) return true;
    return a.list()->is_tuple == b.list()->is_tuple && a.list()->items == b.list()->items;
  }
  if (a.dict() != nullptr && b.dict() != nullptr) return a.dict() == b.dict() || equal_dicts(*a.dict(), *b.dict());
  if (a.function() != nullptr || b.function() != nullptr) return a.function() == b.function();
  if (a.names() != nullptr || b.names() != nullptr) return a.names() == b.names();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool jinja_less(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_integral() && b.is_integral()) return a.as_integer() < b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  // The order of UTF-8's bytes is that of code points.
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  if (a.list() != nullptr && b.list() != nullptr && a.list()->is_tuple == b.list()->is_tuple) {
    return less_lists(*a.list(), *b.list());
  }
  throw JinjaError(std::string("cannot order ") + a.type_name() + " and " + b.type_name());
}

JinjaValue JinjaArguments::take(std::string_view name) {
  if (next_ < positional.size()) return positional[next_++];
  const auto found = std::ranges::find_if(named, [&](const auto& argument) { return argument.first == name; });
  if (found == named.end()) return JinjaUndefined{std::string(name)};
  JinjaValue value = std::move(found->second);
  named.erase(found);
  return value;
}

JinjaValue JinjaArguments::take(std::string_view name, JinjaValue otherwise) {
  JinjaValue value = take(name);
  return value.is_undefined() ? std::move(otherwise) : std::move(value);
}

bool JinjaArguments::has(std::string_view name) const {
  return next_ < positional.size() ||
         std::ranges::any_of(named, [&](const auto& given) { return given.first == name; });
}

JinjaValue JinjaArguments::require(std::string_view name) {
  if (!has(name)) throw JinjaError(callee + ": the argument '" + std::string(name) + "' is missing");
  return take(name);
}

std::string JinjaArguments::take_text(std::string_view name, std::string otherwise) {
  const JinjaValue value = take(name, JinjaValue(std::move(otherwise)));
  if (value.text() == nullptr) refuse_argument(*this, name, "a text", value);
  return *value.text();
}

int64_t JinjaArguments::take_integer(std::string_view name, int64_t otherwise) {
  const JinjaValue value = take(name, JinjaValue(otherwise));
  if (!value.is_integral()) refuse_argument(*this, name, "a whole number", value);
  return value.as_integer();
}

std::string JinjaArguments::require_text(std::string_view name) {
  const JinjaValue value = require(name);
  if (value.text() == nullptr) refuse_argument(*this, name, "a text", value);
  return *value.text();
}

int64_t JinjaArguments::require_integer(std::string_view name) {
  const JinjaValue value = require(name);
  if (!value.is_integral()) refuse_argument(*this, name, "a whole number", value);
  return value.as_integer();
}

void JinjaArguments::finish() const {
  if (next_ < positional.size()) {
    throw JinjaError(callee + ": takes " + std::to_string(next_) + " arguments, found " +
                     std::to_string(positional.size()));
  }
  if (!named.empty()) throw JinjaError(callee + ": has no argument called '" + named.front().first + "'");
}

}  // namespace pare::runtime
