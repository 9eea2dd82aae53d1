// `pare doctor` as users run it, on what `pare run` and `pare export` make of a real model.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class DoctorOfExports : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return folder_ / name; }
  void make(const std::string& out, const std::string& passes) {
    write_text(at("r.yaml"),
               "model: " + std::string(kSourceFolder) + "/calibration_data/stories260k\npasses:\n" + passes);
    const Outcome run = run_pare({"run", at("r.yaml").string(), "--out", at(out).string(), "--quiet"});
    ASSERT_EQ(run.status, 0) << run.err;
  }
  // Runs doctor with --json, and returns what it prints; with another exit status the test fails.
  Json doctor(const std::string& model, int status, std::vector<std::string> options = {}) {
    std::vector<std::string> words = {"doctor", at(model).string(), "--json"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = run_pare(words);
    EXPECT_EQ(outcome.status, status) << outcome.err << outcome.out;
    return Json::parse(outcome.out, nullptr, false);
  }
  static std::map<std::string, std::vector<float>> layers(const fs::path& directory) {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    std::map<std::string, std::vector<float>> result;
    for (const LinearDescription& linear : stored_linears(checkpoint)) {
      result[linear.name].resize(static_cast<size_t>(linear.num_out * linear.num_in));
      weight_rows(checkpoint.linear(linear), 0, linear.num_out, result[linear.name]);
    }
    return result;
  }
  TemporaryFolder folder_{"doctor"};
};

TEST_F(DoctorOfExports, EveryFormatIsHealthyAndTheOtherVersionIsMended) {
  make("ct", "  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.mlp.*\"]}\n");
  for (const char* const format : {"gptq", "gptq-v2", "awq-gemm", "bitsandbytes", "nvfp4", "mxfp4", "dense"}) {
    const Outcome outcome = run_pare({"export", at("ct").string(), at(format).string(), "--format", format, "--quiet"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json result = doctor(format, 0);
    EXPECT_EQ(result.at("findings"), Json::array()) << format;
    EXPECT_EQ(result.at("healthy"), true);
  }
  EXPECT_EQ(doctor("ct", 0).at("findings"), Json::array());
  run_pare({"export", at("ct").string(), at("m.gguf").string(), "--format", "gguf", "--quiet"});
  EXPECT_EQ(doctor("m.gguf", 0).at("kind"), "gguf");

  Json config = Json::parse(read_text_file(at("gptq-v2") / "config.json"));
  const std::string whole = config.dump();
  config["quantization_config"]["checkpoint_format"] = "gptq";
  config["quantization_config"]["format"] = "gptq";
  write_text(at("gptq-v2") / "config.json", config.dump());
  const Json ill = doctor("gptq-v2", 1);
  EXPECT_EQ(ill.at("healthy"), false);
  ASSERT_EQ(ill.at("findings").size(), 1u) << ill;
  EXPECT_EQ(ill["findings"][0].at("name"), "zeros-version");
  EXPECT_EQ(ill["findings"][0].at("concerned").size(), 20u);
  const Json mended = doctor("gptq-v2", 0, {"--repair", at("mended").string()});
  EXPECT_EQ(mended.at("repaired").at("healthy"), true);
  EXPECT_EQ(layers(at("mended")), layers(at("gptq")));
  EXPECT_TRUE(fs::exists(at("mended") / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(at("mended") / "pare.json"));
  EXPECT_EQ(run_pare({"verify", at("mended").string()}).status, 0);
  EXPECT_FALSE(fs::exists(at("mended.partial")));

  // A second time the place is taken; within the model there is none; and a healthy model needs no copy.
  for (const fs::path& place : {at("mended"), at("gptq-v2") / "inside"}) {
    const Outcome refused = run_pare({"doctor", at("gptq-v2").string(), "--repair", place.string()});
    EXPECT_EQ(refused.status, 1);
    EXPECT_TRUE(refused.out.empty()) << refused.out;
  }
  EXPECT_EQ(doctor("gptq", 0, {"--repair", at("unused").string()}).at("repaired"), nullptr);
  EXPECT_FALSE(fs::exists(at("unused")));
  EXPECT_EQ(run_pare({"doctor", at("nothing").string()}).status, 1);
  EXPECT_EQ(run_pare({"doctor"}).status, 2);
  EXPECT_EQ(run_pare({"doctor", at("gptq").string(), "--mend"}).status, 2);
}

TEST_F(DoctorOfExports, TheTextNamesLayersNumbersAndWhatToDo) {
  make("ct", "  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.mlp.*\"]}\n");
  Json config = Json::parse(read_text_file(at("ct") / "config.json"));
  config["quantization_config"]["ignore"] = {"lm_head"};
  write_text(at("ct") / "config.json", config.dump());
  const Outcome outcome = run_pare({"doctor", at("ct").string()});
  EXPECT_EQ(outcome.status, 1);
  for (const char* const part :
       {"ill: 1 certain, 0 likely", "certain: list-lacks-dense", "15 layers", "model.layers.0.mlp.down_proj",
        "layers_with_codes 20", "to do     list them", "--repair  list the layers without codes"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << '\n' << outcome.out;
  }
}

}  // namespace
}  // namespace pare::test
