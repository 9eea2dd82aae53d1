// The values that templates compute with. They behave as Python's, since Jinja's expressions are Python's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pare::runtime {

// A template that cannot be read, or that fails while it runs. The message says where in the template.
class JinjaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class JinjaValue;
struct JinjaArguments;

struct JinjaUndefined {
  std::string name;  // what was looked for, for messages
};
struct JinjaNone {};
struct JinjaList {
  std::vector<JinjaValue> items;
  bool is_tuple = false;
  // These are of lists and dicts inside one another; JinjaValue sets them.
  int depth = 1;
  int64_t num_values = 0;  // all in it, as often as they would be written
};
// Keys are in the order in which they came, as in Python.
struct JinjaDict {
  std::vector<std::pair<JinjaValue, JinjaValue>> items;
  int depth = 1;  // these are as in JinjaList
  int64_t num_values = 0;

  // Returns nullptr if there is no such key.
  const JinjaValue* find(const JinjaValue& key) const;
  const JinjaValue* find(std::string_view key) const;
  void set(JinjaValue key, JinjaValue value);
};
// A value that may be called: a macro, a method bound to its value, a global function.
struct JinjaFunction {
  std::string name;
  std::function<JinjaValue(JinjaArguments& arguments)> call;
  int depth = 1;  // one more than that of the value that it holds, as in JinjaList
};
// The value of namespace(): `set` may change its attributes.
struct JinjaNamespace {
  JinjaDict attributes;
};

constexpr int kMaxJinjaDepth = 100;
constexpr int64_t kMaxJinjaValues = int64_t{1} << 24;

// Copies share lists and dicts, which no template can change; a namespace is shared as in Python.
class JinjaValue {
 public:
  using Text = std::shared_ptr<const std::string>;
  using List = std::shared_ptr<const JinjaList>;
  using Dict = std::shared_ptr<const JinjaDict>;
  using Function = std::shared_ptr<const JinjaFunction>;
  using Namespace = std::shared_ptr<JinjaNamespace>;

  JinjaValue() : value_(JinjaNone{}) {}
  JinjaValue(JinjaUndefined undefined) : value_(std::move(undefined)) {}
  JinjaValue(JinjaNone none) : value_(none) {}
  JinjaValue(bool flag) : value_(flag) {}
  JinjaValue(int64_t number) : value_(number) {}
  JinjaValue(int number) : value_(int64_t{number}) {}
  JinjaValue(double number) : value_(number) {}
  JinjaValue(std::string text) : value_(std::make_shared<const std::string>(std::move(text))) {}
  JinjaValue(std::string_view text) : JinjaValue(std::string(text)) {}
  JinjaValue(const char* text) : JinjaValue(std::string(text)) {}
  // These throw JinjaError for more than kMaxJinjaDepth lists, dicts and methods in one another, and for a namespace
  // inside of a list or a dict: values are compared, written and freed by recursion. They throw it for more than
  // kMaxJinjaValues values too, since a list that holds another one twice needs no memory, but time.
  JinjaValue(JinjaList list);
  JinjaValue(std::vector<JinjaValue> items) : JinjaValue(JinjaList{.items = std::move(items)}) {}
  JinjaValue(JinjaDict dict);
  JinjaValue(JinjaFunction function);
  JinjaValue(Namespace names) : value_(std::move(names)) {}
  static JinjaValue tuple(std::vector<JinjaValue> items) {
    return JinjaList{.items = std::move(items), .is_tuple = true};
  }

  bool is_undefined() const { return std::holds_alternative<JinjaUndefined>(value_); }
  bool is_none() const { return std::holds_alternative<JinjaNone>(value_); }
  // Each returns nullptr if the value is of another type.
  const JinjaUndefined* undefined() const { return std::get_if<JinjaUndefined>(&value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const std::string* text() const { return target<Text>(); }
  const JinjaList* list() const { return target<List>(); }
  const JinjaDict* dict() const { return target<Dict>(); }
  const JinjaFunction* function() const { return target<Function>(); }
  JinjaNamespace* names() const {
    const Namespace* held = std::get_if<Namespace>(&value_);
    return held == nullptr ? nullptr : held->get();
  }
  // A whole number or a boolean, which Python counts as one.
  bool is_integral() const { return boolean() != nullptr || integer() != nullptr; }
  bool is_number() const { return is_integral() || real() != nullptr; }
  int64_t as_integer() const { return boolean() != nullptr ? int64_t{*boolean()} : *integer(); }
  double as_real() const { return real() != nullptr ? *real() : static_cast<double>(as_integer()); }

  // Returns how many lists, dicts and methods lie inside one another: 0 for any other value.
  int depth() const;
  // Returns how many values a list or a dict holds, itself included: 1 for any other value.
  int64_t num_values() const;
  // Returns the bytes of the text or of the list's items if nothing else holds them, or else 0.
  size_t own_bytes() const;

  bool is_true() const;           // Python's bool()
  const char* type_name() const;  // as Python says it: 'str', 'list'
  // True if both are the same object, or equal constants (Python's `is`).
  bool is_same(const JinjaValue& other) const;

 private:
  template <typename Held>
  const typename Held::element_type* target() const {
    const Held* held = std::get_if<Held>(&value_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<JinjaUndefined, JinjaNone, bool, int64_t, double, Text, List, Dict, Function, Namespace> value_;
};

// Python's == . Values of different types are unequal, but for numbers.
bool operator==(const JinjaValue& a, const JinjaValue& b);
// Python's < . Throws JinjaError for types that have no order.
bool jinja_less(const JinjaValue& a, const JinjaValue& b);

// The arguments of a call. The function takes what it knows; what is left over is an error.
struct JinjaArguments {
  std::string callee;  // for messages
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;

  // Returns the argument and removes it from the call: the next positional one, or else the one called `name`. Without
  // both it returns `otherwise`, or an undefined value.
  JinjaValue take(std::string_view name);
  JinjaValue take(std::string_view name, JinjaValue otherwise);
  JinjaValue require(std::string_view name);
  bool has(std::string_view name) const;
  // These throw JinjaError if the argument has another type.
  std::string take_text(std::string_view name, std::string otherwise);
  int64_t take_integer(std::string_view name, int64_t otherwise);
  std::string require_text(std::string_view name);
  int64_t require_integer(std::string_view name);
  // Throws JinjaError for arguments that nobody took.
  void finish() const;

 private:
  size_t next_ = 0;
};

}  // namespace pare::runtime
