// Checks what a run reports beside its result: events, the errors of its rows, the text that a sensitivity was measured
// on. Also checks which recipes it accepts.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Sets one element of a float32 tensor.
void set_element(const fs::path& file, const std::string& tensor, size_t index, float value) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_size = 0;
  stream.read(reinterpret_cast<char*>(&header_size), sizeof(header_size));
  std::string header(header_size, ' ');
  stream.read(header.data(), static_cast<std::streamsize>(header_size));
  const Json entry = Json::parse(header).at(tensor);
  ASSERT_EQ(entry.at("dtype"), "F32");
  stream.seekp(static_cast<std::streamoff>(8 + header_size + entry.at("data_offsets")[0].get<size_t>() + index * 4));
  stream.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

class RunEvents : public testing::Test {
 protected:
  std::string ids() const { return (family("llama_gqa_untied") / "ids.npy").string(); }
  Outcome run(const std::string& rest, const std::string& out = "out", const std::vector<std::string>& more = {},
              const std::string& calibration = "") {
    write_text(folder_ / "r.yaml",
               "model: " + model_.string() + "\ncalibration: {text: " + ids() + calibration + "}\n" + rest);
    std::vector<std::string> words = {"run", (folder_ / "r.yaml").string(), "--out", (folder_ / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_pare(words);
  }
  Json manifest(const std::string& out = "out") const {
    return Json::parse(read_text_file(folder_ / out / "pare.json"));
  }
  // Returns whether the layer with that end of its name has an event with these words.
  bool has_event(const Json& manifest, const std::string& layer_end, const std::string& words) const {
    for (const Json& layer : manifest.at("layers")) {
      if (!layer.at("name").get<std::string>().ends_with(layer_end)) continue;
      for (const Json& event : layer.at("events")) {
        if (event.get<std::string>().find(words) != std::string::npos) return true;
      }
    }
    return false;
  }
  fs::path model_ = family("llama_gqa_untied");
  TemporaryFolder folder_{"run_events"};
};

TEST_F(RunEvents, DeadColumnsAreToldByEveryPassThatSeesTheInput) {
  model_ = folder_ / "model";
  fs::copy(family("llama_gqa_untied"), model_, fs::copy_options::recursive);
  set_element(model_ / "model.safetensors", "model.layers.0.input_layernorm.weight", 3, 0.0f);
  int number = 0;
  for (const char* passes : {"  - rtn: {bits: 4, group_size: 32}\n", "  - gptq: {bits: 4, group_size: 32}\n",
                             "  - awq: {}\n  - rtn: {bits: 4, group_size: 32}\n",
                             "  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n",
                             "  - llm_int8: {}\n", "  - fp8: {activations: {range: static}}\n"}) {
    const std::string out = "out" + std::to_string(number++);
    const Outcome outcome = run(std::string("passes:\n") + passes, out);
    ASSERT_EQ(outcome.status, 0) << passes << outcome.err;
    EXPECT_TRUE(has_event(manifest(out), "layers.0.self_attn.k_proj", "1 dead column")) << passes;
    EXPECT_FALSE(has_event(manifest(out), "layers.1.self_attn.k_proj", "dead column")) << passes;
  }
}

// 1e-25 squared is no float32, and 2e-20 squared is one with few of its digits. SmoothQuant and AWQ divide such inputs
// to ordinary ones, but their squares were lost before.
TEST_F(RunEvents, InputsTooSmallForAHessianAreNotSaidToBeDead) {
  model_ = folder_ / "model";
  fs::copy(family("llama_gqa_untied"), model_, fs::copy_options::recursive);
  for (const auto& [channel, gain] : {std::pair{size_t{3}, 1e-25f}, {size_t{5}, 2e-20f}}) {
    set_element(model_ / "model.safetensors", "model.layers.0.input_layernorm.weight", channel, gain);
  }
  int number = 0;
  for (const char* passes :
       {"  - rtn: {bits: 4, group_size: 32}\n", "  - gptq: {bits: 4, group_size: 32}\n",
        "  - sparsegpt: {pattern: '2:4', fit: false}\n", "  - sparsegpt: {pattern: '2:4', mask: alps}\n",
        "  - wanda: {resolve: 0, fit: false}\n", "  - awq: {}\n  - rtn: {bits: 4, group_size: 32}\n",
        "  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n",
        "  - smoothquant: {}\n  - gptq: {bits: 8, group_size: -1, activations: int8}\n", "  - llm_int8: {}\n",
        "  - fp8: {activations: {range: static}}\n"}) {
    const std::string out = "out" + std::to_string(number++);
    const Outcome outcome = run(std::string("passes:\n") + passes, out);
    ASSERT_EQ(outcome.status, 0) << passes << outcome.err;
    EXPECT_TRUE(has_event(manifest(out), "layers.0.self_attn.q_proj", "2 columns whose inputs are too small"))
        << passes;
    EXPECT_FALSE(has_event(manifest(out), "layers.0.self_attn.q_proj", "always 0")) << passes;
    EXPECT_FALSE(has_event(manifest(out), "layers.1.self_attn.q_proj", "too small")) << passes;
  }
}

TEST_F(RunEvents, TooFewTokensForAHessianAreToldOfDenseLayers) {
  ASSERT_EQ(run("passes:\n  - rtn: {bits: 4, group_size: 32, scales: hessian}\n", "out", {}, ", samples: 1").status, 0);
  const Json layers = manifest();
  EXPECT_TRUE(has_event(layers, "down_proj", "fewer than its 96 inputs"));
  ASSERT_EQ(run("passes:\n  - rtn: {bits: 4, group_size: 32, scales: minmax}\n", "plain", {}, ", samples: 1").status,
            0);
  EXPECT_FALSE(has_event(manifest("plain"), "down_proj", "fewer")) << "no Hessian was used";
}

TEST_F(RunEvents, CalibrationThatTheDataCannotGiveIsToldAndStrictRefusesIt) {
  const std::string passes = "passes:\n  - rtn: {bits: 4, group_size: 32}\n";
  const Outcome outcome = run(passes, "out", {}, ", samples: 1000, tokens: 7");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string events = manifest().at("events").dump();
  EXPECT_NE(events.find("fewer than the 1000 samples asked for"), std::string::npos) << events;
  EXPECT_NE(events.find("not the 7 asked for"), std::string::npos) << events;
  const Outcome strict = run(passes + "strict: true\n", "strict", {}, ", samples: 1000");
  EXPECT_EQ(strict.status, 1);
  EXPECT_NE(strict.err.find("1000 samples"), std::string::npos) << strict.err;
  EXPECT_FALSE(fs::exists(folder_ / "strict.partial"));
}

// This holds too where nothing is calibrated in the walk.
TEST_F(RunEvents, StudentsAndStatisticsTellWhatTheirTextsDoNotHave) {
  const std::string asked = ", samples: 1000, tokens: 7";
  const Outcome student = run("student: {layers: 1, choose: block_error}\n", "student", {"--json"}, asked);
  write_text(folder_ / "c.yaml", "model: " + model_.string() + "\ncalibration: {text: " + ids() + asked + "}\n");
  const Outcome statistics =
      run_pare({"calibrate", (folder_ / "c.yaml").string(), (folder_ / "statistics.h5").string(), "--json"});
  for (const Outcome& outcome : {student, statistics}) {
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::string events = Json::parse(outcome.out).at("events").dump();
    EXPECT_NE(events.find("fewer than the 1000 samples asked for"), std::string::npos) << events;
    EXPECT_NE(events.find("not the 7 asked for"), std::string::npos) << events;
  }
}

TEST_F(RunEvents, RowsSayWhichErrorTheyShow) {
  EXPECT_NE(run("passes:\n  - gptq: {bits: 4, group_size: 32}\n", "a").err.find("error (H) "), std::string::npos);
  EXPECT_NE(run("passes:\n  - rtn: {bits: 4, group_size: 32}\n", "b").err.find("error (diag(H)) "), std::string::npos);
  EXPECT_NE(run("passes:\n  - rtn: {bits: 4, group_size: 32, scales: minmax}\n", "c").err.find("error (weights) "),
            std::string::npos);
  EXPECT_NE(run("passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n", "d").err.find("error (output) "),
            std::string::npos);
}

TEST_F(RunEvents, TheOrderOfColumnsIsRecordedWithoutGroupsToo) {
  ASSERT_EQ(run("passes:\n  - gptq: {bits: 4, group_size: -1}\n", "ordered").status, 0);
  ASSERT_EQ(run("passes:\n  - gptq: {bits: 4, group_size: -1, act_order: none}\n", "plain").status, 0);
  EXPECT_EQ(manifest("ordered").at("layers")[0].at("act_order"), "static");
  EXPECT_EQ(manifest("plain").at("layers")[0].at("act_order"), "none");
  // compressed-tensors refuses an order without groups, so its configuration has none.
  const Json config = Json::parse(read_text_file(folder_ / "ordered" / "config.json"));
  EXPECT_EQ(config.dump().find("\"actorder\":\"static\""), std::string::npos);
}

// The same command would give the same result.
TEST_F(RunEvents, AfterABrokenGateNothingSaysToGoOn) {
  const Outcome outcome =
      run("passes:\n  - rtn: {bits: 2, group_size: 32}\nevaluate:\n  - perplexity: {text: " + ids() +
          "}\nfail_if: {kl: 1e-6}\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("fail_if"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("goes on from there"), std::string::npos) << outcome.err;
  EXPECT_TRUE(fs::exists(folder_ / "out.partial" / "artifact" / "pare.json"));
}

// If every column is an outlier, LLM.int8 leaves all weights as they are, and rounding them costs nothing.
TEST_F(RunEvents, SensitivityOfStaticLlmInt8KeepsItsOutlierColumns) {
  const Outcome outcome =
      run("passes:\n  - llm_int8: {outliers: static, threshold: 1e-6}\nsensitivity: {groups: "
          "[\"*\"]}\n",
          "out", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json groups = Json::parse(outcome.out).at("sensitivity").at("groups");
  int num_measured = 0;
  for (const Json& group : groups) {
    if (group.at("part") != "weights") continue;
    ++num_measured;
    EXPECT_EQ(group.at("kl").at("value").get<double>(), 0.0) << group.dump();
  }
  EXPECT_EQ(num_measured, 1);
}

// It takes the protocol's context as `pare eval` does, or the model's where that is shorter.
TEST_F(RunEvents, PerplexityWithoutAContextTakesTheSmaller) {
  const fs::path source = fs::path(kSourceFolder) / "calibration_data";
  model_ = source / "stories260k";
  write_text(folder_ / "r.yaml", "model: " + model_.string() +
                                     "\npasses:\n  - rtn: {bits: 8, group_size: -1}\nevaluate:\n"
                                     "  - perplexity: {text: " +
                                     (source / "stories.txt").string() + ", windows: 2}\n");
  const Outcome outcome =
      run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / "out").string(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out).at("perplexity")[0].at("context"), 512);
}

// --help says that --model takes a .gguf. The result must be that of the imported directory.
TEST_F(RunEvents, AGgufIsAModelToo) {
  const fs::path gguf = fs::path(kSourceFolder) / "tests" / "golden" / "gguf" / "llama_gqa_untied.gguf";
  ASSERT_EQ(run_pare({"import", gguf.string(), (folder_ / "imported").string()}).status, 0);
  const std::string passes = "passes:\n  - gptq: {bits: 4, group_size: 32}\n";
  const Outcome from_file = run(passes, "from_file", {"--model", gguf.string()});
  ASSERT_EQ(from_file.status, 0) << from_file.err;
  ASSERT_EQ(run(passes, "from_folder", {"--model", (folder_ / "imported").string()}).status, 0);
  EXPECT_EQ(read_text_file(folder_ / "from_file" / "model.safetensors"),
            read_text_file(folder_ / "from_folder" / "model.safetensors"));
}

}  // namespace
}  // namespace pare::test
