#include "runtime/commands/option_table.h"

#include <algorithm>
#include <cstdio>

namespace pare::runtime {
namespace {

bool lies_within(double value, const FieldLimits& limits) {
  if (limits.values.empty()) return value >= limits.low && value <= limits.high;
  return std::any_of(limits.values.begin(), limits.values.end(),
                     [&](int64_t allowed) { return static_cast<double>(allowed) == value; });
}

class TableOfFields : public FieldVisitor {
 public:
  std::vector<OptionRow> rows;

 protected:
  void visit_bool(std::string_view name, bool& value) override { add(name, OptionType::truth).fallback = value; }
  void visit_integer(std::string_view name, int64_t& value, const FieldLimits& limits) override {
    OptionRow& row = add(name, OptionType::whole);
    row.limits = limits;
    // One that a recipe could not give means that none was given.
    if (lies_within(static_cast<double>(value), limits)) row.fallback = value;
  }
  void visit_number(std::string_view name, double& value, const FieldLimits& limits) override {
    OptionRow& row = add(name, OptionType::number);
    row.limits = limits;
    row.fallback = value;
  }
  void visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits& limits) override {
    OptionRow& row = add(name, OptionType::number);
    row.limits = limits;
    if (value) row.fallback = *value;
  }
  void visit_text(std::string_view name, std::string& value) override {
    OptionRow& row = add(name, OptionType::text);
    row.form = form();
    if (!value.empty()) row.fallback = value;
  }
  void visit_texts(std::string_view name, std::vector<std::string>& value) override {
    OptionRow& row = add(name, OptionType::texts);
    if (!value.empty()) row.fallback = value;
  }
  void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) override {
    OptionRow& row = add(name, OptionType::choice);
    row.choices.assign(names.begin(), names.end());
    row.fallback = std::string(names[index]);
    row.stands_for_map = name == "type";
  }
  void visit_integers(std::string_view name, std::vector<int64_t>& value, const FieldLimits& limits) override {
    OptionRow& row = add(name, OptionType::wholes);
    row.limits = limits;
    row.fallback_list = value;
  }
  void visit_other(std::string_view name) override { add(name, OptionType::other); }
  bool enter(std::string_view name) override {
    add(name, OptionType::map);
    prefix_ += std::string(name) + ".";
    return true;
  }
  void leave(std::string_view name) override { prefix_.resize(prefix_.size() - name.size() - 1); }
  bool visits_decided() const override { return false; }

 private:
  OptionRow& add(std::string_view name, OptionType type) {
    OptionRow& row = rows.emplace_back();
    row.name = prefix_ + std::string(name);
    row.type = type;
    row.meaning = meaning();
    return row;
  }
  std::string prefix_;
};

// 0.0001, 1e-08, 1000000.
std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.12g", value);
  return text;
}

std::string whole_text(const FieldLimits& limits) {
  const WholeLimits whole = whole_limits(limits);
  const WholeLimits widest;
  if (whole.high == widest.high) return "at least " + std::to_string(whole.low);
  return std::to_string(whole.low) + " to " + std::to_string(whole.high);
}

std::string range_text(const FieldLimits& limits) {
  if (limits.low == kAboveZero) return "above 0, at most " + number_text(limits.high);
  return number_text(limits.low) + " to " + number_text(limits.high);
}

std::vector<std::string> quoted(const std::vector<std::string>& names, const std::string& quote) {
  std::vector<std::string> result;
  for (const std::string& name : names) result.push_back(quote + name + quote);
  return result;
}

std::vector<std::string> value_texts(const FieldLimits& limits) {
  std::vector<std::string> texts;
  for (const int64_t value : limits.values) texts.push_back(std::to_string(value));
  return texts;
}

}  // namespace

std::vector<OptionRow> option_rows(const VisitFields& fields) {
  TableOfFields table;
  fields(table);
  return std::move(table.rows);
}

std::string listed(const std::vector<std::string>& names, const std::string& last) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " " + last + " " : ", ";
    text += names[i];
  }
  return text;
}

std::string fallback_text(const OptionRow& row) {
  if (!row.fallback_list.empty()) {
    std::vector<std::string> texts;
    for (const int64_t value : row.fallback_list) texts.push_back(std::to_string(value));
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
    return "[" + all + "]";
  }
  if (!row.fallback) return "";
  struct Words {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return number_text(value); }
    std::string operator()(const std::optional<double>& value) const { return value ? number_text(*value) : ""; }
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(const std::vector<std::string>& value) const { return listed(value, "and"); }
  };
  return std::visit(Words(), *row.fallback);
}

std::string allowed_text(const OptionRow& row, const std::string& quote) {
  switch (row.type) {
    case OptionType::truth:
      return listed(quoted({"true", "false"}, quote), "or");
    case OptionType::whole:
      return row.limits.values.empty() ? whole_text(row.limits) : listed(value_texts(row.limits), "or");
    case OptionType::wholes:
      return "list of " + (row.limits.values.empty() ? whole_text(row.limits) : listed(value_texts(row.limits), "and"));
    case OptionType::number:
      return range_text(row.limits);
    case OptionType::text:
      return row.form.words.empty() ? "text" : std::string(row.form.words);
    case OptionType::texts:
      return "text, or list of texts";
    case OptionType::choice:
      return listed(quoted(row.choices, quote), "or");
    case OptionType::map:
      return "map";
    case OptionType::other:
      return "";
  }
  return "";
}

}  // namespace pare::runtime
