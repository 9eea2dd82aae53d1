// Unfinished runs that someone has changed to do harm, with hashes that are right. The worst that they may do is to end
// a resumed run with a message.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "compress/artifact/checked_file.h"
#include "compress/artifact/parts.h"
#include "compress/survey/survey_record.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Returns text with more levels than the stack of a recursive parser could hold.
std::string nested() {
  constexpr size_t kLevels = 80'000;
  std::string text;
  for (size_t i = 0; i < kLevels; ++i) text += "{\"a\":";
  return text + "1" + std::string(kLevels, '}');
}

TEST(HostileRun, DeepNestingIsRefused) {
  const TemporaryFolder folder("nested");
  const fs::path output = folder / "out", progress = folder / "out.partial" / "progress";
  const Fingerprint fingerprint = {{"model", "x"}};
  { const Parts made(output, fingerprint, false); }
  write_checked_file(progress / "00001.json", nested());
  expect_error<std::runtime_error>([&] { Parts(output, fingerprint, false); },
                                   {"00001.json' is damaged: start over with --fresh"});
  fs::remove(progress / "00001.json");
  write_checked_file(progress / "run.json", nested());
  expect_error<std::runtime_error>([&] { Parts(output, fingerprint, false); },
                                   {"run.json", "nested too deeply", "80000", "start over with --fresh"});
  fs::create_directories(output);  // the check whether the run made it reads the files as well
  expect_error<std::runtime_error>([&] { Workplace::check_output_is_free(output, PartialOutput::Leftovers::go); },
                                   {"exists"});
  fs::remove_all(output);
  EXPECT_NO_THROW(Parts(output, fingerprint, /*fresh=*/true));
  expect_error<std::runtime_error>([&] { parse_survey(nested(), "survey"); },
                                   {"survey", "nested too deeply", "80000", "start over with --fresh"});
}

// A run that has finished its blocks and fails a gate, so that its parts stay.
class HostileParts : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = family("qwen2_biases_tied"), ids = model / "ids.npy";
    write_text(folder_ / "recipe.yaml",
               "model: " + model.string() + "\ncalibration: {text: " + ids.string() +
                   "}\npasses:\n  - awq: {}\n  - rtn: {bits: 4, group_size: 32}\nhead: {bits: 8}\nevaluate:\n" +
                   "  - perplexity: {text: " + ids.string() + ", context: 64}\nfail_if: {kl: 1.0e-9}\n");
    const Outcome outcome = run();
    ASSERT_NE(outcome.err.find("kl is"), std::string::npos) << outcome.err;
    fingerprint_ = nlohmann::json::parse(read_checked_file(progress_ / "run.json")).get<Fingerprint>();
  }
  Outcome run() const {
    return run_pare({"run", (folder_ / "recipe.yaml").string(), "--threads", "1", "--out", output_.string()});
  }
  // `change` works on tensors and records of a part. The last block is still to be done, so the walk begins.
  void expect_refused(int64_t part,
                      const std::function<void(std::vector<OwnedTensor>&, std::vector<LayerRecord>&)>& change,
                      std::initializer_list<std::string> words) {
    {
      Parts parts(output_, fingerprint_, false);
      std::vector<OwnedTensor> tensors;
      {
        const SafetensorsFile file = parts.open_tensors(part);
        for (const auto& [name, view] : file.tensors()) {
          tensors.push_back({name, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
        }
      }
      std::vector<LayerRecord> records = *parts.committed(part);
      change(tensors, records);
      std::vector<StreamedTensor> streamed;
      for (OwnedTensor& tensor : tensors) Parts::append(std::move(tensor), streamed);
      parts.commit(part, std::move(streamed), std::move(records));
    }
    fs::remove(progress_ / "00002.json");
    const Outcome outcome = run();
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(output_));
  }

  TemporaryFolder folder_{"hostile-run"};
  fs::path output_ = folder_ / "out", progress_ = folder_ / "out.partial" / "progress";
  Fingerprint fingerprint_;
};

// Tokens would be looked up past its end.
TEST_F(HostileParts, AnEmbeddingOfFewerTokensIsRefused) {
  expect_refused(0,
                 [](std::vector<OwnedTensor>& tensors, std::vector<LayerRecord>& records) {
                   ASSERT_EQ(records.size(), 1u);
                   LayerRecord& record = records.front();
                   const auto find = [&](const std::string& name) -> const TensorView* {
                     static std::map<std::string, TensorView> views;
                     for (const OwnedTensor& tensor : tensors)
                       views[tensor.name] = {tensor.dtype, tensor.shape, tensor.data};
                     return views.contains(name) ? &views.at(name) : nullptr;
                   };
                   StoredLinear linear = unpack_linear(find, record.scheme, record.num_out, record.num_in, record.name);
                   linear.weight.num_out = record.num_out = 1;
                   linear.weight.codes_OI.resize(static_cast<size_t>(record.num_in));
                   linear.weight.scales_OG.resize(static_cast<size_t>(linear.weight.num_groups()));
                   record.sha256 = content_hash(linear);
                   tensors = pack_linear(linear, record.scheme, record.name);
                 },
                 {"dequantize: rows ", " of 1 into"});
}

TEST_F(HostileParts, ANormOfAnotherWidthIsRefused) {
  expect_refused(1,
                 [](std::vector<OwnedTensor>& tensors, std::vector<LayerRecord>&) {
                   for (OwnedTensor& tensor : tensors) {
                     if (tensor.name != "model.layers.0.input_layernorm.weight") continue;
                     tensor.shape = {1};
                     tensor.data.resize(dtype_size_bytes(tensor.dtype));
                     return;
                   }
                   FAIL() << "awq has folded nothing";
                 },
                 {"00001.json' is damaged", "start over with --fresh"});
}

TEST(HostileRun, ASurveyOfImpossibleNumbersIsRefused) {
  const TemporaryFolder folder("hostile-survey");
  const fs::path model = family("llama_gqa_untied"), ids = model / "ids.npy";
  const fs::path survey = folder / "out.partial" / "progress" / "survey";
  write_text(folder / "recipe.yaml", "model: " + model.string() + "\ncalibration: {text: " + ids.string() +
                                         "}\npasses:\n  - rtn: {}\nbudget: {bits: 4.5}\nsensitivity: {windows: 2}\n" +
                                         "evaluate:\n  - perplexity: {text: " + ids.string() +
                                         ", context: 64}\nfail_if: {kl: 1.0e-9}\n");
  const std::vector<std::string> command = {"run",   (folder / "recipe.yaml").string(), "--threads", "1",
                                            "--out", (folder / "out").string()};
  const Outcome first = run_pare(command);
  ASSERT_NE(first.err.find("kl is"), std::string::npos) << first.err;
  const std::string good = read_checked_file(survey);
  const size_t line = good.find('\n') + 1;
  const auto expect_refused = [&](const std::function<void(Json&)>& change, const std::vector<std::string>& words) {
    Json json = Json::parse(good.substr(line));
    change(json);
    write_checked_file(survey, good.substr(0, line) + json.dump());
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("start over with --fresh"), std::string::npos) << outcome.err;
  };
  for (const char* key : {"bits", "group_size", "size_bytes", "error"}) {
    expect_refused([&](Json& json) { json["groups"][0]["candidates"][0][key] = -7; }, {"survey is damaged"});
  }
  expect_refused([](Json& json) { json["groups"][0]["candidates"][0]["bits"] = 4.0e9; }, {"survey is damaged"});
  expect_refused([](Json& json) { json["groups"][0]["weights"] = int64_t{1} << 60; }, {"survey is damaged"});
  write_checked_file(survey, good);
  EXPECT_NE(run_pare(command).err.find("kl is"), std::string::npos);
}

}  // namespace
}  // namespace pare::test
