// No option may be read and ignored. A changed option must change the result, be refused with its name, or stand in a
// list with the reason. The options come from the passes' own lists of fields, so new ones are tested without further
// work.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/reconstruct_pass.h"
#include "compress/recipe/student_options.h"
#include "compress/run/pipeline.h"
#include "runtime/files/npy.h"
#include "tests/compress/is_stranger.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// Values of options, by name. Options in a map of their own are named as in "activations.range".
using Given = std::map<std::string, std::string>;

// Collects every option that a recipe may give, with other values that it may have.
class OtherValues : public FieldVisitor {
 public:
  std::map<std::string, std::vector<std::string>> found;
  std::map<std::string, std::string> defaults;

 protected:
  void visit_bool(std::string_view name, bool& value) override {
    add(name, value ? "true" : "false", {"false", "true"});
  }
  void visit_integer(std::string_view name, int64_t& value, const FieldLimits& limits) override {
    std::vector<std::string> others;
    for (const int64_t each : limits.values) others.push_back(std::to_string(each));
    if (others.empty()) {
      for (const int64_t other : {value / 2, value + 1, int64_t{0}}) {
        if (static_cast<double>(other) >= limits.low && static_cast<double>(other) <= limits.high) {
          others.push_back(std::to_string(other));
          break;
        }
      }
    }
    add(name, std::to_string(value), others);
  }
  void visit_number(std::string_view name, double& value, const FieldLimits& limits) override {
    add(name, number(value), {number(value * 1.5 <= limits.high ? value * 1.5 : value / 2.0)});
  }
  void visit_optional(std::string_view name, std::optional<double>& value, const FieldLimits& limits) override {
    add(name, value ? number(*value) : "", {number(value ? *value / 2.0 : (limits.low + limits.high) / 3.0)});
  }
  void visit_text(std::string_view name, std::string& value) override {
    static const std::map<std::string, std::vector<std::string>, std::less<>> kTexts = {
        {"pattern", {"\"2:4\"", "\"1:4\"", "unstructured"}},
        {"prune", {"\"2:4\"", "\"4:8\"", "none"}},
        {"student", {"FOLDER/another"}},
        {"teacher", {"FOLDER/another"}},
        {"logits", {"FOLDER/another.h5"}},
        {"end_of_document", {"<unk>"}},
        {"validation_text", {"FOLDER/another.jsonl"}}};
    const auto texts = kTexts.find(name);
    ASSERT_NE(texts, kTexts.end()) << "say which texts " << name << " may be";
    add(name, value.find(':') == std::string::npos ? value : "\"" + value + "\"", texts->second);
  }
  void visit_texts(std::string_view name, std::vector<std::string>&) override {
    ASSERT_EQ(name, "text");
    add(name, "", {"FOLDER/another.jsonl"});
  }
  void visit_choice(std::string_view name, std::span<const std::string_view> names, size_t& index) override {
    add(name, std::string(names[index]), {names.begin(), names.end()});
  }
  bool enter(std::string_view name) override {
    prefix_ += std::string(name) + ".";
    return true;
  }
  void leave(std::string_view name) override { prefix_.resize(prefix_.size() - name.size() - 1); }
  bool visits_decided() const override { return false; }

 private:
  static std::string number(double value) {
    std::ostringstream text;
    text << value;
    return text.str();
  }
  void add(std::string_view name, const std::string& value, std::vector<std::string> values) {
    found[prefix_ + std::string(name)] = std::move(values);
    defaults[prefix_ + std::string(name)] = value;
  }
  std::string prefix_;
};

constexpr const char* kStudent = "student";  // no pass, but its options are given like a pass's

// A pass with some of its options, among others. FOLDER in a value stands for the test's own folder.
struct Setting {
  const char* name;
  const char* pass;
  Given given = {};
  const char* before = "";
  const char* after = "";
  // Options that change nothing here, each with the reason.
  std::map<std::string, const char*> idle = {};
  std::set<std::string> only = {};  // the options to change; empty: all
  friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }
};

// Returns a text such as "{bits: 4, activations: {range: token}}".
std::string flow_map(const Given& given) {
  std::string text;
  for (auto item = given.begin(); item != given.end();) {
    const size_t dot = item->first.find('.');
    const std::string name = item->first.substr(0, dot);
    text += (text.empty() ? "" : ", ") + name + ": ";
    if (dot == std::string::npos) {
      text += (item++)->second;
      continue;
    }
    Given inner;
    for (; item != given.end() && item->first.starts_with(name + "."); ++item) {
      inner[item->first.substr(dot + 1)] = item->second;
    }
    text += flow_map(inner);
  }
  return "{" + text + "}";
}

// Writes pieces of the embedded model's stories, each as a document, from the piece of that number on.
void write_stories(const fs::path& path, size_t first) {
  std::ifstream file(fs::path(kSourceFolder) / "calibration_data" / "stories.txt");
  std::string stories{std::istreambuf_iterator<char>(file), {}};
  constexpr size_t kLength = 80;  // some 30 tokens
  std::string lines;
  for (size_t i = first; i < first + 16; ++i) {
    lines += nlohmann::json{{"text", stories.substr(i * kLength, kLength)}}.dump() + "\n";
  }
  write_text(path, lines);
}

class EveryOption : public testing::TestWithParam<Setting> {
 protected:
  EveryOption() {
    // There are enough windows for layers to be fitted by default.
    TokenWindows windows{16, 32, {}};
    std::mt19937 generator(5);
    for (int64_t i = 0; i < 16 * 32; ++i) windows.ids_NT.push_back(static_cast<int32_t>(generator() % 128));
    write_npy(folder_ / "ids.npy", windows);
    if (trains()) make_training_files();
  }
  static bool trains() { return GetParam().pass == std::string_view("distill"); }
  // Makes a teacher, its student, texts and recorded logits, and another one of each.
  void make_training_files() {
    for (const auto& [text, first] : {std::pair{"text", 0}, {"another", 16}}) {
      write_stories(folder_ / (std::string(text) + ".jsonl"), first);
      const Outcome recorded = run_pare({"record", kStories.string(), (folder_ / (std::string(text) + ".h5")).string(),
                                         "--text", (folder_ / (std::string(text) + ".jsonl")).string(), "--tokens",
                                         "32", "--top-k", "8", "--threads", "1"});
      ASSERT_EQ(recorded.status, 0) << recorded.err;
    }
    for (const auto& [name, pattern] : {std::pair{"student", "2:4"}, {"another", "1:4"}}) {
      write_text(folder_ / "student.yaml", "model: " + kStories.string() + "\npasses: [magnitude: {pattern: '" +
                                               pattern + "', resolve: 0, storage: dense-with-zeros}]\n");
      const Outcome made =
          run_pare({"run", (folder_ / "student.yaml").string(), "--out", (folder_ / name).string(), "--threads", "1"});
      ASSERT_EQ(made.status, 0) << made.err;
    }
  }

  std::string recipe_with(const Given& given) const {
    const Setting& setting = GetParam();
    const bool is_student = setting.pass == std::string_view(kStudent);
    std::string text = "model: " + (trains() || is_student ? kStories : family("llama_gqa_untied")).string() +
                       "\ncalibration: {text: " + (folder_ / "ids.npy").string() + "}\n";
    text += (is_student ? "student: " + flow_map(given) + "\npasses: []\n"
                        : std::string("passes:\n") + setting.before + "  - " + setting.pass + ": " + flow_map(given) +
                              "\n" + setting.after);
    const std::string kFolder = "FOLDER";
    for (size_t at = text.find(kFolder); at != std::string::npos; at = text.find(kFolder)) {
      text.replace(at, kFolder.size(), (folder_ / ".").string());
    }
    return text;
  }

  // Returns the run's files without pare.json and the model card, which hold the recipe. Throws what the run throws.
  std::map<std::string, std::string> files_of(const Given& given) {
    const Recipe recipe = parse_recipe(recipe_with(given), folder_ / "r.yaml");
    RunOptions options;
    options.output = folder_ / "out";
    options.num_threads = 1;
    std::ostringstream log;
    Progress progress(ProgressStyle::lines, log);
    run(recipe, options, progress);
    std::map<std::string, std::string> files = promised_files(folder_ / "out");
    fs::remove_all(folder_ / "out");
    files.erase("pare.json");
    files.erase("README.md");
    return files;
  }
  const fs::path kStories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";
  TemporaryFolder folder_{"every_option"};
};

// Returns the options of a setting's pass, or of `student:`.
OtherValues values_of_options(std::string_view pass) {
  OtherValues others;
  if (pass == kStudent) {
    StudentOptions{}.fields(others);
    return others;
  }
  find_pass(pass)->make_options()->fields(others);
  return others;
}

TEST_P(EveryOption, ChangesTheResultOrIsRefused) {
  const Setting& setting = GetParam();
  OtherValues others = values_of_options(setting.pass);
  const auto plain = files_of(setting.given);
  ASSERT_EQ(files_of(setting.given), plain);
  std::set<std::string> idle;
  for (const auto& [option, values] : others.found) {
    EXPECT_FALSE(values.empty()) << option;
    if (!setting.only.empty() && !setting.only.contains(option)) continue;
    for (const std::string& value : values) {
      Given given = setting.given;
      given[option] = value;
      if (given == setting.given || (!setting.given.contains(option) && value == others.defaults.at(option))) continue;
      try {
        if (files_of(given) != plain) continue;
        idle.insert(option);
        EXPECT_TRUE(setting.idle.contains(option)) << option << ": " << value << " is read and ignored";
      } catch (const std::invalid_argument& refusal) {
        const std::string name = option.substr(0, option.find('.'));
        EXPECT_NE(std::string(refusal.what()).find(name), std::string::npos) << option << ": " << refusal.what();
      }
    }
  }
  for (const auto& [option, reason] : setting.idle) EXPECT_TRUE(idle.contains(option)) << option << " is not idle";
}

// Returns the options of minillm itself and of its sampling.
std::set<std::string> minillm_options() {
  std::set<std::string> options = {"prompt_tokens", "sampled_tokens", "teacher", "temperature", "seed"};
  OtherValues others;
  MiniLlmOptions{}.fields(others);
  for (const auto& [option, values] : others.found) options.insert("minillm." + option);
  return options;
}

// Returns options for a few steps on short windows, with others among them. The value "" leaves an option out.
Given training(const Given& more) {
  Given given = {{"text", "FOLDER/text.jsonl"},
                 {"student", "FOLDER/student"},
                 {"tokens", "32"},
                 {"total_tokens", "192"},
                 {"batch", "2"},
                 {"validation_windows", "2"},
                 {"validations", "2"},
                 {"precision", "float32"},
                 {"warmup", "0.5"},
                 {"learning_rate", "0.01"},
                 {"scale_learning_rate", "0.02"},
                 {"offset_learning_rate", "0.1"}};
  for (const auto& [option, value] : more) given[option] = value;
  std::erase_if(given, [](const auto& item) { return item.second.empty(); });
  return given;
}

constexpr const char* kGptq = "  - gptq: {bits: 4, group_size: 32}\n";

const std::vector<Setting>& settings() {
  constexpr const char* kNoCodes = "no layer of the student is one in codes, of which an event speaks";
  constexpr const char* kNoStop = "so few epochs get better to the last";
  constexpr const char* kOneOfBoth = "the default is one of the others";
  constexpr const char* kOwnLayout = "no other layout holds such outliers";
  constexpr const char* kRoundingErrors =
      "it decides how the sweep is cut into products, which differ in rounding alone";
  static const std::vector<Setting> kSettings = {
      {"Magnitude", "magnitude", {{"resolve", "3"}}},
      {"MagnitudeBeforeGptq", "magnitude", {{"resolve", "3"}}, "", kGptq},
      {"MagnitudeUnstructured", "magnitude", {{"pattern", "unstructured"}, {"resolve", "3"}}},
      {"MagnitudeByOneThreshold",
       "magnitude",
       {{"pattern", "unstructured"}, {"allocation", "global"}, {"resolve", "3"}},
       "",
       "",
       {{"fit", "one threshold over all layers fits none of them anyhow"}}},
      {"Wanda", "wanda", {{"resolve", "3"}}},
      {"WandaExactly", "wanda", {{"resolve_exact", "true"}}},
      {"WandaByOutliers",
       "wanda",
       {{"pattern", "unstructured"}, {"allocation", "owl"}, {"owl_outlier", "2"}, {"resolve", "3"}}},
      {"SparseGpt", "sparsegpt", {{"resolve", "3"}}},
      {"SparseGptSweep", "sparsegpt", {{"mask", "sweep"}, {"resolve", "3"}}},
      {"SparseGptUnstructured", "sparsegpt", {{"pattern", "unstructured"}, {"resolve", "3"}}},
      {"SparseGptUnstructuredSweep", "sparsegpt", {{"pattern", "unstructured"}, {"mask", "sweep"}, {"resolve", "3"}}},
      {"SparseGptBeforeGptq", "sparsegpt", {{"resolve", "3"}}, "", kGptq},
      {"Rtn", "rtn", {{"bits", "4"}, {"group_size", "32"}}},
      {"RtnW8A8", "rtn", {{"bits", "8"}, {"group_size", "-1"}, {"activations.type", "int8"}}},
      {"RtnPerTensor", "rtn", {{"bits", "8"}, {"group_size", "-1"}, {"per_tensor", "true"}, {"refine", "2"}}},
      {"Gptq", "gptq", {{"bits", "3"}, {"group_size", "32"}}, "", "", {{"block_size", kRoundingErrors}}},
      {"GptqW8A8",
       "gptq",
       {{"bits", "8"}, {"group_size", "-1"}, {"activations.type", "int8"}},
       "",
       "",
       {{"block_size", kRoundingErrors}, {"act_order", "without groups, those of the order are no others"}}},
      {"GptqPruning",
       "gptq",
       {{"bits", "4"}, {"group_size", "32"}, {"prune", "\"2:4\""}},
       "",
       "",
       {{"block_size", kRoundingErrors}}},
      {"GptqPruningInItsSweep",
       "gptq",
       {{"bits", "4"}, {"group_size", "32"}, {"prune", "\"2:4\""}, {"mask", "sweep"}},
       "",
       "",
       {{"block_size", kRoundingErrors}}},
      {"Gguf",
       "gguf",
       {{"type", "q4_0"}},
       "",
       "",
       {{"block_size", kRoundingErrors}, {"type", "rows are too narrow for superblocks, for which q4_0 stands in"}}},
      {"Fp8", "fp8"},
      {"Fp8Static", "fp8", {{"activations.range", "static"}}},
      {"LlmInt8", "llm_int8", {{"threshold", "1.5"}}},
      {"LlmInt8Relative", "llm_int8", {{"threshold", "2"}, {"measure", "rms"}}, "", "", {{"layout", kOwnLayout}}},
      {"LlmInt8Static",
       "llm_int8",
       {{"threshold", "1.2"}, {"measure", "median"}, {"outliers", "static"}},
       "",
       "",
       {{"layout", kOwnLayout}}},
      {"Activations", "activations", {{"type", "int8"}}},
      {"AwqBeforeRtn", "awq", {{"grid_points", "3"}}, "", "  - rtn: {bits: 3, group_size: 32}\n"},
      {"AwqBeforeGptq", "awq", {}, "", kGptq},
      {"SmoothQuant", "smoothquant", {}, "", "  - gptq: {bits: 8, group_size: -1, activations: int8}\n"},
      {"ActivationSparsity", "activation_sparsity"},
      {"ActivationSparsityAfterGptq", "activation_sparsity", {}, kGptq},
      {"ReconstructCodes",
       "reconstruct",
       {{"epochs", "3"}, {"offset_learning_rate", "0.05"}},
       "  - gptq: {bits: 2, group_size: -1}\n",
       "",
       {{"patience", kNoStop}, {"precision", kOneOfBoth}}},
      {"ReconstructKeptWeights",
       "reconstruct",
       {{"epochs", "2"}},
       "  - sparsegpt: {}\n",
       "",
       {{"patience", kNoStop}, {"precision", kOneOfBoth}, {"train.scales", "kept weights have no scales"}}},
      {"Distill",
       "distill",
       training({{"precision", ""}}),
       "",
       "",
       {{"precision", kOneOfBoth},
        {"recompute", "what is computed again has the bits that would be kept"},
        {"scale_learning_rate", kNoCodes},
        {"offset_learning_rate", kNoCodes},
        {"train.scales", kNoCodes}}},
      {"DistillCodes",
       "distill",
       training({{"student", ""}, {"offset_learning_rate", "0.5"}}),
       "  - rtn: {bits: 4, group_size: -1}\n",
       "",
       {},
       {"scale_learning_rate", "offset_learning_rate", "train.scales", "train.weights"}},
      {"DistillByKl", "distill", training({{"loss", "forward_kl"}}), "", "", {}, {"temperature", "tail_label_weight"}},
      {"DistillByReverseKl", "distill", training({{"loss", "reverse_kl"}}), "", "", {}, {"temperature"}},
      {"DistillByJensenShannon",
       "distill",
       training({{"loss", "jensen_shannon"}}),
       "",
       "",
       {},
       {"temperature", "beta"}},
      {"DistillBySkewKl", "distill", training({{"loss", "skew_kl"}}), "", "", {}, {"temperature", "skew"}},
      {"DistillBySkewReverseKl",
       "distill",
       training({{"loss", "skew_reverse_kl"}}),
       "",
       "",
       {},
       {"temperature", "skew"}},
      {"DistillByTotalVariation", "distill", training({{"loss", "total_variation"}}), "", "", {}, {"temperature"}},
      {"DistillBySlim",
       "distill",
       training({{"loss", "slim"}}),
       "",
       "",
       {},
       {"temperature", "slim_share", "slim_weight"}},
      {"DistillByLabels",
       "distill",
       training({{"loss", "hard_label"}}),
       "",
       "",
       {{"teacher", "labels have none, as an event says"}},
       {"teacher", "temperature"}},
      {"DistillOwnSamples",
       "distill",
       training(
           {{"loss", "minillm"}, {"prompt_tokens", "8"}, {"sampled_tokens", "8"}, {"minillm.reward_limit", "0.5"}}),
       "",
       "",
       {},
       minillm_options()},
      {"DistillARecord",
       "distill",
       training({{"text", ""}, {"tokens", ""}, {"logits", "FOLDER/text.h5"}}),
       "",
       "",
       {},
       {"logits", "teacher", "text", "tokens", "windows", "tail_label_weight", "temperature", "hidden_weight",
        "student", "end_of_document", "seed", "select"}},
      {"StudentOfFewerLayers", "student", {{"layers", "3"}}},
      {"StudentOfLessWidth",
       "student",
       {{"hidden_size", "32"}, {"feed_forward_size", "64"}, {"heads", "4"}, {"kv_heads", "2"}}}};
  return kSettings;
}

INSTANTIATE_TEST_SUITE_P(Passes, EveryOption, testing::ValuesIn(settings()),
                         [](const testing::TestParamInfo<Setting>& item) { return std::string(item.param.name); });

TEST(EveryOptionOf, EveryPassIsTried) {
  std::set<std::string_view> tried;
  for (const Setting& setting : settings()) tried.insert(setting.pass);
  for (const PassRow* row : pass_rows()) {
    if (is_stranger(*row)) continue;
    EXPECT_TRUE(tried.contains(row->key)) << row->key;
  }
  EXPECT_TRUE(tried.contains(kStudent));
}

}  // namespace
}  // namespace pare::test
