#include <map>
#include <string>

#include "runtime/chat/jinja_filters.h"
#include "runtime/chat/jinja_operations.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/chat/python_case.h"

namespace pare::runtime {
namespace {

using Test = bool (*)(const JinjaValue& value, JinjaArguments& arguments);

template <JinjaComparison kComparison>
bool compare(const JinjaValue& value, JinjaArguments& arguments) {
  return jinja_compare(kComparison, value, arguments.require("other"));
}

JinjaValue modulo(const JinjaValue& value, const JinjaValue& divisor) {
  return jinja_binary(JinjaOperator::modulo, value, divisor);
}

template <bool kOdd>
bool has_parity(const JinjaValue& value, JinjaArguments&) {
  return modulo(value, 2) == JinjaValue(kOdd ? 1 : 0);
}

template <LetterCase kCase>
bool is_in_case(const JinjaValue& value, JinjaArguments& arguments) {
  const JinjaValue text = jinja_text(value);
  return call_jinja_method(text, kCase == LetterCase::lower ? "islower" : "isupper", arguments)->is_true();
}

const std::map<std::string_view, Test>& tests() {
  static const std::map<std::string_view, Test> kTests = {
      {"defined", [](const JinjaValue& v, JinjaArguments&) { return !v.is_undefined(); }},
      {"undefined", [](const JinjaValue& v, JinjaArguments&) { return v.is_undefined(); }},
      {"none", [](const JinjaValue& v, JinjaArguments&) { return v.is_none(); }},
      {"boolean", [](const JinjaValue& v, JinjaArguments&) { return v.boolean() != nullptr; }},
      {"true", [](const JinjaValue& v, JinjaArguments&) { return v.boolean() != nullptr && *v.boolean(); }},
      {"false", [](const JinjaValue& v, JinjaArguments&) { return v.boolean() != nullptr && !*v.boolean(); }},
      {"integer", [](const JinjaValue& v, JinjaArguments&) { return v.integer() != nullptr; }},
      {"float", [](const JinjaValue& v, JinjaArguments&) { return v.real() != nullptr; }},
      {"number", [](const JinjaValue& v, JinjaArguments&) { return v.is_number(); }},
      {"string", [](const JinjaValue& v, JinjaArguments&) { return v.text() != nullptr; }},
      {"mapping", [](const JinjaValue& v, JinjaArguments&) { return v.dict() != nullptr; }},
      {"sequence",
       [](const JinjaValue& v, JinjaArguments&) {
         return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
       }},
      {"iterable",
       [](const JinjaValue& v, JinjaArguments&) {
         return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
       }},
      {"callable", [](const JinjaValue& v, JinjaArguments&) { return v.function() != nullptr; }},
      {"sameas", [](const JinjaValue& v, JinjaArguments& a) { return v.is_same(a.require("other")); }},
      {"in",
       [](const JinjaValue& v, JinjaArguments& a) { return jinja_compare(JinjaComparison::in, v, a.require("seq")); }},
      {"divisibleby", [](const JinjaValue& v, JinjaArguments& a) { return !modulo(v, a.require("num")).is_true(); }},
      {"even", has_parity<false>},
      {"odd", has_parity<true>},
      {"lower", is_in_case<LetterCase::lower>},
      {"upper", is_in_case<LetterCase::upper>},
      {"filter",
       [](const JinjaValue& v, JinjaArguments&) { return v.text() != nullptr && is_jinja_filter(*v.text()); }},
      {"test", [](const JinjaValue& v, JinjaArguments&) { return v.text() != nullptr && is_jinja_test(*v.text()); }},
      {"eq", compare<JinjaComparison::equal>},
      {"equalto", compare<JinjaComparison::equal>},
      {"==", compare<JinjaComparison::equal>},
      {"ne", compare<JinjaComparison::not_equal>},
      {"!=", compare<JinjaComparison::not_equal>},
      {"lt", compare<JinjaComparison::less>},
      {"lessthan", compare<JinjaComparison::less>},
      {"<", compare<JinjaComparison::less>},
      {"le", compare<JinjaComparison::less_equal>},
      {"<=", compare<JinjaComparison::less_equal>},
      {"gt", compare<JinjaComparison::greater>},
      {"greaterthan", compare<JinjaComparison::greater>},
      {">", compare<JinjaComparison::greater>},
      {"ge", compare<JinjaComparison::greater_equal>},
      {">=", compare<JinjaComparison::greater_equal>},
  };
  return kTests;
}

}  // namespace

bool is_jinja_test(std::string_view name) {
  return tests().contains(name);
}

bool apply_jinja_test(std::string_view name, const JinjaValue& value, JinjaArguments& arguments) {
  const auto test = tests().find(name);
  if (test == tests().end()) throw JinjaError("there is no test called \'" + std::string(name) + "\'");
  const bool passes = test->second(value, arguments);
  arguments.finish();
  return passes;
}

}  // namespace pare::runtime
