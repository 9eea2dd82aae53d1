#include "runtime/chat/jinja_interpreter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/chat/jinja_filters.h"
#include "runtime/chat/jinja_lexer.h"
#include "runtime/chat/jinja_operations.h"
#include "runtime/chat/jinja_text.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

using Kind = JinjaExpression::Kind;
using Statement = JinjaStatement::Kind;

// The greatest depth of expressions, blocks and calls inside one another while a template runs.
constexpr int kMaxDepth = 500;
// The limits of one chat. A long one takes some 100,000 steps; what takes more than these does not end.
constexpr int64_t kMaxSteps = 10'000'000;
constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kMaxRange = 100'000;          // as in Jinja's sandbox
constexpr std::string_view kCall = "__call__";  // the key under which a recursive loop's function lies in `loop`

// Names and their values. A macro keeps the scope in which it was defined, so the interpreter keeps those.
struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<std::string, JinjaValue>> names;
  bool is_kept = false;

  const JinjaValue* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      for (const auto& [known, value] : scope->names) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }
  void set(const std::string& name, JinjaValue value) {
    for (auto& [known, held] : names) {
      if (known == name) {
        held = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

// Says what ends a block before its end.
enum class Flow { on, stop, next };

class Interpreter {
 public:
  explicit Interpreter(const std::string& where) : where_(where) {}

  std::string run(const JinjaStatements& statements, const JinjaDict& variables) {
    Scope globals, top;
    add_globals(globals);
    top.outer = &globals;
    for (const auto& [name, value] : variables.items) top.set(*name.text(), value);
    std::string text;
    try {
      execute(statements, top, text);
    } catch (const JinjaError& error) {
      throw JinjaError(jinja_place(where_, line_) + error.what());
    }
    return text;
  }

 private:
  void count_step(int line) {
    throw_if_interrupted();
    line_ = line;
    count_steps(1);
  }
  void count_steps(int64_t steps) {
    num_steps_ += steps;
    if (num_steps_ > kMaxSteps) {
      throw JinjaError("the template does not end after " + std::to_string(kMaxSteps) + " steps");
    }
  }

  // Counts what an operation may look through, of which a step's time does for some.
  void count_work(const JinjaValue& value) {
    constexpr int64_t kItemsAStep = 1024, kBytesAStep = 256;
    if (value.text() != nullptr) count_steps(static_cast<int64_t>(value.text()->size()) / kBytesAStep);
    if (value.list() != nullptr) count_steps(jinja_length(value) / kItemsAStep);
  }
  void count_comparison(const JinjaValue& value) {
    constexpr int64_t kValuesAStep = 16;
    count_work(value);
    count_steps(value.num_values() / kValuesAStep);
  }

  // Counts what an operation made, so that no template fills the memory.
  void count_bytes(const JinjaValue& value) {
    if (value.text() != nullptr) count_bytes(value.text()->size());
    if (value.list() == nullptr) return;
    count_bytes(value.list()->items.size() * sizeof(JinjaValue));
    for (const JinjaValue& item : value.list()->items) count_bytes(item.own_bytes());
  }
  void count_bytes(size_t bytes) {
    num_bytes_ += static_cast<int64_t>(bytes);
    if (num_bytes_ > kMaxBytes)
      throw JinjaError("the template makes more than " + std::to_string(kMaxBytes) + " bytes of text");
  }

  class Nesting {
   public:
    explicit Nesting(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) {
        --depth_;
        throw JinjaError("more than " + std::to_string(kMaxDepth) + " expressions and calls inside one another");
      }
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  // Runs `body` with a new scope inside `outer`, which lives on if a macro was defined in it.
  template <typename Body>
  auto in_scope(Scope& outer, const Body& body) {
    auto scope = std::make_unique<Scope>();
    scope->outer = &outer;
    Scope& inner = *scope;
    struct Keeper {
      std::vector<std::unique_ptr<Scope>>& kept;
      std::unique_ptr<Scope>& scope;
      ~Keeper() {
        if (scope->is_kept) kept.push_back(std::move(scope));
      }
    } keeper{kept_scopes_, scope};
    return body(inner);
  }

  // Lets the scope live as long as the interpreter.
  void keep(Scope& scope) {
    for (Scope* s = &scope; s != nullptr && !s->is_kept; s = s->outer) {
      s->is_kept = true;
      constexpr size_t kBytesAName = 512;  // with its value and the macro, generously
      count_bytes(sizeof(Scope) + (s->names.size() + 1) * kBytesAName);
    }
  }

  void add_globals(Scope& globals) {
    const auto add = [&](const std::string& name, std::function<JinjaValue(JinjaArguments&)> call) {
      globals.set(name, JinjaFunction{name, std::move(call)});
    };
    add("range", range);
    add("namespace", make_namespace);
    add("dict", [](JinjaArguments& arguments) { return JinjaValue(make_dict(arguments)); });
    add("raise_exception", [](JinjaArguments& arguments) -> JinjaValue {
      throw JinjaError("the template refuses the chat: " + jinja_text(arguments.require("message")));
    });
    add("strftime_now", [](JinjaArguments& arguments) { return time_text(arguments.require_text("format")); });
  }

  static JinjaValue range(JinjaArguments& arguments) {
    const int64_t a = arguments.require_integer("start");
    const JinjaValue b = arguments.take("stop");
    const int64_t step = arguments.take_integer("step", 1);
    if (step == 0) throw JinjaError("range: the step is 0");
    const int64_t first = b.is_undefined() ? 0 : a;
    if (!b.is_undefined() && !b.is_integral()) throw JinjaError("range: expected whole numbers");
    const int64_t last = b.is_undefined() ? a : b.as_integer();
    std::vector<JinjaValue> numbers;
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
      numbers.emplace_back(i);
      if (static_cast<int64_t>(numbers.size()) > kMaxRange) {
        throw JinjaError("range: more than " + std::to_string(kMaxRange) + " numbers");
      }
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return numbers;
  }

  static JinjaDict make_dict(JinjaArguments& arguments) {
    JinjaDictMaker maker;
    const JinjaValue first = arguments.take("");
    if (first.dict() != nullptr) {
      for (const auto& [key, value] : first.dict()->items) maker.set(key, value);
    } else if (!first.is_undefined()) {
      for (const JinjaValue& pair : jinja_items(first)) {
        if (jinja_length(pair) != 2) throw JinjaError(arguments.callee + ": expected pairs");
        maker.set(jinja_item(pair, 0), jinja_item(pair, 1));
      }
    }
    for (auto& [name, value] : arguments.named) maker.set(name, std::move(value));
    arguments.named.clear();
    return maker.take();
  }

  static JinjaValue make_namespace(JinjaArguments& arguments) {
    const JinjaValue attributes = make_dict(arguments);
    return std::make_shared<JinjaNamespace>(JinjaNamespace{*attributes.dict()});
  }

  static JinjaValue time_text(const std::string& format) {
    std::tm parts{};
    std::time_t now = std::time(nullptr);
    if (const char* given = std::getenv("SOURCE_DATE_EPOCH"); given != nullptr) {
      const std::string_view digits = given;
      const std::from_chars_result read = std::from_chars(digits.data(), digits.data() + digits.size(), now);
      if (digits.empty() || read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
        throw JinjaError("SOURCE_DATE_EPOCH: expected seconds since 1970, found '" + std::string(digits) + "'");
      }
      gmtime_r(&now, &parts);
    } else {
      localtime_r(&now, &parts);
    }
    std::array<char, 256> buffer;
    if (format.size() > 64) throw JinjaError("strftime_now: the format is too long");
    return std::string(buffer.data(), std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts));
  }

  // Expressions.

  JinjaValue evaluate(const JinjaExpression& expression, Scope& scope) {
    const Nesting nesting(depth_);
    count_step(expression.line);
    const auto operand = [&](size_t i) { return evaluate(*expression.operands[i], scope); };
    switch (expression.kind) {
      case Kind::constant:
        return expression.value;
      case Kind::name: {
        const JinjaValue* value = scope.find(expression.name);
        return value != nullptr ? *value : JinjaValue(JinjaUndefined{expression.name});
      }
      case Kind::list:
      case Kind::tuple: {
        JinjaList list{.items = {}, .is_tuple = expression.kind == Kind::tuple};
        for (const JinjaExpressionPtr& item : expression.operands) list.items.push_back(evaluate(*item, scope));
        return list;
      }
      case Kind::dict: {
        JinjaDictMaker maker;
        for (size_t i = 0; i < expression.operands.size(); i += 2) {
          JinjaValue key = operand(i);
          maker.set(std::move(key), operand(i + 1));
        }
        return maker.take();
      }
      case Kind::attribute:
        return named_if_undefined(attribute(operand(0), expression.name), expression);
      case Kind::subscript: {
        const JinjaValue value = operand(0);
        count_work(value);
        return named_if_undefined(jinja_item(value, operand(1)), expression);
      }
      case Kind::slice:
        return slice(expression, scope);
      case Kind::call:
        return call(expression, scope, nullptr);
      case Kind::filter:
        return filter(expression, operand(0), scope);
      case Kind::test: {
        const JinjaValue value = operand(0);
        JinjaArguments arguments = evaluate_arguments(expression, expression.name, scope);
        return apply_jinja_test(expression.name, value, arguments);
      }
      case Kind::negate:
        return !operand(0).is_true();
      case Kind::minus:
        return jinja_minus(operand(0));
      case Kind::plus:
        return jinja_minus(jinja_minus(operand(0)));
      case Kind::both: {
        const JinjaValue left = operand(0);
        return left.is_true() ? operand(1) : left;
      }
      case Kind::either: {
        const JinjaValue left = operand(0);
        return left.is_true() ? left : operand(1);
      }
      case Kind::binary: {
        const JinjaValue left = operand(0);
        JinjaValue result = jinja_binary(expression.operation, left, operand(1));
        count_bytes(result);
        return result;
      }
      case Kind::comparison:
        return compare(expression, scope);
      case Kind::conditional:
        if (operand(1).is_true()) return operand(0);
        if (expression.operands[2] != nullptr) return operand(2);
        return JinjaUndefined{"the value of an 'if' without 'else'"};
    }
    return JinjaNone{};
  }

  JinjaValue slice(const JinjaExpression& expression, Scope& scope) {
    std::array<JinjaValue, 4> parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (expression.operands[i] != nullptr) parts[i] = evaluate(*expression.operands[i], scope);
    }
    count_work(parts[0]);
    JinjaValue result = jinja_slice(parts[0], parts[1], parts[2], parts[3]);
    count_bytes(result);
    return result;
  }

  bool compare(const JinjaExpression& expression, Scope& scope) {
    JinjaValue left = evaluate(*expression.operands[0], scope);
    for (size_t i = 0; i < expression.comparisons.size(); ++i) {
      JinjaValue right = evaluate(*expression.operands[i + 1], scope);
      count_comparison(right);
      if (!jinja_compare(expression.comparisons[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  // Returns the value, or an undefined one that has the name by which the template asks for it: `messages[5].role`.
  static JinjaValue named_if_undefined(JinjaValue value, const JinjaExpression& expression) {
    return value.is_undefined() ? JinjaValue(JinjaUndefined{spelled(expression)}) : std::move(value);
  }
  static std::string spelled(const JinjaExpression& expression) {
    switch (expression.kind) {
      case Kind::name:
        return expression.name;
      case Kind::constant:
        return jinja_repr(expression.value);
      case Kind::attribute:
        return spelled(*expression.operands[0]) + "." + expression.name;
      case Kind::subscript:
        return spelled(*expression.operands[0]) + "[" + spelled(*expression.operands[1]) + "]";
      default:
        return "(...)";
    }
  }

  // value.name: a method bound to its value, or else an attribute.
  static JinjaValue attribute(const JinjaValue& value, const std::string& name) {
    if (!has_jinja_method(value, name)) return jinja_attribute(value, name);
    return JinjaFunction{
        name, [value, name](JinjaArguments& arguments) { return call_jinja_method(value, name, arguments).value(); },
        value.depth() + 1};
  }

  JinjaArguments evaluate_arguments(const JinjaExpression& expression, std::string callee, Scope& scope) {
    JinjaArguments arguments;
    arguments.callee = std::move(callee);
    for (const JinjaExpressionPtr& item : expression.arguments.positional) {
      arguments.positional.push_back(evaluate(*item, scope));
    }
    for (const auto& [name, item] : expression.arguments.named)
      arguments.named.emplace_back(name, evaluate(*item, scope));
    if (expression.arguments.more_positional != nullptr) {
      for (JinjaValue& item : jinja_items(evaluate(*expression.arguments.more_positional, scope))) {
        arguments.positional.push_back(std::move(item));
      }
    }
    if (expression.arguments.more_named != nullptr) {
      const JinjaValue more = evaluate(*expression.arguments.more_named, scope);
      if (more.dict() == nullptr) throw JinjaError(std::string("expected a dict after **, found ") + more.type_name());
      for (const auto& [name, item] : more.dict()->items) arguments.named.emplace_back(jinja_text(name), item);
    }
    return arguments;
  }

  // A call of a macro, a function or a method; `caller` is what a call block hands on.
  JinjaValue call(const JinjaExpression& expression, Scope& scope, const JinjaValue* caller) {
    const JinjaExpression& callee = *expression.operands[0];
    const bool is_of_value = callee.kind == Kind::attribute;
    const JinjaValue value = evaluate(is_of_value ? *callee.operands[0] : callee, scope);
    const std::string name = is_of_value || callee.kind == Kind::name ? callee.name : "what is called";
    JinjaArguments arguments = evaluate_arguments(expression, name, scope);
    if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
    JinjaValue target = value;
    count_work(value);
    if (is_of_value) {
      // A dict's own key does not hide a method, as in Jinja.
      if (std::optional<JinjaValue> result = call_jinja_method(value, name, arguments)) {
        count_bytes(*result);
        return std::move(*result);
      }
      target = jinja_attribute(value, name);
      if (target.is_undefined()) {
        throw JinjaError(std::string(value.type_name()) + " has no method '" + name + "' that is supported here");
      }
    }
    if (target.dict() != nullptr && target.dict()->find(kCall) != nullptr) target = *target.dict()->find(kCall);
    if (target.function() == nullptr) {
      throw JinjaError(target.is_undefined() ? "'" + target.undefined()->name + "' is undefined"
                                             : "'" + name + "' is " + target.type_name() + " and cannot be called");
    }
    const int line = line_;
    JinjaValue result = target.function()->call(arguments);
    line_ = line;
    arguments.finish();
    count_bytes(result);
    return result;
  }

  JinjaValue filter(const JinjaExpression& expression, const JinjaValue& value, Scope& scope) {
    JinjaArguments arguments = evaluate_arguments(expression, expression.name, scope);
    count_work(value);
    JinjaValue result = apply_jinja_filter(expression.name, value, arguments);
    count_bytes(result);
    return result;
  }

  // Applies the filters of a block to its text.
  JinjaValue filter_text(const JinjaExpression& expression, std::string text, Scope& scope) {
    const JinjaExpressionPtr& operand = expression.operands[0];
    const JinjaValue value =
        operand == nullptr ? JinjaValue(std::move(text)) : filter_text(*operand, std::move(text), scope);
    return filter(expression, value, scope);
  }

  // Statements.

  Flow execute(const JinjaStatements& statements, Scope& scope, std::string& output) {
    for (const auto& statement : statements) {
      const Flow flow = execute(*statement, scope, output);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  void print(std::string_view text, std::string& output) {
    count_bytes(text.size());
    output += text;
  }

  // Runs a body that no loop around it is left from, and returns what it prints.
  std::string body_text(const JinjaStatements& body, Scope& scope) {
    std::string text;
    in_scope(scope, [&](Scope& inner) { return execute(body, inner, text); });
    return text;
  }

  Flow execute(const JinjaStatement& statement, Scope& scope, std::string& output) {
    const Nesting nesting(depth_);
    count_step(statement.line);
    switch (statement.kind) {
      case Statement::text:
        print(statement.text, output);
        return Flow::on;
      case Statement::print:
        print(jinja_text(evaluate(*statement.expression, scope)), output);
        return Flow::on;
      case Statement::choice:
        for (const JinjaBranch& branch : statement.branches) {
          if (evaluate(*branch.condition, scope).is_true()) return execute(branch.body, scope, output);
        }
        return execute(statement.otherwise, scope, output);
      case Statement::loop: {
        const JinjaValue items = evaluate(*statement.expression, scope);
        return run_loop(statement, jinja_items(items), 0, scope, output);
      }
      case Statement::assign:
        assign(statement.target, evaluate(*statement.expression, scope), scope);
        return Flow::on;
      case Statement::assign_block: {
        std::string text = body_text(statement.body, scope);
        assign(statement.target,
               statement.expression != nullptr ? filter_text(*statement.expression, std::move(text), scope)
                                               : JinjaValue(std::move(text)),
               scope);
        return Flow::on;
      }
      case Statement::macro:
        scope.set(statement.name, make_macro(statement, scope));
        return Flow::on;
      case Statement::call_block: {
        const JinjaValue caller = make_macro(statement, scope);
        print(jinja_text(call(*statement.expression, scope, &caller)), output);
        return Flow::on;
      }
      case Statement::filter_block:
        print(jinja_text(filter_text(*statement.expression, body_text(statement.body, scope), scope)), output);
        return Flow::on;
      case Statement::with:
      case Statement::scope:
        return in_scope(scope, [&](Scope& inner) {
          for (const JinjaParameter& given : statement.parameters)
            inner.set(given.name, evaluate(*given.otherwise, scope));
          return execute(statement.body, inner, output);
        });
      case Statement::stop:
        return Flow::stop;
      case Statement::next:
        return Flow::next;
    }
    return Flow::on;
  }

  void assign(const JinjaTarget& target, const JinjaValue& value, Scope& scope) {
    if (!target.parts.empty()) {
      const std::vector<JinjaValue> items = jinja_items(value);
      if (items.size() != target.parts.size()) {
        throw JinjaError("expected " + std::to_string(target.parts.size()) + " values to take apart, found " +
                         std::to_string(items.size()));
      }
      for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    } else if (target.attribute.empty()) {
      scope.set(target.name, value);
    } else {
      const JinjaValue* holder = scope.find(target.name);
      if (holder == nullptr || holder->names() == nullptr) {
        throw JinjaError("cannot assign to '" + target.name + "." + target.attribute + "': '" + target.name +
                         "' is no namespace");
      }
      // The check of JinjaValue: neither a namespace nor too many lists inside one another.
      [[maybe_unused]] const JinjaValue checked = std::vector<JinjaValue>{value};
      holder->names()->attributes.set(target.attribute, value);
    }
  }

  // Returns how a loop around this one goes on: only what stands after `else` can say.
  Flow run_loop(const JinjaStatement& loop, std::vector<JinjaValue> items, int64_t depth, Scope& scope,
                std::string& output) {
    if (loop.condition != nullptr) {
      std::erase_if(items, [&](const JinjaValue& item) {
        return in_scope(scope, [&](Scope& inner) {
          assign(loop.target, item, inner);
          return !evaluate(*loop.condition, inner).is_true();
        });
      });
    }
    if (items.empty()) {
      return in_scope(scope, [&](Scope& inner) { return execute(loop.otherwise, inner, output); });
    }
    if (loop.is_recursive) keep(scope);
    const auto last_changed = std::make_shared<std::optional<size_t>>();
    for (size_t i = 0; i < items.size(); ++i) {
      count_step(loop.line);
      const Flow flow = in_scope(scope, [&](Scope& inner) {
        if (loop.uses_loop) inner.set("loop", loop_value(loop, items, i, depth, scope, last_changed));
        assign(loop.target, items[i], inner);
        return execute(loop.body, inner, output);
      });
      if (flow == Flow::stop) break;
    }
    return Flow::on;
  }

  // The variable `loop`.
  JinjaValue loop_value(const JinjaStatement& loop, const std::vector<JinjaValue>& items, size_t i, int64_t depth,
                        Scope& scope, const std::shared_ptr<std::optional<size_t>>& last_changed) {
    const auto index = static_cast<int64_t>(i), length = static_cast<int64_t>(items.size());
    JinjaDict value;
    value.items = {{"index0", index},
                   {"index", index + 1},
                   {"first", i == 0},
                   {"last", index + 1 == length},
                   {"length", length},
                   {"revindex0", length - index - 1},
                   {"revindex", length - index},
                   {"depth0", depth},
                   {"depth", depth + 1}};
    if (i > 0) value.set("previtem", items[i - 1]);
    if (index + 1 < length) value.set("nextitem", items[i + 1]);
    value.set("cycle", JinjaFunction{"cycle", [index](JinjaArguments& arguments) {
                                       if (arguments.positional.empty()) throw JinjaError("cycle: no values are given");
                                       const auto all = std::exchange(arguments.positional, {});
                                       return all[static_cast<size_t>(index) % all.size()];
                                     }});
    value.set("changed", JinjaFunction{"changed", [this, last_changed](JinjaArguments& arguments) -> JinjaValue {
                                         return changes(JinjaValue::tuple(std::exchange(arguments.positional, {})),
                                                        *last_changed);
                                       }});
    if (loop.is_recursive) {
      value.set(kCall, JinjaFunction{"loop", [this, &loop, &scope, depth](JinjaArguments& arguments) -> JinjaValue {
                                       std::string text;
                                       run_loop(loop, jinja_items(arguments.require("iterable")), depth + 1, scope,
                                                text);
                                       return text;
                                     }});
    }
    return value;
  }

  // True if the values are not those of the loop's call of `changed` before. The interpreter keeps these: they may hold
  // such a function, and this one must not hold them.
  bool changes(JinjaValue now, std::optional<size_t>& last) {
    if (!last) {
      last = changed_values_.size();
      count_bytes(sizeof(JinjaValue));
      changed_values_.push_back(std::move(now));
      return true;
    }
    const bool is_same = changed_values_[*last] == now;
    changed_values_[*last] = std::move(now);
    return !is_same;
  }

  JinjaValue make_macro(const JinjaStatement& macro, Scope& scope) {
    keep(scope);
    return JinjaFunction{macro.name, [this, &macro, &scope](JinjaArguments& arguments) -> JinjaValue {
                           std::string text;
                           in_scope(scope, [&](Scope& inner) {
                             bind(macro, arguments, inner);
                             return execute(macro.body, inner, text);
                           });
                           return text;
                         }};
  }

  void bind(const JinjaStatement& macro, JinjaArguments& arguments, Scope& inner) {
    for (const JinjaParameter& parameter : macro.parameters) {
      const bool has_value = arguments.has(parameter.name) || parameter.otherwise == nullptr;
      inner.set(parameter.name, has_value ? arguments.take(parameter.name) : evaluate(*parameter.otherwise, inner));
    }
    const auto caller = std::ranges::find_if(arguments.named, [](const auto& item) { return item.first == "caller"; });
    if (caller != arguments.named.end()) {
      inner.set("caller", caller->second);
      arguments.named.erase(caller);
    }
  }

  const std::string& where_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<JinjaValue> changed_values_;  // of each loop that calls `changed`
  int line_ = 1;
  int depth_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace

std::string run_jinja(const JinjaStatements& statements, const JinjaDict& variables, const std::string& where) {
  return Interpreter(where).run(statements, variables);
}

}  // namespace pare::runtime
