// The members of a record or of a method's options, listed once for each type by its member function
//
//   void fields(FieldVisitor& visit)   calls   visit("name", member)   for every member, in one fixed order.
//
// Reading from recipes and records, writing, hashing, fingerprints and descriptions all go through that list, so that a
// new member is one new line. Enumerations are written by name: their type has a function
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
#include <variant>
#include <vector>

namespace pare {

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

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  void operator()(std::string_view name, bool& value) { visit_bool(name, value); }
  void operator()(std::string_view name, std::string& value) { visit_text(name, value); }
  void operator()(std::string_view name, std::vector<std::string>& value) { visit_texts(name, value); }
  void operator()(std::string_view name, std::optional<double>& value, const FieldLimits& limits = {}) {
    visit_optional(name, value, limits);
  }
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) void operator()(std::string_view name, T& value,
                                                                              const FieldLimits& limits = {}) {
    auto wide = static_cast<int64_t>(value);
    visit_integer(name, wide, limits);
    value = static_cast<T>(wide);
  }
  template <typename T>
  requires std::is_floating_point_v<T>
  void operator()(std::string_view name, T& value, const FieldLimits& limits = {}) {
    auto wide = static_cast<double>(value);
    visit_number(name, wide, limits);
    value = static_cast<T>(wide);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(std::string_view name, E& value) {
    std::vector<std::string_view> names;
    size_t index = 0;
    for (const EnumName<E>& item : enum_names(value)) {
      if (item.value == value) index = names.size();
      names.push_back(item.name);
    }
    visit_choice(name, names, index);
    value = enum_names(value)[index].value;
  }
  // Visits a member with fields of its own.
  template <typename T>
  requires requires(T& value, FieldVisitor& visit) { value.fields(visit); }
  void operator()(std::string_view name, T& value) {
    if (!enter(name)) return;
    value.fields(*this);
    leave(name);
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
  // Returns false to leave out the member's own fields.
  virtual bool enter(std::string_view) { return true; }
  virtual void leave(std::string_view) {}
  virtual bool visits_decided() const { return true; }
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

}  // namespace pare
