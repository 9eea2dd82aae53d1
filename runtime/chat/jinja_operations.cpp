#include "runtime/chat/jinja_operations.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "runtime/chat/jinja_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr auto kMaxTextBytes = static_cast<int64_t>(kMaxJinjaText);
constexpr int64_t kMaxItems = int64_t{1} << 20;  // of one list

[[noreturn]] void fail_undefined(const JinjaValue& value) {
  throw JinjaError("'" + value.undefined()->name + "' is undefined");
}

void refuse_undefined(const JinjaValue& value) {
  if (value.is_undefined()) fail_undefined(value);
}

[[noreturn]] void fail_types(const char* operation, const JinjaValue& a, const JinjaValue& b) {
  throw JinjaError(std::string("cannot compute ") + a.type_name() + " " + operation + " " + b.type_name());
}

// `compute` is one of GCC's functions that say whether the result needs more than 64 bits.
template <typename Compute>
JinjaValue within_64_bits(const Compute& compute) {
  int64_t result = 0;
  if (compute(&result)) throw JinjaError("a whole number needs more than 64 bits");
  return result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

JinjaValue integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  bool overflows = false;
  for (int64_t i = 0; i < exponent && !overflows && base != 1 && result != 0; ++i) {
    if (base == -1 && i >= 2) return exponent % 2 == 0 ? 1 : -1;
    overflows = __builtin_mul_overflow(result, base, &result);
  }
  return within_64_bits([&](int64_t* power) { return *power = result, overflows; });
}

JinjaValue integer_binary(JinjaOperator operation, int64_t a, int64_t b) {
  switch (operation) {
    case JinjaOperator::add:
      return within_64_bits([&](int64_t* sum) { return __builtin_add_overflow(a, b, sum); });
    case JinjaOperator::subtract:
      return within_64_bits([&](int64_t* difference) { return __builtin_sub_overflow(a, b, difference); });
    case JinjaOperator::multiply:
      return within_64_bits([&](int64_t* product) { return __builtin_mul_overflow(a, b, product); });
    case JinjaOperator::power:
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0) throw JinjaError("division by zero");
  if (operation == JinjaOperator::divide) return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) {  // the smallest number has no counterpart
    if (operation == JinjaOperator::modulo) return 0;
    return within_64_bits([&](int64_t* negative) { return __builtin_sub_overflow(int64_t{0}, a, negative); });
  }
  const int64_t quotient = floor_divide(a, b);
  return operation == JinjaOperator::floor_divide ? quotient : a - quotient * b;
}

JinjaValue real_binary(JinjaOperator operation, double a, double b) {
  switch (operation) {
    case JinjaOperator::add:
      return a + b;
    case JinjaOperator::subtract:
      return a - b;
    case JinjaOperator::multiply:
      return a * b;
    case JinjaOperator::power:
      return std::pow(a, b);
    default:
      break;
  }
  if (b == 0) throw JinjaError("division by zero");
  if (operation == JinjaOperator::divide) return a / b;
  if (operation == JinjaOperator::floor_divide) return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

JinjaValue repeated(const JinjaValue& value, int64_t count) {
  count = std::max<int64_t>(0, count);
  if (const std::string* text = value.text()) {
    if (!text->empty() && count > kMaxTextBytes / static_cast<int64_t>(text->size())) {
      throw JinjaError("a text repeated " + std::to_string(count) + " times is too long");
    }
    std::string result;
    for (int64_t i = 0; i < count && !text->empty(); ++i) result += *text;
    return result;
  }
  const JinjaList& list = *value.list();
  if (!list.items.empty() && count > kMaxItems / static_cast<int64_t>(list.items.size())) {
    throw JinjaError("a list repeated " + std::to_string(count) + " times is too long");
  }
  JinjaList result{.items = {}, .is_tuple = list.is_tuple};
  for (int64_t i = 0; i < count && !list.items.empty(); ++i) {
    result.items.insert(result.items.end(), list.items.begin(), list.items.end());
  }
  return result;
}

JinjaValue joined_values(const JinjaValue& a, const JinjaValue& b) {
  if (a.text() != nullptr && b.text() != nullptr) {
    check_jinja_text(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (a.list() == nullptr || b.list() == nullptr || a.list()->is_tuple != b.list()->is_tuple) fail_types("+", a, b);
  check_jinja_items(a.list()->items.size() + b.list()->items.size());
  JinjaList result{.items = a.list()->items, .is_tuple = a.list()->is_tuple};
  result.items.insert(result.items.end(), b.list()->items.begin(), b.list()->items.end());
  return result;
}

bool contains(const JinjaValue& container, const JinjaValue& item) {
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr) fail_types("in", item, container);
    return find_first(*text, *item.text()) != std::string::npos;
  }
  if (const JinjaList* list = container.list()) return std::ranges::find(list->items, item) != list->items.end();
  if (const JinjaDict* dict = container.dict()) return dict->find(item) != nullptr;
  if (container.is_undefined()) return false;
  fail_types("in", item, container);
}

// Returns the byte at which the character `count` after (or before) the one at byte `at` starts.
size_t offset_of(std::string_view text, size_t at, int64_t count) {
  for (; count > 0; --count) at += utf8_length(text[at]);
  for (; count < 0; ++count) at = utf8_previous(text, at);
  return at;
}

// text[from:to:by], where both are characters of the text, or its ends.
std::string text_slice(std::string_view text, int64_t from, int64_t to, int64_t by) {
  if (by > 0 ? from >= to : from <= to) return "";
  size_t at = offset_of(text, 0, from);
  if (by == 1) return std::string(text.substr(at, offset_of(text, at, to - from) - at));
  std::string taken;
  for (int64_t i = from;; i += by) {
    taken += text.substr(at, utf8_length(text[at]));
    if (by > 0 ? by >= to - i : by <= to - i) return taken;
    at = offset_of(text, at, by);
  }
}

void add_key(const JinjaValue& value, std::string& key) {
  if (value.text() != nullptr) {
    key += "text " + std::to_string(value.text()->size()) + " " + *value.text();
  } else if (value.is_number()) {  // 1, 1.0 and true are one key
    const bool is_whole =
        value.is_integral() || (std::trunc(value.as_real()) == value.as_real() && std::abs(value.as_real()) < 9e18);
    key += is_whole ? "number " + std::to_string(value.is_integral() ? value.as_integer()
                                                                     : static_cast<int64_t>(value.as_real()))
                    : "number " + jinja_repr(value);
  } else if (value.list() != nullptr && value.list()->is_tuple) {
    key += "tuple " + std::to_string(value.list()->items.size());
    for (const JinjaValue& item : value.list()->items) add_key(item, key);
  } else if (value.function() != nullptr || value.names() != nullptr) {
    const void* object = value.names();
    if (value.function() != nullptr) object = value.function();
    key += "object " + std::to_string(reinterpret_cast<uintptr_t>(object));
  } else if (value.list() != nullptr || value.dict() != nullptr) {
    throw JinjaError(std::string("a ") + value.type_name() + " cannot be a key");
  } else {
    key += value.type_name();
  }
  key += ";";
  check_jinja_text(key.size());
}

// Returns the index of a Python slice's bound within [lowest, highest].
int64_t bound(const JinjaValue& given, int64_t otherwise, int64_t length, int64_t lowest, int64_t highest) {
  if (given.is_none()) return otherwise;
  if (!given.is_integral())
    throw JinjaError(std::string("a slice's bound must be a whole number, found ") + given.type_name());
  const int64_t index = given.as_integer();
  return std::clamp(index < 0 ? std::max(index, -length - 1) + length : index, lowest, highest);
}

}  // namespace

JinjaValue jinja_binary(JinjaOperator operation, const JinjaValue& a, const JinjaValue& b) {
  if (operation == JinjaOperator::concatenate) {
    return joined_values(JinjaValue(jinja_text(a)), JinjaValue(jinja_text(b)));
  }
  refuse_undefined(a);
  refuse_undefined(b);
  if (a.is_integral() && b.is_integral()) return integer_binary(operation, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return real_binary(operation, a.as_real(), b.as_real());
  const auto is_sequence = [](const JinjaValue& value) { return value.text() != nullptr || value.list() != nullptr; };
  switch (operation) {
    case JinjaOperator::add:
      return joined_values(a, b);
    case JinjaOperator::multiply:
      if (is_sequence(a) && b.is_integral()) return repeated(a, b.as_integer());
      if (is_sequence(b) && a.is_integral()) return repeated(b, a.as_integer());
      fail_types("*", a, b);
    case JinjaOperator::modulo:
      if (a.text() != nullptr) {
        const bool is_tuple = b.list() != nullptr && b.list()->is_tuple;
        return jinja_format(*a.text(), is_tuple ? b.list()->items : std::vector<JinjaValue>{b});
      }
      fail_types("%", a, b);
    case JinjaOperator::subtract:
      fail_types("-", a, b);
    case JinjaOperator::divide:
      fail_types("/", a, b);
    case JinjaOperator::floor_divide:
      fail_types("//", a, b);
    default:
      fail_types("**", a, b);
  }
}

bool jinja_compare(JinjaComparison comparison, const JinjaValue& a, const JinjaValue& b) {
  switch (comparison) {
    case JinjaComparison::equal:
      return a == b;
    case JinjaComparison::not_equal:
      return !(a == b);
    case JinjaComparison::in:
      return contains(b, a);
    case JinjaComparison::not_in:
      return !contains(b, a);
    default:
      break;
  }
  refuse_undefined(a);
  refuse_undefined(b);
  switch (comparison) {
    case JinjaComparison::less:
      return jinja_less(a, b);
    case JinjaComparison::greater:
      return jinja_less(b, a);
    case JinjaComparison::less_equal:
      return a == b || jinja_less(a, b);
    default:
      return a == b || jinja_less(b, a);
  }
}

JinjaValue jinja_minus(const JinjaValue& value) {
  refuse_undefined(value);
  if (value.is_integral()) return integer_binary(JinjaOperator::subtract, 0, value.as_integer());
  if (value.real() != nullptr) return -*value.real();
  throw JinjaError(std::string("cannot compute - ") + value.type_name());
}

std::vector<JinjaValue> jinja_items(const JinjaValue& value) {
  if (const JinjaList* list = value.list()) return list->items;
  std::vector<JinjaValue> items;
  if (const JinjaDict* dict = value.dict()) {
    for (const auto& [key, item] : dict->items) items.push_back(key);
  } else if (const std::string* text = value.text()) {
    check_jinja_items(static_cast<size_t>(num_characters(*text)));
    for (std::string& character : characters(*text)) items.emplace_back(std::move(character));
  } else if (!value.is_undefined()) {
    throw JinjaError(std::string("cannot loop over ") + value.type_name());
  }
  return items;
}

int64_t jinja_length(const JinjaValue& value) {
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->items.size());
  if (value.dict() != nullptr) return static_cast<int64_t>(value.dict()->items.size());
  if (value.text() != nullptr) return num_characters(*value.text());
  if (value.is_undefined()) return 0;
  throw JinjaError(std::string(value.type_name()) + " has no length");
}

JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& key) {
  refuse_undefined(value);
  if (const JinjaDict* dict = value.dict()) {
    if (const JinjaValue* found = dict->find(key)) return *found;
  } else if (key.is_integral() && (value.list() != nullptr || value.text() != nullptr)) {
    const int64_t length = jinja_length(value), index = key.as_integer() + (key.as_integer() < 0 ? length : 0);
    if (index >= 0 && index < length) {
      if (value.list() != nullptr) return value.list()->items[static_cast<size_t>(index)];
      const size_t at = offset_of(*value.text(), 0, index);
      return value.text()->substr(at, utf8_length((*value.text())[at]));
    }
  } else if (value.names() != nullptr && key.text() != nullptr) {
    return jinja_attribute(value, *key.text());
  }
  return JinjaUndefined{jinja_text(key)};
}

JinjaValue jinja_attribute(const JinjaValue& value, const std::string& name) {
  refuse_undefined(value);
  const JinjaDict* dict = value.names() != nullptr ? &value.names()->attributes : value.dict();
  const JinjaValue* found = dict == nullptr ? nullptr : dict->find(std::string_view(name));
  return found != nullptr ? *found : JinjaValue(JinjaUndefined{name});
}

JinjaValue jinja_path(const JinjaValue& value, const JinjaValue& path, const JinjaValue& otherwise) {
  if (path.text() == nullptr) {
    const JinjaValue item = jinja_item(value, path);
    return item.is_undefined() && !otherwise.is_undefined() ? otherwise : item;
  }
  JinjaValue found = value;
  std::string_view rest = *path.text();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const std::from_chars_result read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && read.ec == std::errc() && read.ptr == part.data() + part.size();
    found = jinja_item(found, is_index ? JinjaValue(index) : JinjaValue(part));
    if (found.is_undefined() && !otherwise.is_undefined()) found = otherwise;
    if (dot == rest.size()) return found;
    rest.remove_prefix(dot + 1);
  }
}

JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& first, const JinjaValue& last,
                       const JinjaValue& step) {
  refuse_undefined(value);
  if (value.list() == nullptr && value.text() == nullptr) {
    throw JinjaError(std::string("cannot take a slice of ") + value.type_name());
  }
  const int64_t by = step.is_none() ? 1 : step.is_integral() ? step.as_integer() : 0;
  if (by == 0) throw JinjaError("a slice's step must be a whole number other than 0");
  const int64_t length = jinja_length(value);
  const bool is_forward = by > 0;
  const int64_t lowest = is_forward ? 0 : -1, highest = is_forward ? length : length - 1;
  const int64_t from = bound(first, is_forward ? 0 : length - 1, length, lowest, highest);
  const int64_t to = bound(last, is_forward ? length : -1, length, lowest, highest);
  if (value.text() != nullptr) return text_slice(*value.text(), from, to, by);
  JinjaList taken{.items = {}, .is_tuple = value.list()->is_tuple};
  // The distance that is left is compared, so that no sum can overflow.
  for (int64_t i = from; is_forward ? i < to : i > to;) {
    taken.items.push_back(value.list()->items[static_cast<size_t>(i)]);
    if (is_forward ? by >= to - i : by <= to - i) break;
    i += by;
  }
  return taken;
}

std::string jinja_key(const JinjaValue& value) {
  std::string key;
  add_key(value, key);
  return key;
}

void JinjaDictMaker::set(JinjaValue key, JinjaValue value) {
  const auto [place, is_new] = places_.emplace(jinja_key(key), dict_.items.size());
  if (is_new) {
    dict_.items.emplace_back(std::move(key), std::move(value));
  } else {
    dict_.items[place->second].second = std::move(value);
  }
}

void check_jinja_items(size_t num_items) {
  if (static_cast<int64_t>(num_items) > kMaxItems) {
    throw JinjaError("a list is too long: more than " + std::to_string(kMaxItems) + " items");
  }
}

size_t find_first(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last(std::string_view text, std::string_view part) {
  constexpr size_t kShort = 16;  // for which the library's comparing anew at each byte is quick
  if (part.size() <= kShort) return text.rfind(part);
  const std::string turned(text.rbegin(), text.rend()), turned_part(part.rbegin(), part.rend());
  const size_t found = find_first(turned, turned_part);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

std::string replaced(std::string_view text, std::string_view old_part, std::string_view new_part, int64_t count) {
  std::string result;
  size_t at = 0;
  while (count != 0) {
    // An empty part stands before every character and at the end.
    const size_t found = old_part.empty() ? at : find_first(text, old_part, at);
    if (found > text.size()) break;
    result += text.substr(at, found - at);
    result += new_part;
    --count;
    at = found + old_part.size();
    if (old_part.empty()) {
      if (at == text.size()) return result;
      const size_t next = utf8_length(text[at]);
      result += text.substr(at, next);
      at += next;
    }
    check_jinja_text(result.size());
  }
  return result += text.substr(std::min(at, text.size()));
}

std::string jinja_format(const std::string& format, const std::vector<JinjaValue>& values) {
  std::string result;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    check_jinja_text(result.size());
    if (format[i] != '%') {
      result += format[i];
      continue;
    }
    if (++i < format.size() && format[i] == '%') {
      result += '%';
      continue;
    }
    const size_t end = format.find_first_not_of("0123456789.-+ ", i);
    if (end == std::string::npos || end - i > 8) throw JinjaError("'" + format + "' is no format");
    if (next == values.size()) throw JinjaError("'" + format + "' needs more values than it is given");
    const JinjaValue& value = values[next++];
    std::string form = "%" + format.substr(i, end - i);
    const char kind = format[end];
    if (kind == 's' || kind == 'r') {
      if (form != "%") throw JinjaError("'" + format + "': a width of a text is not supported");
      result += kind == 's' ? jinja_text(value) : jinja_repr(value);
    } else if (!value.is_number()) {
      throw JinjaError("'" + format + "' needs a number, found " + value.type_name());
    } else {
      std::array<char, 512> buffer;
      int length = -1;
      if (kind == 'd' || kind == 'i') {
        if (!(std::abs(value.as_real()) < 9.3e18) || (value.real() != nullptr && std::abs(*value.real()) >= 9.2e18)) {
          throw JinjaError("'" + format + "' needs a number of 64 bits, found " + jinja_repr(value));
        }
        length = std::snprintf(
            buffer.data(), buffer.size(), (form + "lld").c_str(),
            static_cast<long long>(value.is_integral() ? value.as_integer() : std::trunc(value.as_real())));
      } else if (kind == 'f' || kind == 'e' || kind == 'g') {
        length = std::snprintf(buffer.data(), buffer.size(), (form + kind).c_str(), value.as_real());
      }
      if (length < 0 || length >= static_cast<int>(buffer.size())) throw JinjaError("'" + format + "' is no format");
      result.append(buffer.data(), static_cast<size_t>(length));
    }
    i = end;
  }
  if (next != values.size()) throw JinjaError("'" + format + "' needs fewer values than it is given");
  return result;
}

}  // namespace pare::runtime
