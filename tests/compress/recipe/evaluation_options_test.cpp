// What a recipe may say of an evaluation and what `eval` may are one list of fields.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "compress/recipe/given_options.h"
#include "runtime/commands/eval_command.h"
#include "runtime/evaluate/evaluation.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

// Of the command alone, or with the same meaning for every command.
const std::set<std::string> kOfCommands = {"no-verify", "device", "threads", "isa", "activations"};

TEST(EvaluationOptions, OfRecipesAreThoseOfTheCommand) {
  std::set<std::string> of_recipes, of_command;
  for (const OptionSpec& option : eval_command().options) {
    EXPECT_TRUE(of_command.insert(option.name).second) << option.name << " stands twice";
  }
  for (const std::string& name : kOfCommands) EXPECT_EQ(of_command.erase(name), 1u) << name;
  for (const EvaluationRow* row : evaluation_rows()) {
    const std::unique_ptr<EvaluationOptions> options = row->make_options();
    for (std::string name : names_of_fields(fields_of(*options))) {
      if (name == row->data_key) {
        of_recipes.emplace(row->option);
        continue;
      }
      std::replace(name.begin(), name.end(), '_', '-');
      // What is true unless a recipe says otherwise is switched off on a command line.
      of_recipes.insert(of_command.contains(name) ? name : "no-" + name);
    }
  }
  EXPECT_EQ(of_recipes, of_command);
  EXPECT_TRUE(of_command.contains("no-stem"));
  EXPECT_TRUE(of_command.contains("kv-bits"));
}

// The ranges are the same too, and so are the defaults, which the help names.
TEST(EvaluationOptions, HaveOneRangeAndOneDefault) {
  const std::vector<OptionSpec> options = eval_command().options;
  const auto option = [&](const std::string& name) {
    return *std::find_if(options.begin(), options.end(), [&](const auto& item) { return item.name == name; });
  };
  EXPECT_EQ(option("context").minimum, 2.0);
  EXPECT_EQ(option("context").maximum, 1048576.0);
  EXPECT_EQ(option("examples").minimum, 0.0);
  EXPECT_EQ(option("temperature").maximum, 1e6);
  EXPECT_FALSE(option("seed").maximum);
  EXPECT_EQ(option("prompt-template").choices, (std::vector<std::string>{"plain", "alpaca", "chatml"}));
  EXPECT_NE(option("prompt-template").help.find("(default: alpaca)"), std::string::npos);
  EXPECT_NE(option("max-new-tokens").help.find("with --instructions: "), std::string::npos);
  EXPECT_NE(option("max-new-tokens").help.find("(default: 128)"), std::string::npos);
  EXPECT_EQ(option("no-stem").kind, OptionKind::flag);
}

}  // namespace
}  // namespace pare::test
