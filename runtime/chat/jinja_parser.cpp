#include <algorithm>
#include <array>
#include <optional>

#include "runtime/chat/jinja_lexer.h"
#include "runtime/chat/jinja_syntax.h"

namespace pare::runtime {
namespace {

using Kind = JinjaExpression::Kind;
using Token = JinjaToken::Kind;
using Statement = JinjaStatement::Kind;

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

constexpr std::array kComparisons = {Named{std::string_view("=="), JinjaComparison::equal},
                                     Named{std::string_view("!="), JinjaComparison::not_equal},
                                     Named{std::string_view("<"), JinjaComparison::less},
                                     Named{std::string_view("<="), JinjaComparison::less_equal},
                                     Named{std::string_view(">"), JinjaComparison::greater},
                                     Named{std::string_view(">="), JinjaComparison::greater_equal}};
constexpr std::array kSums = {Named{std::string_view("+"), JinjaOperator::add},
                              Named{std::string_view("-"), JinjaOperator::subtract}};
constexpr std::array kProducts = {
    Named{std::string_view("*"), JinjaOperator::multiply}, Named{std::string_view("/"), JinjaOperator::divide},
    Named{std::string_view("//"), JinjaOperator::floor_divide}, Named{std::string_view("%"), JinjaOperator::modulo}};

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : tokens_(lex_jinja(text, where)), where_(where) {}

  JinjaStatements run() {
    JinjaStatements statements = parse_body({});
    return statements;
  }

 private:
  // Counts the nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxJinjaNesting) {
        parser_.fail("more than " + std::to_string(kMaxJinjaNesting) + " expressions and blocks inside one another");
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(const std::string& what) const { throw JinjaError(jinja_place(where_, now().line) + what); }

  const JinjaToken& now() const { return tokens_[at_]; }
  bool is_symbol(std::string_view symbol) const { return now().kind == Token::symbol && now().text == symbol; }
  bool is_name(std::string_view name) const { return now().kind == Token::name && now().text == name; }
  const JinjaToken& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_symbol(std::string_view symbol) { return is_symbol(symbol) && (take(), true); }
  bool take_name(std::string_view name) { return is_name(name) && (take(), true); }

  std::string found() const {
    switch (now().kind) {
      case Token::end:
        return "the end of the template";
      case Token::end_print:
        return "'}}'";
      case Token::end_block:
        return "'%}'";
      case Token::string:
        return "a text in quotes";
      case Token::integer:
      case Token::real:
        return "a number";
      default:
        return "'" + now().text + "'";
    }
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) fail("expected '" + std::string(symbol) + "', found " + found());
  }
  std::string expect_any_name() {
    if (now().kind != Token::name) fail("expected a name, found " + found());
    return take().text;
  }
  void expect_block_end() {
    if (now().kind != Token::end_block) fail("expected '%}', found " + found());
    take();
  }

  JinjaExpressionPtr make(Kind kind) const {
    auto expression = std::make_unique<JinjaExpression>();
    expression->kind = kind;
    expression->line = now().line;
    return expression;
  }
  template <typename... Operands>
  JinjaExpressionPtr make_of(Kind kind, Operands... operands) const {
    JinjaExpressionPtr expression = make(kind);
    (expression->operands.push_back(std::move(operands)), ...);
    return expression;
  }
  JinjaExpressionPtr constant(JinjaValue value) const {
    JinjaExpressionPtr expression = make(Kind::constant);
    expression->value = std::move(value);
    return expression;
  }

  // Expressions, from those that bind least. The order is Jinja's: `~` binds more than `+`, and less than `*`.

  JinjaExpressionPtr parse_expression(bool with_condition = true) {
    const Nesting nesting(*this);
    JinjaExpressionPtr value = parse_or();
    while (with_condition && take_name("if")) {
      JinjaExpressionPtr condition = parse_or();
      JinjaExpressionPtr otherwise = take_name("else") ? parse_expression() : nullptr;
      value = make_of(Kind::conditional, std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }

  JinjaExpressionPtr parse_or() {
    JinjaExpressionPtr left = parse_and();
    while (take_name("or")) left = make_of(Kind::either, std::move(left), parse_and());
    return left;
  }

  JinjaExpressionPtr parse_and() {
    JinjaExpressionPtr left = parse_not();
    while (take_name("and")) left = make_of(Kind::both, std::move(left), parse_not());
    return left;
  }

  JinjaExpressionPtr parse_not() {
    const Nesting nesting(*this);
    if (take_name("not")) return make_of(Kind::negate, parse_not());
    return parse_comparison();
  }

  std::optional<JinjaComparison> take_comparison() {
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

  JinjaExpressionPtr parse_comparison() {
    JinjaExpressionPtr first = parse_sum();
    JinjaExpressionPtr comparison;
    while (const auto kind = take_comparison()) {
      if (comparison == nullptr) comparison = make_of(Kind::comparison, std::move(first));
      comparison->comparisons.push_back(*kind);
      comparison->operands.push_back(parse_sum());
    }
    return comparison != nullptr ? std::move(comparison) : std::move(first);
  }

  JinjaExpressionPtr binary(JinjaOperator operation, JinjaExpressionPtr left, JinjaExpressionPtr right) const {
    JinjaExpressionPtr expression = make_of(Kind::binary, std::move(left), std::move(right));
    expression->operation = operation;
    return expression;
  }

  JinjaExpressionPtr parse_sum() {
    JinjaExpressionPtr left = parse_concatenation();
    while (now().kind == Token::symbol) {
      const auto operation = find_named(kSums, now().text);
      if (!operation) break;
      take();
      left = binary(*operation, std::move(left), parse_concatenation());
    }
    return left;
  }

  JinjaExpressionPtr parse_concatenation() {
    JinjaExpressionPtr left = parse_product();
    while (take_symbol("~")) left = binary(JinjaOperator::concatenate, std::move(left), parse_product());
    return left;
  }

  JinjaExpressionPtr parse_product() {
    JinjaExpressionPtr left = parse_power();
    while (now().kind == Token::symbol) {
      const auto operation = find_named(kProducts, now().text);
      if (!operation) break;
      take();
      left = binary(*operation, std::move(left), parse_power());
    }
    return left;
  }

  JinjaExpressionPtr parse_power() {
    JinjaExpressionPtr left = parse_unary(/*with_filter=*/true);
    while (take_symbol("**")) {
      left = binary(JinjaOperator::power, std::move(left), parse_unary(/*with_filter=*/true));
    }
    return left;
  }

  JinjaExpressionPtr parse_unary(bool with_filter) {
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

  JinjaExpressionPtr parse_primary() {
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

  JinjaExpressionPtr parse_name() {
    const std::string name = take().text;
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(JinjaNone{});
    if (name == "loop") ++num_loop_uses_;
    JinjaExpressionPtr expression = make(Kind::name);
    expression->name = name;
    return expression;
  }

  bool ends_tuple() const {
    return now().kind == Token::end || now().kind == Token::end_print || now().kind == Token::end_block ||
           is_symbol(")");
  }

  // Reads one expression, or several with commas between them, which are a tuple.
  JinjaExpressionPtr parse_tuple(bool in_parentheses = false, bool with_condition = true) {
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
    tuple->operands = std::move(items);
    return tuple;
  }

  JinjaExpressionPtr parse_list() {
    JinjaExpressionPtr list = make(Kind::list);
    while (!take_symbol("]")) {
      if (!list->operands.empty()) {
        expect_symbol(",");
        if (take_symbol("]")) break;
      }
      list->operands.push_back(parse_expression());
    }
    return list;
  }

  JinjaExpressionPtr parse_dict() {
    JinjaExpressionPtr dict = make(Kind::dict);
    while (!take_symbol("}")) {
      if (!dict->operands.empty()) {
        expect_symbol(",");
        if (take_symbol("}")) break;
      }
      dict->operands.push_back(parse_expression());
      expect_symbol(":");
      dict->operands.push_back(parse_expression());
    }
    return dict;
  }

  JinjaExpressionPtr parse_postfix(JinjaExpressionPtr value) {
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

  JinjaExpressionPtr parse_attribute(JinjaExpressionPtr value) {
    if (now().kind == Token::integer) {  // `items.0` is `items[0]`
      JinjaExpressionPtr index = constant(take().integer);
      return make_of(Kind::subscript, std::move(value), std::move(index));
    }
    JinjaExpressionPtr attribute = make_of(Kind::attribute, std::move(value));
    attribute->name = expect_any_name();
    return attribute;
  }

  JinjaExpressionPtr parse_subscript(JinjaExpressionPtr value) {
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

  JinjaCallArguments parse_arguments() {
    JinjaCallArguments arguments;
    expect_symbol("(");
    for (bool is_first = true; !take_symbol(")"); is_first = false) {
      if (!is_first) {
        expect_symbol(",");
        if (take_symbol(")")) break;
      }
      if (take_symbol("*")) {
        arguments.more_positional = parse_expression();
      } else if (take_symbol("**")) {
        arguments.more_named = parse_expression();
      } else if (now().kind == Token::name && tokens_[at_ + 1].kind == Token::symbol && tokens_[at_ + 1].text == "=") {
        std::string name = take().text;
        take();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!arguments.named.empty()) fail("an argument without a name follows one with a name");
        arguments.positional.push_back(parse_expression());
      }
    }
    return arguments;
  }

  JinjaExpressionPtr parse_call(JinjaExpressionPtr value) {
    const Nesting nesting(*this);
    JinjaExpressionPtr call = make_of(Kind::call, std::move(value));
    call->arguments = parse_arguments();
    return call;
  }

  JinjaExpressionPtr parse_filters(JinjaExpressionPtr value) {
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

  std::string dotted_name() {
    std::string name = expect_any_name();
    while (take_symbol(".")) name += "." + expect_any_name();
    return name;
  }

  JinjaExpressionPtr parse_filter(JinjaExpressionPtr value) {
    expect_symbol("|");
    return parse_filter_name(std::move(value));
  }

  JinjaExpressionPtr parse_filter_name(JinjaExpressionPtr value) {
    JinjaExpressionPtr filter = make_of(Kind::filter, std::move(value));
    filter->name = dotted_name();
    if (is_symbol("(")) filter->arguments = parse_arguments();
    return filter;
  }

  // True if an argument without parentheses follows a test: `is divisibleby 3`.
  bool has_bare_argument() const {
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

  JinjaExpressionPtr parse_test(JinjaExpressionPtr value) {
    take();
    const bool is_negated = take_name("not");
    JinjaExpressionPtr test = make_of(Kind::test, std::move(value));
    test->name = dotted_name();
    if (is_symbol("(")) {
      test->arguments = parse_arguments();
    } else if (has_bare_argument() && !is_name("if") && !is_name("not") && !is_name("in")) {
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    return is_negated ? make_of(Kind::negate, std::move(test)) : std::move(test);
  }

  // Statements.

  std::unique_ptr<JinjaStatement> make(Statement kind) const {
    auto statement = std::make_unique<JinjaStatement>();
    statement->kind = kind;
    statement->line = now().line;
    return statement;
  }

  // Reads statements up to a block that begins with one of `ends`, whose name is the next token then; with no `ends` to
  // the end of the template.
  JinjaStatements parse_body(const std::vector<std::string_view>& ends) {
    const Nesting nesting(*this);
    const int first_line = now().line;
    JinjaStatements body;
    while (now().kind != Token::end) {
      if (now().kind == Token::text) {
        auto text = make(Statement::text);
        text->text = take().text;
        body.push_back(std::move(text));
      } else if (now().kind == Token::begin_print) {
        take();
        auto print = make(Statement::print);
        print->expression = parse_tuple();
        if (now().kind != Token::end_print) fail("expected '}}', found " + found());
        take();
        body.push_back(std::move(print));
      } else {
        take();  // begin_block
        if (now().kind == Token::name && std::ranges::find(ends, now().text) != ends.end()) return body;
        body.push_back(parse_block(ends));
      }
    }
    if (!ends.empty()) {
      throw JinjaError(jinja_place(where_, first_line) + "the block that begins here does not end: expected '{% " +
                       std::string(ends.back()) + " %}'");
    }
    return body;
  }

  // Reads the body of a block that `end` ends.
  JinjaStatements parse_body_to(std::string_view end) {
    JinjaStatements body = parse_body({end});
    take();
    expect_block_end();
    return body;
  }

  std::unique_ptr<JinjaStatement> parse_block(const std::vector<std::string_view>& ends) {
    const std::string keyword = expect_any_name();
    if (keyword == "if") return parse_if();
    if (keyword == "for") return parse_for();
    if (keyword == "set") return parse_set();
    if (keyword == "macro") return parse_macro();
    if (keyword == "call") return parse_call_block();
    if (keyword == "filter") return parse_filter_block();
    if (keyword == "with") return parse_with();
    if (keyword == "generation" || keyword == "autoescape") return parse_scope(keyword);
    if (keyword == "break" || keyword == "continue") {
      if (num_loops_ == 0) fail("'" + keyword + "' outside of a loop");
      auto jump = make(keyword == "break" ? Statement::stop : Statement::next);
      expect_block_end();
      return jump;
    }
    if (keyword == "include" || keyword == "import" || keyword == "from" || keyword == "extends" ||
        keyword == "block") {
      fail("'" + keyword + "' needs other templates, which a model does not have");
    }
    --at_;
    fail("expected " + (ends.empty() ? std::string("a statement") : "'" + std::string(ends.back()) + "'") +
         ", found the unknown '" + keyword + "'");
  }

  std::unique_ptr<JinjaStatement> parse_if() {
    auto choice = make(Statement::choice);
    JinjaStatement* last = choice.get();
    while (true) {
      last->expression = parse_tuple(/*in_parentheses=*/false, /*with_condition=*/false);
      expect_block_end();
      last->body = parse_body({"elif", "else", "endif"});
      const std::string end = take().text;
      if (end != "elif") {
        expect_block_end();
        if (end == "else") last->otherwise = parse_body_to("endif");
        return choice;
      }
      last->otherwise.push_back(make(Statement::choice));
      last = last->otherwise.back().get();
    }
  }

  std::unique_ptr<JinjaStatement> parse_for() {
    auto loop = make(Statement::loop);
    loop->target = parse_target(/*with_attribute=*/false);
    if (!take_name("in")) fail("expected 'in', found " + found());
    loop->expression = parse_tuple(/*in_parentheses=*/false, /*with_condition=*/false);
    if (take_name("if")) loop->condition = parse_expression();
    loop->is_recursive = take_name("recursive");
    expect_block_end();
    ++num_loops_;
    const int uses_before = num_loop_uses_;
    loop->body = parse_body({"else", "endfor"});
    loop->uses_loop = num_loop_uses_ > uses_before;
    --num_loops_;
    const bool has_else = take().text == "else";
    expect_block_end();
    if (has_else) loop->otherwise = parse_body_to("endfor");
    return loop;
  }

  JinjaTarget parse_one_target(bool with_attribute) {
    JinjaTarget target;
    if (take_symbol("(")) {
      target = parse_target(with_attribute);
      expect_symbol(")");
      return target;
    }
    target.name = expect_any_name();
    constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none", "True", "False", "None"};
    if (std::ranges::find(kConstants, target.name) != kConstants.end()) fail("cannot assign to " + target.name);
    if (with_attribute && take_symbol(".")) target.attribute = expect_any_name();
    return target;
  }

  JinjaTarget parse_target(bool with_attribute) {
    const Nesting nesting(*this);
    JinjaTarget first = parse_one_target(with_attribute);
    if (!is_symbol(",")) return first;
    JinjaTarget tuple;
    tuple.parts.push_back(std::move(first));
    while (take_symbol(",")) {
      if (now().kind != Token::name && !is_symbol("(")) break;
      tuple.parts.push_back(parse_one_target(with_attribute));
    }
    return tuple;
  }

  std::unique_ptr<JinjaStatement> parse_set() {
    auto assign = make(Statement::assign);
    assign->target = parse_target(/*with_attribute=*/true);
    if (take_symbol("=")) {
      assign->expression = parse_tuple();
      expect_block_end();
      return assign;
    }
    assign->kind = Statement::assign_block;
    if (is_symbol("|")) assign->expression = parse_block_filters();
    expect_block_end();
    assign->body = parse_body_to("endset");
    return assign;
  }

  // Reads the filters of a block's text: the first one's operand is missing.
  JinjaExpressionPtr parse_block_filters() {
    JinjaExpressionPtr value;
    while (is_symbol("|")) value = parse_filter(std::move(value));
    return value;
  }

  std::vector<JinjaParameter> parse_parameters() {
    std::vector<JinjaParameter> parameters;
    expect_symbol("(");
    while (!take_symbol(")")) {
      if (!parameters.empty()) {
        expect_symbol(",");
        if (take_symbol(")")) break;
      }
      JinjaParameter parameter;
      parameter.name = expect_any_name();
      if (take_symbol("=")) {
        parameter.otherwise = parse_expression();
      } else if (!parameters.empty() && parameters.back().otherwise != nullptr) {
        fail("a parameter without a default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  // A body in which no loop around it can be left.
  JinjaStatements parse_function_body(std::string_view end) {
    const int loops_around = num_loops_;
    num_loops_ = 0;
    JinjaStatements body = parse_body_to(end);
    num_loops_ = loops_around;
    return body;
  }

  std::unique_ptr<JinjaStatement> parse_macro() {
    auto macro = make(Statement::macro);
    macro->name = expect_any_name();
    macro->parameters = parse_parameters();
    expect_block_end();
    macro->body = parse_function_body("endmacro");
    return macro;
  }

  std::unique_ptr<JinjaStatement> parse_call_block() {
    auto call = make(Statement::call_block);
    if (is_symbol("(")) call->parameters = parse_parameters();
    call->expression = parse_expression();
    if (call->expression->kind != Kind::call) fail("expected a call");
    expect_block_end();
    call->body = parse_function_body("endcall");
    return call;
  }

  std::unique_ptr<JinjaStatement> parse_filter_block() {
    auto filter = make(Statement::filter_block);
    filter->expression = parse_filter_name(nullptr);
    while (is_symbol("|")) filter->expression = parse_filter(std::move(filter->expression));
    expect_block_end();
    filter->body = parse_function_body("endfilter");
    return filter;
  }

  std::unique_ptr<JinjaStatement> parse_with() {
    auto with = make(Statement::with);
    while (now().kind != Token::end_block) {
      if (!with->parameters.empty()) expect_symbol(",");
      JinjaParameter parameter;
      parameter.name = expect_any_name();
      expect_symbol("=");
      parameter.otherwise = parse_expression();
      with->parameters.push_back(std::move(parameter));
    }
    expect_block_end();
    with->body = parse_body_to("endwith");
    return with;
  }

  // `generation` marks what the assistant says, for those who train on it alone; its text is printed as it is.
  std::unique_ptr<JinjaStatement> parse_scope(const std::string& keyword) {
    auto scope = make(Statement::scope);
    if (keyword == "autoescape") parse_expression();  // a chat's text is never escaped
    expect_block_end();
    scope->body = keyword == "generation" ? parse_function_body("endgeneration") : parse_body_to("endautoescape");
    return scope;
  }

  std::vector<JinjaToken> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int nesting_ = 0;
  int num_loops_ = 0;
  int num_loop_uses_ = 0;
};

}  // namespace

JinjaStatements parse_jinja(std::string_view text, const std::string& where) {
  return Parser(text, where).run();
}

}  // namespace pare::runtime
