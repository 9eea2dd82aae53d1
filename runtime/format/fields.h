// The members of a record or of a method's options, listed once for each type by its member function
//
//   void fields(FieldVisitor& visit)   calls   visit("name", member)   for every member, in one fixed order.
//
// Reading from recipes and records, writing, hashing, fingerprints and descriptions all go through that list, so that a
// new member is one new line. What a recipe may give also says there which values it may have and what it means, in
// whole sentences. Readers refuse other values, and `pare recipes` prints both. Enumerations are written by name: their
// type has a function
//
//   std::span<const EnumName<E>> enum_names(E)   found next to the enumeration.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace pare::runtime {

template <typename E>
struct EnumName {
  E value;
  std::string_view name;
};

// Throws std::invalid_argument for a value without a name.
template <typename E>
requires std::is_enum_v<E> std::string_view name_of(E value) {
  for (const EnumName<E>& item : enum_names(value)) {
    if (item.value == value) return item.name;
  }
  throw std::invalid_argument("an enumeration has no name for its value " + std::to_string(static_cast<int>(value)));
}

// A lower end for numbers that must not be 0.
inline constexpr double kAboveZero = std::numeric_limits<double>::min();

// The values that a recipe may give: a whole number of [low, high] or one of `values`, or a number of [low, high].
struct FieldLimits {
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  std::vector<int64_t> values = {};  // not empty: only these
};

// The limits of a whole number that are no list, within int64.
struct WholeLimits {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
};
WholeLimits whole_limits(const FieldLimits& limits);

// The form of a text that is more than a name: in words, and as a regular expression (ECMA-262) that matches all of it.
// The reader of the text checks it.
struct TextForm {
  std::string_view words;
  std::string_view expression;
};

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  void operator()(std::string_view name, bool& value, std::string_view meaning = {}) {
    meaning_ = meaning;
    visit_bool(name, value);
  }
  void operator()(std::string_view name, std::string& value, std::string_view meaning = {}) {
    (*this)(name, value, TextForm{}, meaning);
  }
  void operator()(std::string_view name, std::string& value, const TextForm& form, std::string_view meaning = {}) {
    meaning_ = meaning;
    form_ = form;
    visit_text(name, value);
  }
  // Visits one of these texts. Throws std::invalid_argument where the value is none of them.
  void operator()(std::string_view name, std::string& value, std::span<const std::string_view> choices,
                  std::string_view meaning = {}) {
    meaning_ = meaning;
    size_t index = place_of(name, value, choices);
    visit_choice(name, choices, index);
    value = choices[index];
  }
  void operator()(std::string_view name, std::vector<std::string>& value, std::string_view meaning = {}) {
    meaning_ = meaning;
    visit_texts(name, value);
  }
  void operator()(std::string_view name, std::vector<int64_t>& value, const FieldLimits& limits,
                  std::string_view meaning = {}) {
    meaning_ = meaning;
    visit_integers(name, value, limits);
  }
  void operator()(std::string_view name, std::optional<double>& value, const FieldLimits& limits = {},
                  std::string_view meaning = {}) {
    meaning_ = meaning;
    visit_optional(name, value, limits);
  }
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) void operator()(std::string_view name, T& value,
                                                                              const FieldLimits& limits = {},
                                                                              std::string_view meaning = {}) {
    meaning_ = meaning;
    auto wide = static_cast<int64_t>(value);
    visit_integer(name, wide, limits);
    value = static_cast<T>(wide);
  }
  template <typename T>
  requires std::is_floating_point_v<T>
  void operator()(std::string_view name, T& value, const FieldLimits& limits = {}, std::string_view meaning = {}) {
    meaning_ = meaning;
    auto wide = static_cast<double>(value);
    visit_number(name, wide, limits);
    value = static_cast<T>(wide);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(std::string_view name, E& value, std::string_view meaning = {}) {
    std::vector<E> all;
    for (const EnumName<E>& item : enum_names(value)) all.push_back(item.value);
    (*this)(name, value, std::span<const E>(all), meaning);
  }
  // Visits one of only these values. Throws std::invalid_argument where the value is none of them.
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(std::string_view name, E& value, std::span<const E> choices, std::string_view meaning = {}) {
    meaning_ = meaning;
    std::vector<std::string_view> names;
    for (const E choice : choices) names.push_back(name_of(choice));
    size_t index = place_of(name, name_of(value), names);
    visit_choice(name, names, index);
    value = choices[index];
  }
  // Visits a member with fields of its own.
  template <typename T>
  requires requires(T& value, FieldVisitor& visit) { value.fields(visit); }
  void operator()(std::string_view name, T& value, std::string_view meaning = {}) {
    meaning_ = meaning;
    if (!enter(name)) return;
    value.fields(*this);
    leave(name);
  }
  // Visits a member with fields of its own that a recipe may leave out.
  template <typename T>
  requires requires(T& value, FieldVisitor& visit) { value.fields(visit); }
  void operator()(std::string_view name, std::optional<T>& value, std::string_view meaning = {}) {
    meaning_ = meaning;
    if (!enter(name)) return;
    T inner = value.value_or(T{});
    inner.fields(*this);
    leave(name);
    if (value || makes_missing()) value = std::move(inner);
  }
  // Visits what a recipe gives in a form that only its reader knows, such as the list of passes.
  void other(std::string_view name, std::string_view meaning) {
    meaning_ = meaning;
    visit_other(name);
  }
  // Visits a member that a recipe does not give: the plan or the program decides it.
  template <typename T>
  void decided(std::string_view name, T& value) {
    if (!visits_decided()) return;
    (*this)(name, value);
  }

 protected:
  virtual void visit_bool(std::string_view name, bool& value) = 0;
  virtual void visit_integer(std::string_view name, int64_t& value, const FieldLimits& limits) = 0;
  virtual void visit_number(std::string_view name, double& value, const FieldLimits& limits) = 0;
  virtual void visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits& limits) = 0;
  virtual void visit_text(std::string_view name, std::string& value) = 0;
  virtual void visit_texts(std::string_view name, std::vector<std::string>& value) = 0;
  virtual void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) = 0;
  // These are for what only recipes hold: nothing that is described, hashed or recorded has them.
  virtual void visit_integers(std::string_view name, std::vector<int64_t>& value, const FieldLimits& limits);
  virtual void visit_other(std::string_view name);
  // Returns false to leave out the member's own fields.
  virtual bool enter(std::string_view) { return true; }
  virtual void leave(std::string_view) {}
  virtual bool visits_decided() const { return true; }
  // Returns true to keep a member that was missing before it was entered.
  virtual bool makes_missing() const { return false; }

  // Returns the meaning of the visited field; empty where a recipe does not give it.
  std::string_view meaning() const { return meaning_; }
  // Returns the form of the visited text; empty where it may be any.
  const TextForm& form() const { return form_; }

 private:
  static size_t place_of(std::string_view name, std::string_view value, std::span<const std::string_view> choices);
  std::string_view meaning_;
  TextForm form_ = {};
};

// Writes "name=value name=value member.name=value ..." with every field. Numbers are written so that they read back the
// same. Equal texts mean equal values. Fingerprints and hashes are made of this text.
class FieldDescription : public FieldVisitor {
 public:
  const std::string& text() const { return text_; }

 protected:
  void visit_bool(std::string_view name, bool& value) override;
  void visit_integer(std::string_view name, int64_t& value, const FieldLimits& limits) override;
  void visit_number(std::string_view name, double& value, const FieldLimits& limits) override;
  void visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits& limits) override;
  void visit_text(std::string_view name, std::string& value) override;
  void visit_texts(std::string_view name, std::vector<std::string>& value) override;
  void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) override;
  bool enter(std::string_view name) override;
  void leave(std::string_view name) override;

 private:
  void add(std::string_view name, std::string_view value);
  std::string prefix_, text_;
};

// One field without its type. Members of members are called "member.name", and enumerations hold their value's name.
using FieldValue = std::variant<bool, int64_t, double, std::optional<double>, std::string, std::vector<std::string>>;
struct NamedField {
  std::string name;
  FieldValue value;
  std::vector<std::string_view> choices = {};  // for an enumeration
};

// Lists the fields, or assigns those that it is given.
class FieldValues : public FieldVisitor {
 public:
  FieldValues() = default;
  // Makes a visitor that assigns. Visiting throws std::invalid_argument for a value of another type and for an unknown
  // choice.
  explicit FieldValues(std::span<const NamedField> given) : given_(given), assigns_(true) {}
  std::vector<NamedField>& found() { return found_; }

 protected:
  void visit_bool(std::string_view name, bool& value) override { handle(name, value); }
  void visit_integer(std::string_view name, int64_t& value, const FieldLimits&) override { handle(name, value); }
  void visit_number(std::string_view name, double& value, const FieldLimits&) override { handle(name, value); }
  void visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits&) override {
    handle(name, value);
  }
  void visit_text(std::string_view name, std::string& value) override { handle(name, value); }
  void visit_texts(std::string_view name, std::vector<std::string>& value) override { handle(name, value); }
  void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) override;
  bool enter(std::string_view name) override;
  void leave(std::string_view name) override;

 private:
  template <typename T>
  void handle(std::string_view name, T& value);
  std::span<const NamedField> given_;
  bool assigns_ = false;
  std::string prefix_;
  std::vector<NamedField> found_;
};

// Takes a reference, so that derived classes keep their fields; writes nothing.
template <typename T>
std::vector<NamedField> field_values(T& value) {
  FieldValues values;
  value.fields(values);
  return std::move(values.found());
}

// Assigns the values to the fields of those names; other fields stay. Throws what FieldValues throws.
template <typename T>
void assign_fields(std::span<const NamedField> given, T& value) {
  FieldValues values(given);
  value.fields(values);
}

// Takes a copy, because visiting may write.
template <typename T>
std::string describe_fields(T value) {
  FieldDescription description;
  value.fields(description);
  return description.text();
}

}  // namespace pare::runtime
