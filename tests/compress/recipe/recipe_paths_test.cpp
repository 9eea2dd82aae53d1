// Checks where the files that a recipe names are looked for.
#include "compress/recipe/recipe_paths.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "compress/recipe/distill_pass.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// Makes a working directory `here`, and recipes in `there`.
class RecipePaths : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "there" / "data");
    fs::create_directories(folder_ / "here" / "data");
    fs::current_path(folder_ / "here");
  }
  void TearDown() override { fs::current_path(before_); }
  Recipe read(const std::string& yaml, const fs::path& file = "../there/recipe.yaml") {
    write_text(folder_ / "there" / "recipe.yaml", yaml);
    Recipe recipe = read_recipe(file);
    notes_ = find_files(recipe);
    return recipe;
  }

  std::vector<std::string> notes_;
  fs::path before_ = fs::current_path();
  TemporaryFolder folder_{"recipe-paths"};
};

constexpr const char* kEveryPath = R"(
model: m
output: o
calibration: {text: c.txt}
sensitivity: {text: s.txt}
passes:
  - gptq: {bits: 4, group_size: 32}
  - distill: {text: [t1.txt, data/t2.txt], teacher: teacher, validation_text: v.txt}
evaluate:
  - perplexity: {text: e.txt}
  - instructions: {file: i.json}
  - embeddings: {pairs: p.tsv}
)";

std::vector<std::string> paths_of(const Recipe& recipe) {
  const DistillOptions& distill = dynamic_cast<const DistillPass&>(*recipe.passes[1].options).distill;
  return {recipe.model.string(),
          recipe.calibration->text.string(),
          recipe.sensitivity->text.string(),
          distill.text[0],
          distill.text[1],
          distill.teacher,
          distill.validation_text,
          recipe.evaluate[0].options->data,
          recipe.evaluate[1].options->data,
          recipe.evaluate[2].options->data};
}
const std::vector<std::string> kNames = {"m",       "c.txt", "s.txt", "t1.txt", "data/t2.txt",
                                         "teacher", "v.txt", "e.txt", "i.json", "p.tsv"};

TEST_F(RecipePaths, AreThoseBesideTheRecipeWhereTheWorkingDirectoryHasNone) {
  EXPECT_EQ(paths_of(read(kEveryPath)), kNames);  // in neither place, which the reader of the file reports
  std::vector<std::string> beside;
  for (const std::string& name : kNames) {
    write_text(folder_ / "there" / name, "x");
    beside.push_back("../there/" + name);
  }
  write_text(folder_ / "there" / "o", "x");
  const Recipe recipe = read(kEveryPath);
  EXPECT_EQ(paths_of(recipe), beside);
  EXPECT_EQ(recipe.output, "o");  // it is made in the working directory
  EXPECT_TRUE(notes_.empty());
  EXPECT_EQ(read("model: m\ncalibration: {statistics: c.txt}\n").calibration->statistics, "../there/c.txt");
}

TEST_F(RecipePaths, TheWorkingDirectoryComesFirstAndIsNamed) {
  for (const std::string& name : kNames) {
    write_text(folder_ / "there" / name, "x");
    write_text(folder_ / "here" / name, "y");
  }
  const Recipe recipe = read(kEveryPath);
  EXPECT_EQ(paths_of(recipe), kNames);
  ASSERT_EQ(notes_.size(), kNames.size());
  EXPECT_EQ(notes_[0], "'model': 'm' is taken from the working directory; '../there/m', beside the recipe, is another");
  // There is no note for a recipe in the working directory, or for one file by two names.
  fs::current_path(folder_ / "there");
  read(kEveryPath, "recipe.yaml");
  EXPECT_TRUE(notes_.empty());
  read(kEveryPath, folder_ / "there" / "recipe.yaml");
  EXPECT_TRUE(notes_.empty());
}

TEST_F(RecipePaths, AbsolutePathsStay) {
  write_text(folder_ / "there" / "m", "x");
  EXPECT_EQ(read("model: " + (folder_ / "there" / "m").string() + "\ncalibration: {text: c}\n").model,
            folder_ / "there" / "m");
}

TEST_F(RecipePaths, StandardInputIsReadOnce) {
  const std::string one = "model: m\ncalibration: {text: \"-\"}\npasses: [rtn: {bits: 4}]\n";
  EXPECT_EQ(read(one).calibration->text, "-");
  expect_error<std::invalid_argument>([&] { read(one + "evaluate: [perplexity: {text: /dev/stdin}]\n"); },
                                      {"recipe.yaml: 'evaluate.perplexity.text' is standard input",
                                       "'calibration.text'", "give one of them as a file"});
  Recipe piped = parse_recipe(one, "/dev/stdin");
  expect_error<std::invalid_argument>([&] { find_files(piped); }, {"'calibration.text'", "the recipe"});
}

// The recipe comes from elsewhere. Its text comes through a pipe, and both the plan and the phase that trains on it
// read it.
TEST_F(RecipePaths, ARecipeTravelsWithItsModel) {
  const fs::path data = fs::path(kSourceFolder) / "calibration_data";
  fs::copy(data / "stories260k", folder_ / "there" / "m", fs::copy_options::recursive);
  write_text(folder_ / "there" / "recipe.yaml",
             "model: m\noutput: o\npasses:\n  - rtn: {bits: 8, group_size: -1, fit: false, scales: minmax}\n"
             "  - distill: {loss: hard_label, text: \"-\", tokens: 32, windows: 4, validation_windows: 2, "
             "total_tokens: 64, batch: 1, validations: 1}\n");
  const std::string command = "head -c 20000 '" + (data / "stories.txt").string() + "' | '" + kBuildFolder +
                              "/pare' run ../there/recipe.yaml --quiet >out 2>err";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text_file("err");
  EXPECT_TRUE(fs::exists("o/pare.json"));
}

}  // namespace
}  // namespace pare::test
