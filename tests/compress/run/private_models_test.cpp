// If not everybody may read a model or a text, the same people may not read its outputs either, however generous the
// umask is.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/recipe_inputs.h"
#include "runtime/evaluate/embeddings.h"
#include "runtime/evaluate/task_accuracy.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class PrivateModels : public testing::Test {
 protected:
  PrivateModels() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories.txt", text_);
    give_rights(text_, 0644);
    for (const auto& entry : fs::directory_iterator(model_)) give_rights(entry.path(), 0644);
    write_text(recipe_, "model: " + model_.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n" +
                            "calibration: {samples: 2, tokens: 16, text: " + text_.string() + "}\n");
  }
  ~PrivateModels() override { ::umask(umask_); }
  // Checks that all files and folders made by that command have none of the rights `withheld`.
  void expect_withheld(const std::vector<std::string>& words, const std::vector<std::string>& made, mode_t withheld) {
    const Outcome outcome = run_pare(words);
    ASSERT_EQ(outcome.status, 0) << words.front() << ": " << outcome.err;
    for (const std::string& name : made) {
      struct stat status;
      ASSERT_EQ(::stat((folder_ / name).c_str(), &status), 0) << name;
      EXPECT_EQ(status.st_mode & withheld, 0u) << name << std::oct << " " << status.st_mode;
    }
  }
  static void give_rights(const fs::path& path, unsigned mode) { fs::permissions(path, static_cast<fs::perms>(mode)); }
  static void give_to_group(const fs::path& path, gid_t group) {
    ASSERT_EQ(::chown(path.c_str(), static_cast<uid_t>(-1), group), 0) << path;
  }
  // Returns a group that this process may give files to and that is not its own.
  static std::optional<gid_t> other_group() {
    if (::geteuid() == 0) return ::getegid() + 4321;
    std::vector<gid_t> groups(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
    if (::getgroups(static_cast<int>(groups.size()), groups.data()) < 0) return std::nullopt;
    for (const gid_t group : groups) {
      if (group != ::getegid()) return group;
    }
    return std::nullopt;
  }
  struct stat status_of(const fs::path& path) const {
    struct stat status = {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status;
  }
  void expect_all_withheld(mode_t withheld, const std::string& suffix) {
    expect_withheld({"run", recipe_.string(), "--out", (folder_ / ("run" + suffix)).string()},
                    {"run" + suffix, "run" + suffix + "/model.safetensors", "run" + suffix + "/pare.json"}, withheld);
    expect_withheld({"calibrate", recipe_.string(), (folder_ / ("sums" + suffix + ".h5")).string()},
                    {"sums" + suffix + ".h5"}, withheld);
    expect_withheld(
        {"record", model_.string(), (folder_ / ("logits" + suffix + ".h5")).string(), "--text", text_.string(),
         "--tokens", "16", "--windows", "2"},
        {"logits" + suffix + ".h5", "logits" + suffix + ".h5.shards", "logits" + suffix + ".h5.shards/00000.h5"},
        withheld);
    expect_withheld({"eval", model_.string(), "--text", text_.string(), "--context", "16", "--windows", "2", "--store",
                     (folder_ / ("reference" + suffix)).string()},
                    {"reference" + suffix}, withheld);
    expect_withheld(
        {"export", (folder_ / ("run" + suffix)).string(), (folder_ / ("gptq" + suffix)).string(), "--format", "gptq"},
        {"gptq" + suffix, "gptq" + suffix + "/model.safetensors"}, withheld);
    expect_withheld(
        {"report", (folder_ / ("run" + suffix)).string(), "--out", (folder_ / ("report" + suffix + ".html")).string()},
        {"report" + suffix + ".html"}, withheld);
  }

  mode_t umask_ = ::umask(0);
  TemporaryFolder folder_{"private"};
  fs::path model_ = folder_ / "model", recipe_ = folder_ / "recipe.yaml", text_ = folder_ / "stories.txt";
};

TEST_F(PrivateModels, OutputsAreForNobodyElse) {
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0640));
  expect_all_withheld(S_IRWXO, "-of-a-group");
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0600));
  expect_all_withheld(S_IRWXG | S_IRWXO, "-of-one");
  expect_withheld({"export", model_.string(), (folder_ / "f16.gguf").string(), "--format", "f16"}, {"f16.gguf"},
                  S_IRWXG | S_IRWXO);
  // The private model is the teacher of another one.
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0644));
  fs::copy(model_, folder_ / "teacher", fs::copy_options::recursive);
  fs::permissions(folder_ / "teacher" / "model.safetensors", static_cast<fs::perms>(0600));
  write_text(recipe_, "model: " + model_.string() + "\npasses:\n  - distill: {teacher: " +
                          (folder_ / "teacher").string() + ", text: [" + text_.string() +
                          "], tokens: 16, total_tokens: 16, batch: 1, windows: 4, validation_windows: 1}\n");
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "student").string()},
                  {"student", "student/model.safetensors"}, S_IRWXG | S_IRWXO);
  // These statistics were taken from a private model.
  write_text(recipe_, "model: " + model_.string() +
                          "\ncalibration: {statistics: " + (folder_ / "sums-of-one.h5").string() +
                          "}\npasses:\n  - gptq: {bits: 4, group_size: -1, fit: false}\n");
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "from-sums").string()},
                  {"from-sums", "from-sums/model.safetensors"}, S_IRWXG | S_IRWXO);
  write_text(recipe_, "model: " + model_.string() +
                          "\npasses:\n  - distill: {logits: " + (folder_ / "logits-of-one.h5").string() +
                          ", total_tokens: 16, batch: 1, validation_windows: 1}\n");
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "from-logits").string()},
                  {"from-logits", "from-logits/model.safetensors"}, S_IRWXG | S_IRWXO);
}

// Everybody may read the file, but not everybody may enter a folder above it.
TEST_F(PrivateModels, AFolderThatNotEverybodyMayEnterCounts) {
  fs::create_directories(folder_ / "closed" / "deep");
  fs::rename(model_, folder_ / "closed" / "deep" / "model");
  fs::create_directory_symlink("closed/deep/model", model_);
  give_rights(folder_ / "closed", 0710);
  expect_all_withheld(S_IRWXO, "-of-a-group");
  give_rights(folder_ / "closed", 0700);
  expect_all_withheld(S_IRWXG | S_IRWXO, "-of-one");

  // The private file is the target of a link in a folder that everybody may enter.
  fs::remove(model_);
  fs::copy(folder_ / "closed" / "deep" / "model", model_, fs::copy_options::recursive);
  fs::remove(model_ / "model.safetensors");
  fs::create_symlink("../closed/deep/model/model.safetensors", model_ / "model.safetensors");
  expect_all_withheld(S_IRWXG | S_IRWXO, "-by-a-link");

  fs::copy(std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf", folder_ / "closed" / "x.gguf");
  give_rights(folder_ / "closed" / "x.gguf", 0644);
  expect_withheld({"import", (folder_ / "closed" / "x.gguf").string(), (folder_ / "imported").string()},
                  {"imported", "imported/model.safetensors", "imported/tokenizer.json"}, S_IRWXG | S_IRWXO);
}

TEST_F(PrivateModels, TextsCountLikeModels) {
  give_rights(text_, 0640);
  expect_all_withheld(S_IRWXO, "-of-a-group");
  give_rights(text_, 0600);
  expect_all_withheld(S_IRWXG | S_IRWXO, "-of-one");
  fs::copy(std::string(kSourceFolder) + "/calibration_data/stories.txt", folder_ / "public.txt");
  give_rights(folder_ / "public.txt", 0644);
  const std::string distill =
      "  - distill: {loss: hard_label, tokens: 16, total_tokens: 16, batch: 1, "
      "windows: 4, validation_windows: 1, text: ";
  const std::vector<std::string> recipes = {
      "  - rtn: {bits: 8, group_size: -1}\nevaluate:\n  - perplexity: {context: 16, windows: 1, text: " +
          text_.string() + "}\n",
      distill + "[" + (folder_ / "public.txt").string() + ", " + text_.string() + "]}\n",
      distill + (folder_ / "public.txt").string() + ", validation_text: " + text_.string() + "}\n"};
  for (size_t i = 0; i < recipes.size(); ++i) {
    write_text(recipe_, "model: " + model_.string() + "\npasses:\n" + recipes[i]);
    const std::string out = "text-" + std::to_string(i);
    expect_withheld({"run", recipe_.string(), "--out", (folder_ / out).string()}, {out, out + "/model.safetensors"},
                    S_IRWXG | S_IRWXO);
  }
  // An output holds its recipe.
  write_text(recipe_, "model: " + model_.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n");
  give_rights(recipe_, 0600);
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "recipe").string()}, {"recipe", "recipe/pare.json"},
                  S_IRWXG | S_IRWXO);
}

// The files of another group are not for the process's own group.
TEST_F(PrivateModels, AGroupKeepsItsRightsWhereTheOutputIsOfThatGroup) {
  const std::optional<gid_t> group = other_group();
  if (!group) GTEST_SKIP() << "this user has one group";
  give_to_group(model_ / "model.safetensors", *group);
  give_rights(model_ / "model.safetensors", 0640);
  write_text(model_ / "README.md", "of the group alone");
  give_to_group(model_ / "README.md", *group);
  give_rights(model_ / "README.md", 0640);
  expect_all_withheld(S_IRWXG | S_IRWXO, "-of-another-group");
  fs::create_directory(folder_ / "shared");
  give_to_group(folder_ / "shared", *group);
  give_rights(folder_ / "shared", 02770);
  ASSERT_EQ(run_pare({"run", recipe_.string(), "--out", (folder_ / "shared" / "out").string()}).status, 0);
  for (const char* name : {"model.safetensors", "README.md", "README.source.md"}) {
    const struct stat status = status_of(folder_ / "shared" / "out" / name);
    EXPECT_EQ(status.st_gid, *group) << name;
    EXPECT_EQ(status.st_mode & 0777, name[0] == 'R' ? 0640u : 0660u) << name;
  }
  // There are two groups, and nobody else is in both.
  give_to_group(text_, ::getegid());
  give_rights(text_, 0640);
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "shared" / "of-two").string()},
                  {"shared/of-two", "shared/of-two/model.safetensors"}, S_IRWXG | S_IRWXO);
  // Only one file is private, so only its copy is.
  give_rights(text_, 0644);
  give_rights(model_ / "model.safetensors", 0644);
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "copies").string()},
                  {"copies/README.md", "copies/README.source.md"}, S_IRWXG | S_IRWXO);
}

TEST(RecipeInputs, AreAllFilesThatARecipeNames) {
  Recipe recipe;
  recipe.file = "recipe.yaml";
  recipe.model = "a-model";
  recipe.calibration = CalibrationRecipe{.text = "c.txt", .statistics = "c.h5", .num_samples = {}, .num_tokens = {}};
  recipe.sensitivity.emplace().text = "s.txt";
  for (const char* file : {"e.txt", "i.json", "p.tsv"}) {
    const auto options = std::make_shared<EmbeddingsOptions>();
    options->data = file;
    recipe.evaluate.push_back({evaluation_rows().front(), options});
  }
  const auto questions = std::make_shared<TaskOptions>(Task{});
  questions->data = "q.jsonl";
  questions->shots_file = "examples.jsonl";
  recipe.evaluate.push_back({evaluation_rows().front(), questions});
  const auto pass = std::make_shared<DistillPass>();
  pass->distill.text = {"t.txt", "u.txt"};
  pass->distill.validation_text = "v.txt";
  pass->distill.student = "student";
  pass->distill.teacher = "teacher";
  pass->distill.logits = "l.h5";
  recipe.passes.emplace_back().options = pass;
  const std::vector<fs::path> data = {"c.txt",  "c.h5",  "s.txt",   "e.txt",
                                      "i.json", "p.tsv", "q.jsonl", "examples.jsonl"};
  EXPECT_EQ(data_files(recipe), data);
  std::vector<fs::path> expected = data, inputs = all_inputs(recipe, "other-model");
  for (const char* file :
       {"recipe.yaml", "other-model", "t.txt", "u.txt", "v.txt", "student", "teacher", "l.h5", "l.h5.shards"}) {
    expected.emplace_back(file);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(inputs.begin(), inputs.end());
  EXPECT_EQ(inputs, expected);
}

TEST_F(PrivateModels, OfAPublicModelTheUmaskDecides) {
  for (fs::path above = folder_.path(); above != above.parent_path(); above = above.parent_path()) {
    if ((status_of(above).st_mode & S_IXOTH) == 0) GTEST_SKIP() << above << " is not for everybody";
  }
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0644));
  ASSERT_EQ(run_pare({"run", recipe_.string(), "--out", (folder_ / "out").string()}).status, 0);
  EXPECT_EQ(fs::status(folder_ / "out" / "model.safetensors").permissions(), static_cast<fs::perms>(0666));
}

}  // namespace
}  // namespace pare::test
