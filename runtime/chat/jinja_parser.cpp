#include <algorithm>
#include <array>

#include "runtime/chat/jinja_expressions.h"
#include "runtime/chat/jinja_syntax.h"

namespace pare::runtime {
namespace {

using Statement = JinjaStatement::Kind;

class StatementParser : private JinjaExpressionParser {
 public:
  StatementParser(std::string_view text, const std::string& where) : JinjaExpressionParser(text, where) {}

  JinjaStatements run() { return parse_body({}); }

 private:
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
    while (now().kind != JinjaToken::Kind::end) {
      if (now().kind == JinjaToken::Kind::text) {
        auto text = make(Statement::text);
        text->text = take().text;
        body.push_back(std::move(text));
      } else if (now().kind == JinjaToken::Kind::begin_print) {
        take();
        auto print = make(Statement::print);
        print->expression = parse_tuple();
        if (now().kind != JinjaToken::Kind::end_print) fail("expected '}}', found " + found());
        take();
        body.push_back(std::move(print));
      } else {
        take();  // begin_block
        if (now().kind == JinjaToken::Kind::name && std::ranges::find(ends, now().text) != ends.end()) return body;
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
    std::string end;
    do {
      JinjaBranch& branch = choice->branches.emplace_back();
      branch.condition = parse_tuple(/*in_parentheses=*/false, /*with_condition=*/false);
      expect_block_end();
      branch.body = parse_body({"elif", "else", "endif"});
      end = take().text;
    } while (end == "elif");
    expect_block_end();
    if (end == "else") choice->otherwise = parse_body_to("endif");
    return choice;
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
    // A recursive loop's call of `loop` runs this part where no loop around it can be left.
    if (has_else) loop->otherwise = loop->is_recursive ? parse_function_body("endfor") : parse_body_to("endfor");
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
      if (now().kind != JinjaToken::Kind::name && !is_symbol("(")) break;
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
    if (call->expression->kind != JinjaExpression::Kind::call) fail("expected a call");
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
    while (now().kind != JinjaToken::Kind::end_block) {
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

  int num_loops_ = 0;
};

}  // namespace

JinjaStatements parse_jinja(std::string_view text, const std::string& where) {
  return StatementParser(text, where).run();
}

}  // namespace pare::runtime
