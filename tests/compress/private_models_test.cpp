// A model that not everybody may read gives outputs that these may not read either, however generous the umask.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

class PrivateModels : public testing::Test {
 protected:
  PrivateModels() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
    write_text(recipe_, "model: " + model_.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n" +
                            "calibration: {samples: 2, tokens: 16, text: " + text_ + "}\n");
  }
  ~PrivateModels() override { ::umask(umask_); }
  // Sees to it that all files, and folders, made by that command have none of the rights `withheld`.
  void expect_withheld(const std::vector<std::string>& words, const std::vector<std::string>& made, mode_t withheld) {
    const Outcome outcome = run_pare(words);
    ASSERT_EQ(outcome.status, 0) << words.front() << ": " << outcome.err;
    for (const std::string& name : made) {
      struct stat status;
      ASSERT_EQ(::stat((folder_ / name).c_str(), &status), 0) << name;
      EXPECT_EQ(status.st_mode & withheld, 0u) << name << std::oct << " " << status.st_mode;
    }
  }
  void expect_all_withheld(mode_t withheld, const std::string& suffix) {
    expect_withheld({"run", recipe_.string(), "--out", (folder_ / ("run" + suffix)).string()},
                    {"run" + suffix, "run" + suffix + "/model.safetensors", "run" + suffix + "/pare.json"}, withheld);
    expect_withheld({"calibrate", recipe_.string(), (folder_ / ("sums" + suffix + ".h5")).string()},
                    {"sums" + suffix + ".h5"}, withheld);
    expect_withheld(
        {"record", model_.string(), (folder_ / ("logits" + suffix + ".h5")).string(), "--text", text_, "--tokens", "16",
         "--windows", "2"},
        {"logits" + suffix + ".h5", "logits" + suffix + ".h5.shards", "logits" + suffix + ".h5.shards/00000.h5"},
        withheld);
  }

  mode_t umask_ = ::umask(0);
  TemporaryFolder folder_{"private"};
  fs::path model_ = folder_ / "model", recipe_ = folder_ / "recipe.yaml";
  std::string text_ = std::string(kSourceFolder) + "/calibration_data/stories.txt";
};

TEST_F(PrivateModels, OutputsAreForNobodyElse) {
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0640));
  expect_all_withheld(S_IRWXO, "-of-a-group");
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0600));
  expect_all_withheld(S_IRWXG | S_IRWXO, "-of-one");
  // As another model's trainee.
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0644));
  fs::copy(model_, folder_ / "teacher", fs::copy_options::recursive);
  fs::permissions(folder_ / "teacher" / "model.safetensors", static_cast<fs::perms>(0600));
  write_text(recipe_, "model: " + model_.string() +
                          "\npasses:\n  - distill: {teacher: " + (folder_ / "teacher").string() + ", text: [" + text_ +
                          "], tokens: 16, total_tokens: 16, batch: 1, windows: 4, validation_windows: 1}\n");
  expect_withheld({"run", recipe_.string(), "--out", (folder_ / "student").string()},
                  {"student", "student/model.safetensors"}, S_IRWXG | S_IRWXO);
  // What was taken of a private model.
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

TEST_F(PrivateModels, OfAPublicModelTheUmaskDecides) {
  fs::permissions(model_ / "model.safetensors", static_cast<fs::perms>(0644));
  ASSERT_EQ(run_pare({"run", recipe_.string(), "--out", (folder_ / "out").string()}).status, 0);
  EXPECT_EQ(fs::status(folder_ / "out" / "model.safetensors").permissions(), static_cast<fs::perms>(0666));
}

}  // namespace
}  // namespace pare::test
