// Token ids of another tokenizer are nonsense to a model. No command may work on them without saying so.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "compress/recipe/recipe.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/system/atomic_file.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kSource = kSourceFolder;
const fs::path kData = kSource / "calibration_data";
const fs::path kModel = kData / "stories260k";

class ForeignWindows : public testing::Test {
 protected:
  // Makes windows of the model's tokenizer, and the same windows of one that counts backwards.
  void SetUp() override {
    const std::string text = (kData / "stories.txt").string();
    tokenize(kModel, text, own_);
    Json tokenizer = Json::parse(read_text_file(kModel / "tokenizer.json"));
    Json vocabulary;
    for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) vocabulary[token] = 511 - id.get<int>();
    tokenizer["model"]["vocab"] = vocabulary;
    for (Json& token : tokenizer["added_tokens"]) token["id"] = 511 - token["id"].get<int>();
    write_text(folder_ / "backwards.json", tokenizer.dump());
    TokenWindows windows = read_npy(own_);
    for (int32_t& id : windows.ids_NT) id = 511 - id;
    write_windows(foreign_, windows, tokenizer_hash(folder_ / "backwards.json"));
    write_npy(unknown_, windows);
  }
  void tokenize(const fs::path& model, const std::string& text, const fs::path& out) {
    std::vector<std::string> command = {"tokenize",  model.string(), "--text", text,
                                        "--windows", out.string(),   "--json"};
    if (text != own_) command.insert(command.end(), {"--tokens", "64"});
    const Outcome outcome = run_pare(command);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json.at("tokens"), 64);
    EXPECT_EQ(json.at("windows"), read_npy(out).num_windows);
    EXPECT_EQ(json.at("tokenizer"), tokenizer_hash(model));
  }
  std::vector<std::string> run(const std::string& recipe, const std::vector<std::string>& more = {}) {
    write_text(folder_ / "r.yaml", "model: " + kModel.string() + "\n" + recipe);
    std::vector<std::string> words = {"run", (folder_ / "r.yaml").string(), "--out", (folder_ / "out").string(),
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Returns every command that reads windows, with that file in the place of each of them.
  std::vector<std::vector<std::string>> commands(const fs::path& windows) {
    const std::string text = windows.string(), own = own_.string();
    const std::string rtn = "passes:\n  - rtn: {bits: 4, group_size: -1}\n";
    std::vector<std::vector<std::string>> all;
    const std::vector<std::string> recipes = {
        "calibration: {text: " + text + "}\n" + rtn,
        "calibration: {text: " + own + "}\n" + rtn + "sensitivity: {text: " + text + "}\n",
        rtn + "evaluate:\n  - perplexity: {text: " + text + "}\n",
        "calibration: {text: " + text + "}\nstudent: {layers: 3, choose: block_error}\n",
        "passes:\n  - distill: {text: [" + own + ", " + text + "], total_tokens: 512, validation_windows: 2}\n",
        "passes:\n  - distill: {text: " + own + ", validation_text: " + text + ", total_tokens: 512}\n"};
    for (size_t i = 0; i < recipes.size(); ++i) {
      const fs::path file = folder_ / ("r" + std::to_string(i) + ".yaml");
      write_text(file, "model: " + kModel.string() + "\n" + recipes[i]);
      for (const bool is_dry : {true, false}) {
        all.push_back({"run", file.string(), "--out", (folder_ / ("out" + std::to_string(i))).string(), "--json"});
        if (is_dry) all.back().push_back("--dry-run");
      }
    }
    write_text(folder_ / "c.yaml", "model: " + kModel.string() + "\ncalibration: {text: " + text + "}\n");
    const std::string store = (folder_ / "store.h5").string();
    all.push_back({"calibrate", (folder_ / "c.yaml").string(), (folder_ / "statistics.h5").string(), "--json"});
    all.push_back({"record", kModel.string(), store, "--text", text, "--windows", "2", "--json", "--dry-run"});
    all.push_back({"record", kModel.string(), store, "--text", text, "--windows", "2", "--json"});
    all.push_back({"eval", kModel.string(), "--text", text, "--windows", "2", "--json"});
    return all;
  }
  std::string words(const std::vector<std::string>& command) {
    std::string line;
    for (const std::string& word : command) line += word + " ";
    return line;
  }
  TemporaryFolder folder_{"foreign_windows"};
  const fs::path own_ = folder_ / "own.npy", foreign_ = folder_ / "foreign.npy", unknown_ = folder_ / "unknown.npy";
};

TEST_F(ForeignWindows, AreRefusedByEveryCommandBeforeAnyWork) {
  for (const std::vector<std::string>& command : commands(foreign_)) {
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 1) << words(command);
    EXPECT_NE(outcome.err.find("foreign.npy' holds token ids of another tokenizer"), std::string::npos)
        << words(command) << outcome.err;
  }
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(name.starts_with("out") || name.starts_with("statistics") || name.starts_with("store")) << name;
  }
}

TEST_F(ForeignWindows, OfAnUnknownTokenizerAreTold) {
  const std::string event = "unknown.npy' does not say which tokenizer its token ids belong to";
  for (const std::vector<std::string>& command : commands(unknown_)) {
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 0) << words(command) << outcome.err;
    EXPECT_NE((outcome.err + outcome.out).find(event), std::string::npos) << words(command) << outcome.err;
    const bool is_dry = std::find(command.begin(), command.end(), "--dry-run") != command.end();
    if (is_dry) continue;
    EXPECT_NE(Json::parse(outcome.out).at("events").dump().find(event), std::string::npos) << words(command);
  }
}

TEST_F(ForeignWindows, OfTheModelsTokenizerAreNoEvent) {
  for (const std::vector<std::string>& command : commands(own_)) {
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 0) << words(command) << outcome.err;
    EXPECT_EQ(outcome.err.find("token ids"), std::string::npos) << words(command) << outcome.err;
  }
}

TEST_F(ForeignWindows, AReferenceOfAnotherTokenizerIsRefused) {
  const fs::path other = folder_ / "other";
  fs::copy(kModel, other, fs::copy_options::recursive);
  fs::copy_file(folder_ / "backwards.json", other / "tokenizer.json", fs::copy_options::overwrite_existing);
  const Outcome outcome = run_pare({"eval", kModel.string(), "--text", own_.string(), "--reference", other.string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("another tokenizer than that of '" + other.string()), std::string::npos) << outcome.err;
}

// Nothing says to whom the ids belong, but the model does not know them.
TEST_F(ForeignWindows, ATextThatTheModelDoesNotKnowIsAnEventWhereverItCalibrates) {
  const std::string event = "the model does not know this text";
  const std::string calibration = "calibration: {text: " + unknown_.string() + "}\n";
  const std::string rtn = "passes:\n  - rtn: {bits: 4, group_size: -1}\n";
  const Outcome whole = run_pare(run(calibration + rtn));
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_NE(Json::parse(read_text_file(folder_ / "out" / "pare.json")).at("events").dump().find(event),
            std::string::npos);
  fs::remove_all(folder_ / "out");
  const Outcome student = run_pare(run(calibration + "student: {layers: 3, choose: block_error}\n"));
  EXPECT_NE(Json::parse(student.out).at("events").dump().find(event), std::string::npos) << student.err;
  fs::remove_all(folder_ / "out");
  const Outcome statistics =
      run_pare({"calibrate", (folder_ / "r.yaml").string(), (folder_ / "s.h5").string(), "--json"});
  EXPECT_EQ(statistics.status, 1) << "a student is no calibration";
  write_text(folder_ / "c.yaml", "model: " + kModel.string() + "\n" + calibration);
  const Outcome taken = run_pare({"calibrate", (folder_ / "c.yaml").string(), (folder_ / "s.h5").string(), "--json"});
  EXPECT_NE(Json::parse(taken.out).at("events").dump().find(event), std::string::npos) << taken.err;

  // For windows that name their tokenizer it is the only event, and a strict recipe ends before any work.
  write_windows(foreign_, read_npy(unknown_), tokenizer_hash(kModel));
  const Outcome strict = run_pare(run("calibration: {text: " + foreign_.string() + "}\nstrict: true\n" + rtn));
  EXPECT_EQ(strict.status, 1);
  EXPECT_NE(strict.err.find("strict: 1 event"), std::string::npos) << strict.err;
  EXPECT_NE(strict.err.find(event), std::string::npos) << strict.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  const Outcome known = run_pare(run("calibration: {text: " + own_.string() + "}\nstrict: true\n" + rtn));
  EXPECT_EQ(known.status, 0) << known.err;
}

TEST_F(ForeignWindows, WindowsThatAreThereAreTakenOnTheirOwnersWord) {
  ASSERT_NO_FATAL_FAILURE(tokenize(kModel, own_.string(), folder_ / "again.npy"));
  EXPECT_EQ(read_text_file(folder_ / "again.npy"), read_text_file(own_));
  EXPECT_EQ(windows_tokenizer(folder_ / "again.npy"), tokenizer_hash(kModel));
  const auto refused = [&](const std::vector<std::string>& more, int status, const std::string& part) {
    std::vector<std::string> command = {"tokenize", kModel.string(), "--text", own_.string()};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, status) << words(command) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << words(command) << outcome.err;
  };
  refused({"--windows", own_.string()}, 1, "exists");
  refused({"--windows", (folder_ / "new.npy").string(), "--tokens", "32"}, 2, "as they are");
  refused({"--windows", (folder_ / "new.txt").string()}, 2, ".npy");
  refused({"--tokens", "32"}, 2, "--windows");
}

// Recipes whose figures stand in the tables of docs/results.md keep the windows that these were measured on.
TEST(ShippedRecipes, ReadTextsButForThoseOfTheTablesOfResults) {
  std::ifstream page(kSource / "docs" / "results.md");
  std::set<std::string> in_tables;
  const std::regex row(R"(^\| ([a-z0-9.-]+).*\|.*)");
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (std::regex_match(line, match, row) && fs::exists(kSource / "recipes" / (match[1].str() + ".yaml"))) {
      in_tables.insert(match[1]);
    }
  }
  EXPECT_GE(in_tables.size(), 16u);
  size_t num_recipes = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "recipes")) {
    const Recipe recipe = read_recipe(entry.path());
    const std::string name = entry.path().stem().string();
    std::vector<fs::path> texts;
    if (recipe.calibration) texts.push_back(recipe.calibration->text);
    for (const EvaluationRecipe& item : recipe.evaluate) texts.emplace_back(item.options->data);
    for (const fs::path& text : texts) {
      EXPECT_TRUE(text.extension() != ".npy" || in_tables.contains(name)) << name;
      EXPECT_TRUE(text.empty() || fs::exists(kSource / text)) << name << ": " << text;
    }
    ++num_recipes;
  }
  EXPECT_GE(num_recipes, 37u);
}

}  // namespace
}  // namespace pare::test
