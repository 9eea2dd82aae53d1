// What a list of fields says to people: each option with its default, what it may be and what it means. `pare recipes`
// prints it in three forms (recipe_guide.h, recipe_schema.h), and `eval` has its options from it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/format/fields.h"

namespace pare::runtime {

// Visits the fields of a value that it holds.
using VisitFields = std::function<void(FieldVisitor&)>;
// `value`, by reference.
template <typename T>
VisitFields fields_of(T& value) {
  return [&value](FieldVisitor& visit) { value.fields(visit); };
}

enum class OptionType {
  truth,
  whole,   // a whole number
  wholes,  // a list of them
  number,
  text,
  texts,  // a list, or one
  choice,
  map,   // the options after it, whose names begin with its own
  other  // a form of its own
};

struct OptionRow {
  std::string name;  // "range"; in a map "activations.range"
  OptionType type = OptionType::other;
  FieldLimits limits = {};                  // of numbers
  TextForm form = {};                       // of a text
  std::vector<std::string> choices = {};    // of a choice
  std::optional<FieldValue> fallback = {};  // where a recipe gives none; empty: there is none, as `meaning` says
  std::vector<int64_t> fallback_list = {};  // of wholes
  std::string meaning = {};
  bool stands_for_map = false;  // of a choice `type`: its text may stand for the whole map that it is in
};

// A row for every field that a recipe may give, in order; a map before what is in it.
std::vector<OptionRow> option_rows(const VisitFields& fields);

// As it would stand in a recipe: "0.01", "true", "static"; empty where there is none.
std::string fallback_text(const OptionRow& row);
// "1 to 4096", "2, 3, 4 or 8", "above 0, at most 1", "minmax or hessian". `quote` stands before and after each value
// that is written as it is.
std::string allowed_text(const OptionRow& row, const std::string& quote);

// "a", "a or b", "a, b or c".
std::string listed(const std::vector<std::string>& names, const std::string& last);

}  // namespace pare::runtime
