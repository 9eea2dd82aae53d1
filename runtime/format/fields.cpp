#include "runtime/format/fields.h"

#include <algorithm>
#include <cstdio>

namespace pare::runtime {
namespace {

// 17 digits give every double back.
std::string digits(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

// Quotes and escapes, so that a text cannot pretend to be another field.
std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace

WholeLimits whole_limits(const FieldLimits& limits) {
  constexpr double kEnd = 0x1p63;
  WholeLimits whole;
  if (limits.low > -kEnd) whole.low = static_cast<int64_t>(limits.low);
  if (limits.high < kEnd) whole.high = static_cast<int64_t>(limits.high);
  return whole;
}

void FieldVisitor::visit_integers(std::string_view name, std::vector<int64_t>&, const FieldLimits&) {
  throw std::logic_error("'" + std::string(name) + "' is a list of numbers, which this visitor does not know");
}

void FieldVisitor::visit_other(std::string_view name) {
  throw std::logic_error("'" + std::string(name) + "' has a form of its own, which this visitor does not know");
}

size_t FieldVisitor::place_of(std::string_view name, std::string_view value,
                              std::span<const std::string_view> choices) {
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  throw std::invalid_argument("'" + std::string(name) + "' is '" + std::string(value) +
                              "', which is not one of its choices");
}

void FieldDescription::add(std::string_view name, std::string_view value) {
  if (!text_.empty()) text_ += " ";
  text_ += prefix_;
  text_ += name;
  text_ += "=";
  text_ += value;
}

void FieldDescription::visit_bool(std::string_view name, bool& value) {
  add(name, value ? "true" : "false");
}

void FieldDescription::visit_integer(std::string_view name, int64_t& value, const FieldLimits&) {
  add(name, std::to_string(value));
}

void FieldDescription::visit_number(std::string_view name, double& value, const FieldLimits&) {
  add(name, digits(value));
}

void FieldDescription::visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits&) {
  add(name, value ? digits(*value) : "none");
}

void FieldDescription::visit_text(std::string_view name, std::string& value) {
  add(name, in_quotes(value));
}

void FieldDescription::visit_texts(std::string_view name, std::vector<std::string>& value) {
  std::string all = "[";
  for (const std::string& item : value) all += (all.size() > 1 ? "," : "") + in_quotes(item);
  add(name, all + "]");
}

void FieldDescription::visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) {
  add(name, names[index]);
}

template <typename T>
void FieldValues::handle(std::string_view name, T& value) {
  const std::string full = prefix_ + std::string(name);
  if (!assigns_) {
    found_.push_back({full, value});
    return;
  }
  for (const NamedField& field : given_) {
    if (field.name != full) continue;
    const T* found = std::get_if<T>(&field.value);
    if (found == nullptr) throw std::invalid_argument("'" + full + "' has a value of another type than expected");
    value = *found;
  }
}

void FieldValues::visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) {
  std::string chosen(names[index]);
  handle(name, chosen);
  if (!assigns_) {
    found_.back().choices.assign(names.begin(), names.end());
    return;
  }
  for (index = 0; index < names.size(); ++index) {
    if (names[index] == chosen) return;
  }
  index = 0;
  throw std::invalid_argument("'" + prefix_ + std::string(name) + "' is '" + chosen +
                              "', which is not one of its choices");
}

bool FieldValues::enter(std::string_view name) {
  prefix_ += name;
  prefix_ += ".";
  return true;
}

void FieldValues::leave(std::string_view name) {
  prefix_.resize(prefix_.size() - name.size() - 1);
}

bool FieldDescription::enter(std::string_view name) {
  prefix_ += name;
  prefix_ += ".";
  return true;
}

void FieldDescription::leave(std::string_view name) {
  prefix_.resize(prefix_.size() - name.size() - 1);
}

}  // namespace pare::runtime
