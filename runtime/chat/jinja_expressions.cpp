#include "runtime/chat/jinja_expressions.h"

#include <algorithm>
#include <array>

namespace pare::runtime {
namespace {

using Kind = JinjaExpression::Kind;
using Token = JinjaToken::Kind;

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

template <typename Value, size_t N>
std::optional<Value> find_named(const std::array<Named<Value>, N>& all, std::string_view name) {
  const auto* found = std::ranges::find_if(all, [&](const Named<Value>& item) { return item.name == name; });
  return found == all.end() ? std::nullopt : std::optional(found->value);
}

constexpr std::array kComparisons = {Named<JinjaComparison>{"==", JinjaComparison::equal},
                                     Named<JinjaComparison>{"!=", JinjaComparison::not_equal},
                                     Named<JinjaComparison>{"<", JinjaComparison::less},
                                     Named<JinjaComparison>{"<=", JinjaComparison::less_equal},
                                     Named<JinjaComparison>{">", JinjaComparison::greater},
                                     Named<JinjaComparison>{">=", JinjaComparison::greater_equal}};
constexpr std::array kSums = {Named<JinjaOperator>{"+", JinjaOperator::add},
                              Named<JinjaOperator>{"-", JinjaOperator::subtract}};
constexpr std::array kProducts = {
    Named<JinjaOperator>{"*", JinjaOperator::multiply}, Named<JinjaOperator>{"/", JinjaOperator::divide},
    Named<JinjaOperator>{"//", JinjaOperator::floor_divide}, Named<JinjaOperator>{"%", JinjaOperator::modulo}};

}  // namespace

// Expressions come in the order of how much they bind, from those that bind least. It is Jinja's: `~` binds more than
// `+`, and less than `*`.

JinjaExpressionPtr JinjaExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  JinjaExpressionPtr value = parse_or();
  while (with_condition && take_name("if")) {
    JinjaExpressionPtr condition = parse_or();
    JinjaExpressionPtr otherwise = take_name("else") ? parse_expression() : nullptr;
    value = make_of(Kind::conditional, std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

JinjaExpressionPtr JinjaExpressionParser::parse_or() {
  JinjaExpressionPtr left = parse_and();
  while (take_name("or")) left = make_of(Kind::either, std::move(left), parse_and());
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_and() {
  JinjaExpressionPtr left = parse_not();
  while (take_name("and")) left = make_of(Kind::both, std::move(left), parse_not());
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_not() {
  const Nesting nesting(*this);
  if (take_name("not")) return make_of(Kind::negate, parse_not());
  return parse_comparison();
}

std::optional<JinjaComparison> JinjaExpressionParser::take_comparison() {
  if (now().kind == Token::symbol) {
    const auto comparison = find_named(kComparisons, now().text);
    if (comparison) take();
    return comparison;
  }
  if (take_name("in")) return JinjaComparison::in;
  if (is_name("not") && tokens_[at_ + 1].kind == Token::name && tokens_[at_ + 1].text == "in") {
    take();
    take();
    return JinjaComparison::not_in;
  }
  return std::nullopt;
}

JinjaExpressionPtr JinjaExpressionParser::parse_comparison() {
  JinjaExpressionPtr first = parse_sum();
  JinjaExpressionPtr comparison;
  while (const auto kind = take_comparison()) {
    if (comparison == nullptr) comparison = make_of(Kind::comparison, std::move(first));
    comparison->comparisons.push_back(*kind);
    add_operand(*comparison, parse_sum());
  }
  return comparison != nullptr ? std::move(comparison) : std::move(first);
}

JinjaExpressionPtr JinjaExpressionParser::binary(JinjaOperator operation, JinjaExpressionPtr left,
                                                 JinjaExpressionPtr right) const {
  JinjaExpressionPtr expression = make_of(Kind::binary, std::move(left), std::move(right));
  expression->operation = operation;
  return expression;
}

JinjaExpressionPtr JinjaExpressionParser::parse_sum() {
  JinjaExpressionPtr left = parse_concatenation();
  while (now().kind == Token::symbol) {
    const auto operation = find_named(kSums, now().text);
    if (!operation) break;
    take();
    left = binary(*operation, std::move(left), parse_concatenation());
  }
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_concatenation() {
  JinjaExpressionPtr left = parse_product();
  while (take_symbol("~")) left = binary(JinjaOperator::concatenate, std::move(left), parse_product());
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_product() {
  JinjaExpressionPtr left = parse_power();
  while (now().kind == Token::symbol) {
    const auto operation = find_named(kProducts, now().text);
    if (!operation) break;
    take();
    left = binary(*operation, std::move(left), parse_power());
  }
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_power() {
  JinjaExpressionPtr left = parse_unary(/*with_filter=*/true);
  while (take_symbol("**")) {
    left = binary(JinjaOperator::power, std::move(left), parse_unary(/*with_filter=*/true));
  }
  return left;
}

JinjaExpressionPtr JinjaExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  JinjaExpressionPtr value;
  if (take_symbol("-")) {
    value = make_of(Kind::minus, parse_unary(/*with_filter=*/false));
  } else if (take_symbol("+")) {
    value = make_of(Kind::plus, parse_unary(/*with_filter=*/false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filter ? parse_filters(std::move(value)) : std::move(value);
}

JinjaExpressionPtr JinjaExpressionParser::parse_primary() {
  switch (now().kind) {
    case Token::name:
      return parse_name();
    case Token::string: {
      std::string text;
      while (now().kind == Token::string) text += take().text;
      return constant(std::move(text));
    }
    case Token::integer:
      return constant(take().integer);
    case Token::real:
      return constant(take().real);
    default:
      break;
  }
  if (take_symbol("(")) {
    JinjaExpressionPtr value = parse_tuple(/*in_parentheses=*/true);
    expect_symbol(")");
    return value;
  }
  if (take_symbol("[")) return parse_list();
  if (take_symbol("{")) return parse_dict();
  fail("expected an expression, found " + found());
}

JinjaExpressionPtr JinjaExpressionParser::parse_name() {
  const std::string name = take().text;
  if (name == "true" || name == "True") return constant(true);
  if (name == "false" || name == "False") return constant(false);
  if (name == "none" || name == "None") return constant(JinjaNone{});
  if (name == "loop") ++num_loop_uses_;
  JinjaExpressionPtr expression = make(Kind::name);
  expression->name = name;
  return expression;
}

bool JinjaExpressionParser::ends_tuple() const {
  return now().kind == Token::end || now().kind == Token::end_print || now().kind == Token::end_block || is_symbol(")");
}

JinjaExpressionPtr JinjaExpressionParser::parse_tuple(bool in_parentheses, bool with_condition) {
  const Nesting nesting(*this);
  std::vector<JinjaExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) {
      if (!take_symbol(",")) break;
      is_tuple = true;
    }
    if (ends_tuple()) break;
    items.push_back(parse_expression(with_condition));
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (items.empty() && !in_parentheses) fail("expected an expression, found " + found());
  JinjaExpressionPtr tuple = make(Kind::tuple);
  for (JinjaExpressionPtr& item : items) add_operand(*tuple, std::move(item));
  return tuple;
}

JinjaExpressionPtr JinjaExpressionParser::parse_list() {
  JinjaExpressionPtr list = make(Kind::list);
  while (!take_symbol("]")) {
    if (!list->operands.empty()) {
      expect_symbol(",");
      if (take_symbol("]")) break;
    }
    add_operand(*list, parse_expression());
  }
  return list;
}

JinjaExpressionPtr JinjaExpressionParser::parse_dict() {
  JinjaExpressionPtr dict = make(Kind::dict);
  while (!take_symbol("}")) {
    if (!dict->operands.empty()) {
      expect_symbol(",");
      if (take_symbol("}")) break;
    }
    add_operand(*dict, parse_expression());
    expect_symbol(":");
    add_operand(*dict, parse_expression());
  }
  return dict;
}

JinjaExpressionPtr JinjaExpressionParser::parse_postfix(JinjaExpressionPtr value) {
  while (true) {
    if (take_symbol(".")) {
      value = parse_attribute(std::move(value));
    } else if (take_symbol("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_symbol("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

JinjaExpressionPtr JinjaExpressionParser::parse_attribute(JinjaExpressionPtr value) {
  if (now().kind == Token::integer) {  // `items.0` is `items[0]`
    JinjaExpressionPtr index = constant(take().integer);
    return make_of(Kind::subscript, std::move(value), std::move(index));
  }
  JinjaExpressionPtr attribute = make_of(Kind::attribute, std::move(value));
  attribute->name = expect_any_name();
  return attribute;
}

JinjaExpressionPtr JinjaExpressionParser::parse_subscript(JinjaExpressionPtr value) {
  JinjaExpressionPtr first = is_symbol(":") ? nullptr : parse_expression();
  if (!is_symbol(":")) {
    if (is_symbol(",")) fail("several subscripts at once are not supported");
    expect_symbol("]");
    return make_of(Kind::subscript, std::move(value), std::move(first));
  }
  std::array<JinjaExpressionPtr, 2> rest;
  for (JinjaExpressionPtr& part : rest) {
    if (!take_symbol(":")) break;
    if (!is_symbol(":") && !is_symbol("]")) part = parse_expression();
  }
  expect_symbol("]");
  return make_of(Kind::slice, std::move(value), std::move(first), std::move(rest[0]), std::move(rest[1]));
}

void JinjaExpressionParser::parse_arguments(JinjaExpression& expression) {
  JinjaCallArguments& arguments = expression.arguments;
  const auto parse_argument = [&] {
    JinjaExpressionPtr argument = parse_expression();
    count_depth(expression, argument);
    return argument;
  };
  expect_symbol("(");
  for (bool is_first = true; !take_symbol(")"); is_first = false) {
    if (!is_first) {
      expect_symbol(",");
      if (take_symbol(")")) break;
    }
    if (take_symbol("*")) {
      arguments.more_positional = parse_argument();
    } else if (take_symbol("**")) {
      arguments.more_named = parse_argument();
    } else if (now().kind == Token::name && tokens_[at_ + 1].kind == Token::symbol && tokens_[at_ + 1].text == "=") {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_argument());
    } else {
      if (!arguments.named.empty()) fail("an argument without a name follows one with a name");
      arguments.positional.push_back(parse_argument());
    }
  }
}

JinjaExpressionPtr JinjaExpressionParser::parse_call(JinjaExpressionPtr value) {
  const Nesting nesting(*this);
  JinjaExpressionPtr call = make_of(Kind::call, std::move(value));
  parse_arguments(*call);
  return call;
}

JinjaExpressionPtr JinjaExpressionParser::parse_filters(JinjaExpressionPtr value) {
  while (true) {
    if (is_symbol("|")) {
      value = parse_filter(std::move(value));
    } else if (is_name("is")) {
      value = parse_test(std::move(value));
    } else if (is_symbol("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

std::string JinjaExpressionParser::dotted_name() {
  std::string name = expect_any_name();
  while (take_symbol(".")) name += "." + expect_any_name();
  return name;
}

JinjaExpressionPtr JinjaExpressionParser::parse_filter(JinjaExpressionPtr value) {
  expect_symbol("|");
  return parse_filter_name(std::move(value));
}

JinjaExpressionPtr JinjaExpressionParser::parse_filter_name(JinjaExpressionPtr value) {
  JinjaExpressionPtr filter = make_of(Kind::filter, std::move(value));
  filter->name = dotted_name();
  if (is_symbol("(")) parse_arguments(*filter);
  return filter;
}

bool JinjaExpressionParser::has_bare_argument() const {
  switch (now().kind) {
    case Token::name:
      return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is");
    case Token::string:
    case Token::integer:
    case Token::real:
      return true;
    default:
      return is_symbol("[") || is_symbol("{");
  }
}

JinjaExpressionPtr JinjaExpressionParser::parse_test(JinjaExpressionPtr value) {
  take();
  const bool is_negated = take_name("not");
  JinjaExpressionPtr test = make_of(Kind::test, std::move(value));
  test->name = dotted_name();
  if (is_symbol("(")) {
    parse_arguments(*test);
  } else if (has_bare_argument() && !is_name("if") && !is_name("not") && !is_name("in")) {
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
    count_depth(*test, test->arguments.positional.back());
  }
  return is_negated ? make_of(Kind::negate, std::move(test)) : std::move(test);
}

}  // namespace pare::runtime
