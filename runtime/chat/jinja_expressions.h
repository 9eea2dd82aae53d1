// The parser of expressions. That of statements (jinja_parser.cpp) goes on where it ends.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/jinja_lexer.h"
#include "runtime/chat/jinja_syntax.h"

namespace pare::runtime {

// Reads a template's tokens from the first on. All functions throw JinjaError (where, line) for what they cannot read.
class JinjaExpressionParser {
 protected:
  JinjaExpressionParser(std::string_view text, const std::string& where)
      : tokens_(lex_jinja(text, where)), where_(where) {}

  // Counts the nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(JinjaExpressionParser& parser) : parser_(parser) { parser_.check_depth(++parser_.nesting_); }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    JinjaExpressionParser& parser_;
  };

  [[noreturn]] void fail(const std::string& what) const { throw JinjaError(jinja_place(where_, now().line) + what); }

  void check_depth(int depth) const {
    if (depth <= kMaxJinjaNesting) return;
    fail("more than " + std::to_string(kMaxJinjaNesting) + " expressions and blocks inside one another");
  }

  const JinjaToken& now() const { return tokens_[at_]; }
  bool is_symbol(std::string_view symbol) const {
    return now().kind == JinjaToken::Kind::symbol && now().text == symbol;
  }
  bool is_name(std::string_view name) const { return now().kind == JinjaToken::Kind::name && now().text == name; }
  const JinjaToken& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_symbol(std::string_view symbol) { return is_symbol(symbol) && (take(), true); }
  bool take_name(std::string_view name) { return is_name(name) && (take(), true); }

  std::string found() const {
    switch (now().kind) {
      case JinjaToken::Kind::end:
        return "the end of the template";
      case JinjaToken::Kind::end_print:
        return "'}}'";
      case JinjaToken::Kind::end_block:
        return "'%}'";
      case JinjaToken::Kind::string:
        return "a text in quotes";
      case JinjaToken::Kind::integer:
      case JinjaToken::Kind::real:
        return "a number";
      default:
        return "'" + now().text + "'";
    }
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) fail("expected '" + std::string(symbol) + "', found " + found());
  }
  std::string expect_any_name() {
    if (now().kind != JinjaToken::Kind::name) fail("expected a name, found " + found());
    return take().text;
  }
  void expect_block_end() {
    if (now().kind != JinjaToken::Kind::end_block) fail("expected '%}', found " + found());
    take();
  }

  JinjaExpressionPtr make(JinjaExpression::Kind kind) const {
    auto expression = std::make_unique<JinjaExpression>();
    expression->kind = kind;
    expression->line = now().line;
    return expression;
  }
  // Counts `part` (nullptr: nothing) to the depth of the expression that it is put into.
  void count_depth(JinjaExpression& expression, const JinjaExpressionPtr& part) const {
    if (part == nullptr || part->depth < expression.depth) return;
    expression.depth = part->depth + 1;
    check_depth(expression.depth);
  }
  void add_operand(JinjaExpression& expression, JinjaExpressionPtr operand) const {
    count_depth(expression, operand);
    expression.operands.push_back(std::move(operand));
  }
  template <typename... Operands>
  JinjaExpressionPtr make_of(JinjaExpression::Kind kind, Operands... operands) const {
    JinjaExpressionPtr expression = make(kind);
    (add_operand(*expression, std::move(operands)), ...);
    return expression;
  }
  JinjaExpressionPtr constant(JinjaValue value) const {
    JinjaExpressionPtr expression = make(JinjaExpression::Kind::constant);
    expression->value = std::move(value);
    return expression;
  }

  JinjaExpressionPtr parse_expression(bool with_condition = true);
  // Reads one expression, or several with commas between them, which are a tuple.
  JinjaExpressionPtr parse_tuple(bool in_parentheses = false, bool with_condition = true);
  // Reads a filter from its bar on, or from its name on. `value` is what it is applied to; nullptr in a block of
  // filters.
  JinjaExpressionPtr parse_filter(JinjaExpressionPtr value);
  JinjaExpressionPtr parse_filter_name(JinjaExpressionPtr value);

  std::vector<JinjaToken> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int nesting_ = 0;
  int num_loop_uses_ = 0;  // how often the name `loop` was read

 private:
  JinjaExpressionPtr parse_or();
  JinjaExpressionPtr parse_and();
  JinjaExpressionPtr parse_not();
  std::optional<JinjaComparison> take_comparison();
  JinjaExpressionPtr parse_comparison();
  JinjaExpressionPtr binary(JinjaOperator operation, JinjaExpressionPtr left, JinjaExpressionPtr right) const;
  JinjaExpressionPtr parse_sum();
  JinjaExpressionPtr parse_concatenation();
  JinjaExpressionPtr parse_product();
  JinjaExpressionPtr parse_power();
  JinjaExpressionPtr parse_unary(bool with_filter);
  JinjaExpressionPtr parse_primary();
  JinjaExpressionPtr parse_name();
  bool ends_tuple() const;
  JinjaExpressionPtr parse_list();
  JinjaExpressionPtr parse_dict();
  JinjaExpressionPtr parse_postfix(JinjaExpressionPtr value);
  JinjaExpressionPtr parse_attribute(JinjaExpressionPtr value);
  JinjaExpressionPtr parse_subscript(JinjaExpressionPtr value);
  // Reads the arguments in parentheses of a call, a filter or a test.
  void parse_arguments(JinjaExpression& expression);
  JinjaExpressionPtr parse_call(JinjaExpressionPtr value);
  JinjaExpressionPtr parse_filters(JinjaExpressionPtr value);
  std::string dotted_name();
  // True if an argument without parentheses follows a test: `is divisibleby 3`.
  bool has_bare_argument() const;
  JinjaExpressionPtr parse_test(JinjaExpressionPtr value);
};

}  // namespace pare::runtime
