// Templates, compared with what transformers makes of them (tests/golden/make_chat_templates.py), and their limits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "runtime/chat/jinja_interpreter.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests/golden/chat_templates";

JinjaValue value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    std::vector<JinjaValue> items;
    for (const Json& item : json) items.push_back(value_of(item));
    return items;
  }
  if (!json.is_object()) return JinjaNone{};
  JinjaDict dict;
  for (const auto& [key, item] : json.items()) dict.items.emplace_back(key, value_of(item));
  return dict;
}

std::string rendered(const std::string& text, const Json& variables = Json::object()) {
  return run_jinja(parse_jinja(text, "t.jinja"), *value_of(variables).dict(), "t.jinja");
}

// The environment's SOURCE_DATE_EPOCH while it lives.
class FixedTime {
 public:
  explicit FixedTime(const char* seconds) { setenv("SOURCE_DATE_EPOCH", seconds, 1); }
  ~FixedTime() { unsetenv("SOURCE_DATE_EPOCH"); }
  FixedTime(const FixedTime&) = delete;
  FixedTime& operator=(const FixedTime&) = delete;
};

TEST(Jinja, EqualsTransformers) {
  const FixedTime time("1735707600");
  const Json golden = Json::parse(read_text_file(kGolden / "expected.json"));
  int num_texts = 0, num_failures = 0;
  for (const Json& example : golden["cases"]) {
    const bool is_file = example.contains("file");
    const std::string text =
        is_file ? read_text_file(kGolden / example["file"].get<std::string>()) : example["template"].get<std::string>();
    const Json& variables = is_file ? example["variables"] : golden["values"];
    const std::string what = is_file ? example["file"].get<std::string>() + " " + variables.dump() : text;
    if (example.contains("fails")) {
      EXPECT_THROW(rendered(text, variables), JinjaError) << what;
      ++num_failures;
    } else {
      EXPECT_EQ(rendered(text, variables), example["text"].get<std::string>()) << what;
      ++num_texts;
    }
  }
  EXPECT_GT(num_texts, 150);
  EXPECT_GT(num_failures, 40);
}

TEST(Jinja, ErrorsNameTheirLine) {
  const auto fails = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error<JinjaError>([&] { rendered(text, {{"n", 1}}); }, parts);
  };
  fails("a\n{{ b", {"t.jinja:2: ", "does not end", "}}"});
  fails("\n\n{% if n %}", {"t.jinja:3: ", "endif"});
  fails("{% for x in [1] %}\n{{ x.y.z }}{% endfor %}", {"t.jinja:2: ", "'x.y' is undefined"});
  fails("{{ [n][5].role }}", {"'(...)[5]' is undefined"});
  fails("{% set messages = [n] %}{{ messages[5]['role'].a }}", {"'messages[5]' is undefined"});
  fails("{{ missing|tojson }}", {"tojson", "found an undefined value"});
  fails("{{ '\\N{BULLET}' }}", {"'\\N{...}'", "'\\u'"});
  fails("{{ raise_exception('only two turns') }}", {"t.jinja:1: ", "refuses the chat: only two turns"});
  fails("{{ n|nosuch }}", {"no filter called 'nosuch'"});
  fails("{% include 'other' %}", {"'include' needs other templates"});
  fails("{{ n.upper() }}", {"int has no method 'upper'"});
  fails("{{ [1].append(2) }}", {"'append' would change a list"});
}

// What a hostile template could fill: time, memory, the stack.
TEST(Jinja, EndsWhatDoesNotEnd) {
  const auto fails = [](const std::string& text, const std::string& part) {
    expect_error<JinjaError>([&] { rendered(text); }, {part});
  };
  fails("{% set r = range(10000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "steps");
  fails("{% set x = 'x' * 1000000 %}{% for a in range(2000) %}{% set u = x ~ 'y' %}{% endfor %}", "bytes");
  fails("{{ 'x' * 100000000 }}", "too long");
  fails("{{ [0] * 100000000 }}", "too long");
  fails("{{ range(1000000) }}", "100000 numbers");
  fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "inside one another");
  fails("{% set ns = namespace(l=[]) %}{% for a in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "inside one another");
  fails("{% set ns = namespace() %}{% set ns.self = ns %}", "a namespace cannot be put");
  fails("{{ " + std::string(100000, '('), "does not end");
  fails("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}", "inside one another");
  fails("{{ " + std::string(100000, '[') + std::string(100000, ']') + " }}", "inside one another");
  std::string blocks;
  for (int i = 0; i < 10000; ++i) blocks += "{% if true %}";
  fails(blocks, "inside one another");
  const auto chain = [](const std::string& first, const std::string& link, const std::string& last) {
    std::string text = first;
    for (int i = 0; i < 300'000; ++i) text += link;
    return text + last;
  };
  for (const char* link : {".b", "[0]", "()", "+1", "-1", "*2", "//2", "**1", "~1", "|trim", " or 1", " and 1",
                           " is none", " is not eq 1", " if 1", " if 1 else 2", " < 1 and 2"}) {
    SCOPED_TRACE(link);
    fails(chain("{{ a", link, " }}"), "inside one another");
  }
  fails(chain("{% filter trim", "|trim", "%}{% endfilter %}"), "inside one another");
  fails(chain("{% set a", "|trim", "%}{% endset %}"), "inside one another");
  // Both in turn: an operator's chain in parentheses at the start of another.
  std::string turns = "1";
  for (int i = 0; i < 30; ++i) turns = "(" + turns + "+1+1+1+1+1+1+1+1)";
  fails("{{ " + turns + " }}", "inside one another");
  EXPECT_EQ(rendered(chain("{% if a %}", "{% elif a %}b", "{% else %}c{% endif %}")), "c");
  fails("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x].copy %}{% endfor %}",
        "inside one another");
  fails("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x}.get %}{% endfor %}",
        "inside one another");
  fails("{% set ns = namespace(x='a'.upper) %}{% for i in range(100000) %}{% set ns.x = (ns.x,).count %}{% endfor %}",
        "inside one another");
  EXPECT_EQ(rendered("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% for j in [1] %}{% set u = "
                     "loop.changed(ns.x) %}{% set ns.x = loop.changed %}{% endfor %}{% endfor %}ok"),
            "ok");
  fails("{{ '%d' % 1e300 }}", "64 bits");
  fails("{{ 9223372036854775807 + 1 }}", "64 bits");
  // What is far longer when it is written than it is in memory, and what is looked through again and again.
  const std::string tower =
      "{% set ns = namespace(l=range(20000)|list) %}{% for i in range(90) %}{% set ns.l = [ns.l] %}";
  fails(tower + "{% endfor %}{{ ns.l|tojson(indent=100) }}", "too long");
  fails("{% set ns = namespace(l=[]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "values");
  fails("{% set s = 'x' * 60000 %}{{ range(100000)|join(s) }}", "too long");
  fails("{% set s = 'x' * 60000 %}{{ s.join(['a'] * 100000) }}", "too long");
  fails("{% set s = '{0}' * 20000 %}{{ s.format('x' * 100000) }}", "too long");
  fails("{% set s = '%s' * 2000 %}{{ s|format(*(['x' * 100000] * 2000)) }}", "too long");
  fails("{{ ('\\n' * 30000000)|indent(1000, blank=true) }}", "too long");
  fails("{{ ('&' * 30000000)|escape }}", "too long");
  fails("{{ range(100000)|map('replace', '1', 'x' * 600000)|list }}", "too long");
  fails("{{ ('x' * 60000000)|list }}", "too long");
  fails("{{ (', ' * 10000000).split(',') }}", "too long");
  fails("{% set l = range(100000)|list %}{% for i in range(100000) %}{% set y = -1 in l %}{% endfor %}", "steps");
  fails("{% set s = 'x' * 60000000 %}{% for i in range(100) %}{% set y = 'y' in s %}{% endfor %}", "steps");
  fails("{% for i in range(3000) %}{% for j in range(3000) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}",
        "bytes");
  EXPECT_EQ(rendered("{{ range(100000)|list|unique|list|length }}"), "100000");
  EXPECT_EQ(rendered("{% set s = 'x' * 30000000 %}{% for i in range(20) %}{{ s[i] }}{{ s[-1] }}{% endfor %}"),
            std::string(40, 'x'));
  EXPECT_EQ(rendered("{% set s = 'a' * 200000 %}{{ (s ~ 'b') in (s ~ s) }}{{ (s ~ s).rfind('b' ~ s) }}"), "False-1");
  fails("{{ (-9223372036854775807 - 1) // -1 }}", "64 bits");
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(Jinja, CanBeInterrupted) {
  request_interrupt();
  EXPECT_THROW(rendered("{% for a in range(10) %}{{ a }}{% endfor %}"), Interrupted);
  clear_interrupt();
  EXPECT_EQ(rendered("{{ 1 }}"), "1");
}

// A macro and a loop may be called after the scope that they came from has ended.
TEST(Jinja, MacrosOutliveTheirScope) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% for a in [7] %}{% macro m() %}{{ a }}{% endmacro %}"
                     "{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
            "7");
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% for a in [[1], [2]] recursive %}"
                     "{% if a is iterable %}{% set ns.l = loop %}{% else %}{{ a }}{% endif %}{% endfor %}"
                     "{{ ns.l([5, 6]) }}"),
            "56");
}

TEST(Jinja, TimeOfTheEnvironmentMustBeANumber) {
  const FixedTime time("soon");
  expect_error<JinjaError>([] { rendered("{{ strftime_now('%Y') }}"); }, {"SOURCE_DATE_EPOCH", "soon"});
}

}  // namespace
}  // namespace pare
