#include "runtime/format/name_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <regex>
#include <set>
#include <string>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return NamePattern::parse(pattern).matches(name);
}

TEST(NamePattern, PatternsOfPublishedCheckpoints) {
  const std::string down = "model.layers.10.mlp.down_proj";
  EXPECT_TRUE(matches(".*down_proj$", down));
  EXPECT_TRUE(matches("model\\.layers\\.\\d+\\.mlp\\.(?:gate|up|down)_proj", down));
  EXPECT_TRUE(matches("model.layers.(1[0-5]|[2-9])\\..*", down));
  EXPECT_FALSE(matches("model.layers.(1[1-5]|[2-9])\\..*", down));
  EXPECT_FALSE(matches("layers", down));  // the pattern must match from the start
  EXPECT_TRUE(matches("model", down));    // but it need not match to the end
  EXPECT_FALSE(matches("model$", down));
  EXPECT_TRUE(matches(".*\\bmlp\\b", down));
  EXPECT_FALSE(matches(".*\\blp\\b", down));
  EXPECT_TRUE(matches(".*[^.]{9}$", down));
  EXPECT_FALSE(matches("^.*[^.]{10}$", down));
  EXPECT_TRUE(matches("", down));
  EXPECT_FALSE(matches(".*lm_head", down));
}

// Random patterns over a small alphabet, to compare with the standard library's backtracking matcher.
class RandomPatterns {
 public:
  std::string pattern(int depth) {
    std::string text;
    const int num_items = 1 + next(3);
    for (int i = 0; i < num_items; ++i) text += item(depth) + quantifier();
    if (depth > 0 && next(4) == 0) text += "|" + pattern(depth - 1);
    return text;
  }
  std::string name() {
    std::string text;
    const int length = next(7);
    for (int i = 0; i < length; ++i) text += "ab.1"[next(4)];
    return text;
  }

 private:
  int next(int limit) { return static_cast<int>(generator_() % static_cast<unsigned>(limit)); }
  std::string item(int depth) {
    const std::vector<std::string> items = {"a", "b", "\\.", ".", "[ab]", "[^a]", "\\d", "\\W", "[a-b1]"};
    if (depth > 0 && next(3) == 0) return (next(2) == 0 ? "(" : "(?:") + pattern(depth - 1) + ")";
    return items[static_cast<size_t>(next(static_cast<int>(items.size())))];
  }
  std::string quantifier() {
    const std::vector<std::string> quantifiers = {"", "", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{2,}"};
    return quantifiers[static_cast<size_t>(next(static_cast<int>(quantifiers.size())))];
  }
  std::mt19937 generator_{5};
};

TEST(NamePattern, AgreesWithTheStandardLibrary) {
  RandomPatterns random;
  int num_matches = 0, num_comparisons = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = random.pattern(1);
    if (i % 3 == 0) text += "$";
    const NamePattern ours = NamePattern::parse(text);
    const std::regex theirs(text);
    for (int n = 0; n < 6; ++n) {
      const std::string name = random.name();
      const bool expected = std::regex_search(name, theirs, std::regex_constants::match_continuous);
      ASSERT_EQ(ours.matches(name), expected) << text << " on " << name;
      num_matches += expected;
      ++num_comparisons;
    }
  }
  EXPECT_GT(num_matches, num_comparisons / 10);  // both answers occur
  EXPECT_LT(num_matches, num_comparisons * 9 / 10);
}

// Compares the module with each of the names.
bool is_in_names(const std::string& module, const std::set<std::string, std::less<>>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

TEST(NamePattern, AModuleIsInAListByItsNameOrTheEndBehindADot) {
  const std::set<std::string, std::less<>> names = {"lm_head", "mlp.gate", "a.b.c", "", "q."};
  for (const std::string module :
       {"lm_head", "model.lm_head", "xlm_head", "lm_head.weight", "model.layers.0.mlp.gate", "mlp.gate", "gate",
        "x.mlp.gates", "a.b.c", "z.a.b.c", "b.c", "", "x.", ".", "q.", "x.q.", "q", "..lm_head", ".mlp.gate"}) {
    EXPECT_EQ(is_in_modules(module, names), is_in_names(module, names)) << module;
    EXPECT_EQ(is_in_modules(module, {"lm_head", "b.c"}), is_in_names(module, {"lm_head", "b.c"})) << module;
  }
}

// Backtracking would take exponentially many steps here, or a stack as deep as the name is long.
TEST(NamePattern, TimeAndMemoryAreBounded) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(matches("(a*)*(a|a)*(a+)+b$", std::string(2000, 'a')));
  EXPECT_FALSE(matches("(.|a)*b$", std::string(100'000, 'a')));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  expect_error<std::invalid_argument>([] { NamePattern::parse("((a{500}){500}){500}"); }, {"10000 states"});
  expect_error<std::invalid_argument>([] { NamePattern::parse("((){1000}){1000}"); }, {"10000 states"});
  expect_error<std::invalid_argument>([] { NamePattern::parse(std::string(1001, 'a')); }, {"1000 characters"});
  expect_error<std::invalid_argument>([] { NamePattern::parse(std::string(500, '(') + std::string(500, ')')); },
                                      {"nested too deeply"});
}

TEST(NamePattern, RefusalsSayWhatIsNotSupported) {
  for (const auto& [pattern, part] : {std::pair{"(?!a)", "(?:...)"},
                                      {"(?P<n>a)", "(?:...)"},
                                      {"(a)\\1", "\\1"},
                                      {"a\\Z", "\\Z"},
                                      {"a(b", "without ')'"},
                                      {"a)", "')' without '('"},
                                      {"[a", "']'"},
                                      {"[b-a]", "end is below its start"},
                                      {"*a", "nothing before"},
                                      {"a**", "of a quantifier"},
                                      {"a{3,2}", "second number is below its first"},
                                      {"a{x", "number"},
                                      {"a{1", "'}'"},
                                      {"a{1001}", "1000"},
                                      {"\xc3\xbc", "ASCII"},
                                      {"a\\", "ends"},
                                      {"[\\d-z]", "between character classes"},
                                      {"[[:alpha:]]", "write"}}) {
    SCOPED_TRACE(pattern);
    expect_error<std::invalid_argument>([pattern = pattern] { NamePattern::parse(pattern); },
                                        {"not supported by this runtime", part});
  }
}

}  // namespace
}  // namespace pare
