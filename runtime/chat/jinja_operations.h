// What expressions do with values: arithmetic, items and attributes, the methods of texts, lists and dicts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/chat/jinja_syntax.h"
#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

// All throw JinjaError where Python or Jinja raise an error.

JinjaValue jinja_binary(JinjaOperator operation, const JinjaValue& a, const JinjaValue& b);
bool jinja_compare(JinjaComparison comparison, const JinjaValue& a, const JinjaValue& b);
JinjaValue jinja_minus(const JinjaValue& value);

// Returns what a loop over the value sees: the items of a list, the keys of a dict, the characters of a text; nothing
// for an undefined value. Throws JinjaError for a text of too many characters.
std::vector<JinjaValue> jinja_items(const JinjaValue& value);
// Returns the number of these.
int64_t jinja_length(const JinjaValue& value);

// Returns a text that two values share if and only if they are the same key of a dict. Throws JinjaError for lists and
// dicts, which Python cannot hash.
std::string jinja_key(const JinjaValue& value);

// Puts a dict together key by key, in linear time. Throws JinjaError as jinja_key does.
class JinjaDictMaker {
 public:
  void set(JinjaValue key, JinjaValue value);
  JinjaDict take() { return std::move(dict_); }

 private:
  JinjaDict dict_;
  std::unordered_map<std::string, size_t> places_;  // in dict_.items, by jinja_key
};

// value[key] and value.name; an undefined value where there is no such thing.
JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& key);
JinjaValue jinja_attribute(const JinjaValue& value, const std::string& name);
// Returns value.a.b.0 for "a.b.0", as the filters' `attribute` says it. `otherwise` takes the place of an undefined
// value on the way, unless it is undefined itself.
JinjaValue jinja_path(const JinjaValue& value, const JinjaValue& path, const JinjaValue& otherwise = JinjaUndefined{});
// value[first:last:step]; a bound that is none is not given.
JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& first, const JinjaValue& last,
                       const JinjaValue& step);

// Calls a method of a text, a list or a dict. Returns none if the value's type has no such method.
std::optional<JinjaValue> call_jinja_method(const JinjaValue& value, const std::string& name,
                                            JinjaArguments& arguments);
bool has_jinja_method(const JinjaValue& value, std::string_view name);
// Python's `format % values`.
std::string jinja_format(const std::string& format, const std::vector<JinjaValue>& values);

// Returns where `part` stands first in the text from `from` on, or last; npos: nowhere. Takes linear time, whatever the
// texts are.
size_t find_first(std::string_view text, std::string_view part, size_t from = 0);
size_t find_last(std::string_view text, std::string_view part);

// The limit of the items of one list that a template makes. Throws JinjaError for more.
void check_jinja_items(size_t num_items);

// Python's str.replace; count < 0: all.
std::string replaced(std::string_view text, std::string_view old_part, std::string_view new_part, int64_t count);

}  // namespace pare::runtime
