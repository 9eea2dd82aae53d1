// Inputs that people pass by mistake to the commands that follow a recipe, or record.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

class MistakenInputs : public testing::Test {
 protected:
  MistakenInputs() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
    write_recipe(text_);
  }
  void write_recipe(const fs::path& text) const {
    write_text(folder_ / "recipe.yaml", "calibration: {samples: 2, tokens: 16, text: " + text.string() +
                                            "}\npasses:\n  - gptq: {bits: 4, group_size: -1}\n");
  }
  void expect_all_refuse(const std::string& model, const fs::path& text, const std::vector<std::string>& parts) const {
    const std::string recipe = (folder_ / "recipe.yaml").string(), made = (folder_ / "made").string();
    const std::vector<std::vector<std::string>> commands = {
        {"run", recipe, "--model", model, "--out", made},
        {"calibrate", recipe, "--model", model, made},
        {"record", model, made, "--tokens", "16", "--text", text.string()}};
    for (const auto& command : commands) {
      const Outcome outcome = run_pare(command);
      EXPECT_EQ(outcome.status, 1) << command[0];
      for (const std::string& part : parts) {
        EXPECT_NE(outcome.err.find(part), std::string::npos) << command[0] << ": " << outcome.err;
      }
      EXPECT_FALSE(fs::exists(made));
      EXPECT_FALSE(fs::exists(made + ".partial"));
    }
  }

  TemporaryFolder folder_{"mistaken"};
  fs::path model_ = folder_ / "model", text_ = std::string(kSourceFolder) + "/calibration_data/stories.txt";
};

TEST_F(MistakenInputs, ModelsThatAreNoneAreNamedWithWhatHelps) {
  expect_all_refuse("org/name", text_, {"name on the Hugging Face hub", "hf download org/name"});
  fs::rename(model_ / "model.safetensors", folder_ / "weights");
  write_text(model_ / "pytorch_model.bin", "x");
  expect_all_refuse(model_.string(), text_, {"PyTorch's own format (pytorch_model.bin)", "save_pretrained"});
  fs::remove(model_ / "pytorch_model.bin");
  write_text(model_ / "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 77\n");
  expect_all_refuse(model_.string(), text_, {"Git LFS pointer to a file of 77 bytes", "git lfs pull"});
  fs::remove_all(model_);
  fs::create_directory(model_);
  write_text(model_ / "adapter_config.json", "{}");
  expect_all_refuse(model_.string(), text_, {"holds an adapter (LoRA", "merge_and_unload"});
  fs::create_directories(folder_ / "models--a--b" / "snapshots" / "123");
  expect_all_refuse((folder_ / "models--a--b").string(), text_, {"hub's cache", "snapshots/123'"});
}

TEST_F(MistakenInputs, AFolderIsNoText) {
  fs::create_directory(folder_ / "texts");
  write_text(folder_ / "texts" / "one.txt", "x");
  write_recipe(folder_ / "texts");
  expect_all_refuse(model_.string(), folder_ / "texts", {"is a folder; expected a text", "texts/one.txt'"});
  const Outcome prompts =
      run_pare({"record", model_.string(), (folder_ / "made").string(), "--prompts", (folder_ / "texts").string()});
  EXPECT_EQ(prompts.status, 1);
  EXPECT_NE(prompts.err.find("is a folder; expected prompts"), std::string::npos) << prompts.err;
}

TEST_F(MistakenInputs, ATokenizerOfAnotherFormIsNamed) {
  fs::remove(model_ / "tokenizer.json");
  write_text(model_ / "tokenizer.model", "x");
  expect_all_refuse(model_.string(), text_, {"holds no tokenizer.json, but tokenizer.model", "AutoTokenizer"});
}

}  // namespace
}  // namespace pare::test
