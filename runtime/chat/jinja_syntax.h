// What a template's text means: expressions and statements as trees.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

// The greatest depth of expressions and blocks inside one another; each operator of a chain, such as `a + b + c`, holds
// those before it. Templates of models need about 20. Parser, interpreter and destructors recurse, and a file must not
// control how deep.
constexpr int kMaxJinjaNesting = 200;

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<JinjaExpression>;

struct JinjaCallArguments {
  std::vector<JinjaExpressionPtr> positional;
  std::vector<std::pair<std::string, JinjaExpressionPtr>> named;
  JinjaExpressionPtr more_positional;  // *list
  JinjaExpressionPtr more_named;       // **dict
};

enum class JinjaOperator { add, subtract, multiply, divide, floor_divide, modulo, power, concatenate };
enum class JinjaComparison { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct JinjaExpression {
  enum class Kind {
    constant,     // value
    name,         // name
    list,         // operands
    tuple,        // operands
    dict,         // operands: key, value, key, value, ...
    attribute,    // operands[0] . name
    subscript,    // operands[0] [ operands[1] ]
    slice,        // operands[0] [ operands[1] : operands[2] : operands[3] ]; nullptr: not given
    call,         // operands[0] ( arguments )
    filter,       // operands[0] | name(arguments); in a filter block operands[0] is nullptr: the block's text
    test,         // operands[0] is name(arguments)
    negate,       // not operands[0]
    minus,        // - operands[0]
    plus,         // + operands[0]
    both,         // operands[0] and operands[1]
    either,       // operands[0] or operands[1]
    binary,       // operands[0] operation operands[1]
    comparison,   // operands[0] comparisons[0] operands[1] comparisons[1] operands[2] ...
    conditional,  // operands[0] if operands[1] else operands[2]; nullptr: no else
  };
  Kind kind = Kind::constant;
  int line = 0;  // from 1
  JinjaValue value;
  std::string name;
  std::vector<JinjaExpressionPtr> operands;
  JinjaCallArguments arguments;
  JinjaOperator operation = JinjaOperator::add;
  std::vector<JinjaComparison> comparisons;
  int depth = 1;  // of expressions inside one another; the parser sets it
};

struct JinjaStatement;
using JinjaStatements = std::vector<std::unique_ptr<JinjaStatement>>;

// One of an `if` statement's conditions, and what it decides on.
struct JinjaBranch {
  JinjaExpressionPtr condition;
  JinjaStatements body;
};

// The target of `set` and `for`: a name, an attribute of a namespace, or several of them.
struct JinjaTarget {
  std::string name;
  std::string attribute;           // of the namespace called `name`; empty: the name itself
  std::vector<JinjaTarget> parts;  // not empty: a tuple is taken apart
};

struct JinjaParameter {
  std::string name;
  JinjaExpressionPtr otherwise;  // nullptr: there is no default
};

struct JinjaStatement {
  enum class Kind {
    text,          // text
    print,         // expression
    choice,        // if and elif: branches, else: otherwise
    loop,          // for target in expression [if condition] [recursive]: body, else: otherwise
    assign,        // set target = expression
    assign_block,  // set target [| filters in expression]: body
    macro,         // name(parameters): body
    call_block,    // call(parameters) expression: body
    filter_block,  // filter expression: body
    with,          // with parameters (names and values): body
    scope,         // body in a scope of its own
    stop,          // break
    next,          // continue
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;
  std::string name;
  JinjaExpressionPtr expression;
  JinjaExpressionPtr condition;
  bool is_recursive = false;
  bool uses_loop = false;  // the name `loop` stands in it
  JinjaTarget target;
  std::vector<JinjaParameter> parameters;
  std::vector<JinjaBranch> branches;
  JinjaStatements body;
  JinjaStatements otherwise;
};

// Reads a template as Jinja 3.1 does with trim_blocks, lstrip_blocks, loop controls and the `generation` block of
// transformers. `where` is the name for messages. Throws JinjaError (where, line) for text that is no template, and for
// statements that load other templates.
JinjaStatements parse_jinja(std::string_view text, const std::string& where);

}  // namespace pare::runtime
