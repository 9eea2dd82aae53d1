#include "compress/recipe/given_options.h"

#include <algorithm>

#include "runtime/format/linear_weights.h"

namespace pare::compress {
namespace {

using Value = YamlValue;

// The names of all options that a recipe may give, in order; maps of their own before what is in them.
class NamesOfFields : public runtime::FieldVisitor {
 public:
  std::vector<std::string> names;

 protected:
  void visit_bool(std::string_view name, bool&) override { add(name); }
  void visit_integer(std::string_view name, int64_t&, const runtime::FieldLimits&) override { add(name); }
  void visit_number(std::string_view name, double&, const runtime::FieldLimits&) override { add(name); }
  void visit_optional(std::string_view name, std::optional<double>&, const runtime::FieldLimits&) override {
    add(name);
  }
  void visit_text(std::string_view name, std::string&) override { add(name); }
  void visit_texts(std::string_view name, std::vector<std::string>&) override { add(name); }
  void visit_choice(std::string_view name, std::span<const std::string_view>, size_t&) override { add(name); }
  void visit_integers(std::string_view name, std::vector<int64_t>&, const runtime::FieldLimits&) override { add(name); }
  void visit_other(std::string_view name) override { add(name); }
  bool enter(std::string_view name) override {
    add(name);
    prefix_ += std::string(name) + ".";
    return true;
  }
  void leave(std::string_view name) override { prefix_.resize(prefix_.size() - name.size() - 1); }
  bool visits_decided() const override { return false; }

 private:
  void add(std::string_view name) { names.push_back(prefix_ + std::string(name)); }
  std::string prefix_;
};

int64_t read_integer(const Value& value, const runtime::FieldLimits& limits) {
  if (limits.values.empty()) {
    const runtime::WholeLimits whole = runtime::whole_limits(limits);
    return value.integer(whole.low, whole.high);
  }
  const auto [low, high] = std::minmax_element(limits.values.begin(), limits.values.end());
  const int64_t found = value.integer(*low, *high);
  if (std::find(limits.values.begin(), limits.values.end(), found) != limits.values.end()) return found;
  std::string allowed;
  for (size_t i = 0; i < limits.values.size(); ++i) {
    if (i > 0) allowed += i + 1 == limits.values.size() ? " or " : ", ";
    allowed += std::to_string(limits.values[i]);
    if (limits.values[i] == runtime::kPerChannel) allowed += " (one scale per output channel)";
  }
  value.fail("expected " + allowed + ", found " + std::to_string(found));
}

// Gives the options their values.
class OptionReader : public runtime::FieldVisitor {
 public:
  explicit OptionReader(const GivenOptions& given) : given_(given) {}

 protected:
  void visit_bool(std::string_view name, bool& value) override {
    if (const Value* v = find(name)) value = v->boolean();
  }
  void visit_integer(std::string_view name, int64_t& value, const runtime::FieldLimits& limits) override {
    if (const Value* v = find(name)) value = read_integer(*v, limits);
  }
  void visit_number(std::string_view name, double& value, const runtime::FieldLimits& limits) override {
    if (const Value* v = find(name)) value = v->number(limits.low, limits.high);
  }
  void visit_optional(std::string_view name, std::optional<double>& value,
                      const runtime::FieldLimits& limits) override {
    if (const Value* v = find(name)) value = v->number(limits.low, limits.high);
  }
  void visit_text(std::string_view name, std::string& value) override {
    if (const Value* v = find(name)) value = v->text();
  }
  void visit_texts(std::string_view name, std::vector<std::string>& value) override {
    const Value* v = find(name);
    if (v == nullptr) return;
    value.clear();
    if (!v->is_list()) {
      value.push_back(v->text());
      return;
    }
    for (const Value& item : v->list()) value.push_back(item.text());
  }
  void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) override {
    const Value* v = find(name);
    if (v == nullptr) return;
    std::vector<std::pair<std::string, size_t>> choices;
    for (size_t i = 0; i < names.size(); ++i) choices.emplace_back(names[i], i);
    index = v->choice<size_t>(choices);
  }
  void visit_integers(std::string_view name, std::vector<int64_t>& value, const runtime::FieldLimits& limits) override {
    const Value* v = find(name);
    if (v == nullptr) return;
    value.clear();
    for (const Value& item : v->list()) value.push_back(read_integer(item, limits));
  }
  void visit_other(std::string_view) override {}
  bool makes_missing() const override { return true; }
  bool enter(std::string_view name) override {
    if (find(name) == nullptr) return false;
    prefix_ += std::string(name) + ".";
    return true;
  }
  void leave(std::string_view name) override { prefix_.resize(prefix_.size() - name.size() - 1); }
  bool visits_decided() const override { return false; }

 private:
  const Value* find(std::string_view name) const {
    const auto found = given_.find(prefix_ + std::string(name));
    return found == given_.end() ? nullptr : &found->second;
  }
  const GivenOptions& given_;
  std::string prefix_;
};

// The map's values under their names, those below `prefix` of `names` being known.
void take(const Value& value, const std::vector<std::string>& names, const std::string& prefix,
          const Value::Explain& explain, GivenOptions& given) {
  const bool has_type = std::find(names.begin(), names.end(), prefix + "type") != names.end();
  if (has_type && !value.is_map()) {
    given.emplace(prefix + "type", value);
    return;
  }
  Value::Handlers handlers;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix) || name.find('.', prefix.size()) != std::string::npos) continue;
    handlers.emplace_back(name.substr(prefix.size()), [&, name](const Value& v) {
      given.emplace(name, v);
      const bool is_nested =
          std::any_of(names.begin(), names.end(), [&](const auto& other) { return other.starts_with(name + "."); });
      if (is_nested) take(v, names, name + ".", explain, given);
    });
  }
  value.read_map(handlers, explain);
}

}  // namespace

std::vector<std::string> names_of_fields(const runtime::VisitFields& fields) {
  NamesOfFields names;
  fields(names);
  return std::move(names.names);
}

GivenOptions read_fields(const YamlValue& value, const runtime::VisitFields& fields,
                         const std::vector<std::string>& allowed, const YamlValue::Explain& explain) {
  GivenOptions given;
  take(value, allowed.empty() ? names_of_fields(fields) : allowed, "", explain, given);
  OptionReader reader(given);
  fields(reader);
  return given;
}

GivenOptions within(const GivenOptions& given, const std::string& key) {
  GivenOptions inner;
  for (const auto& [name, value] : given) {
    if (name.starts_with(key + ".")) inner.emplace(name.substr(key.size() + 1), value);
  }
  return inner;
}

}  // namespace pare::compress
