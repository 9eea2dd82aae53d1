// Recipes whose `container` is a form that no layer is stored in: GGUF files and dense weights. The oracle is a run in
// a container of the same codes, exported by `pare export`, whose own tests read what it writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/small_disk.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class WrittenForm : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(fs::path(kSourceFolder) / "calibration_data/stories260k", at("model"), fs::copy_options::recursive);
    write_text(at("model/README.md"), "---\nlicense: apache-2.0\n---\nThe source's card.\n");
    write_text(at("model/LICENSE"), "Its licence.\n");
    std::string text;
    for (int i = 0; i < 20; ++i) text += "Once upon a time there was a little girl. She had a red ball and a dog.\n";
    write_text(at("text.txt"), text);
  }
  fs::path at(const std::string& name) const { return folder_ / name; }
  std::string bytes(const std::string& name) const { return read_text_file(at(name)); }
  Json json(const std::string& name) const { return Json::parse(bytes(name)); }

  Outcome run(const std::string& out, const std::string& recipe, std::vector<std::string> options = {"--quiet"}) {
    write_text(at("r.yaml"), "model: " + at("model").string() + "\n" + recipe);
    options.insert(options.begin(), {"run", at("r.yaml").string(), "--out", at(out).string()});
    return run_pare(options);
  }
  void make(const std::string& out, const std::string& recipe) {
    const Outcome outcome = run(out, recipe);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  std::set<std::string> files(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(at(folder))) names.insert(entry.path().filename().string());
    return names;
  }
  std::string evaluation() const {
    return "evaluate:\n  - perplexity: {text: " + at("text.txt").string() +
           ", context: 16, windows: 1, reference: true}\n";
  }
  TemporaryFolder folder_{"written_form"};
};

// Rows of 172 make no blocks.
const std::string kFourBits = "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.mlp.*\"]}\n";

void expect_same_tensors(const fs::path& file, const fs::path& other) {
  const GgufFile first = GgufFile::open(file), second = GgufFile::open(other);
  ASSERT_EQ(first.tensors().size(), second.tensors().size());
  for (const auto& [name, tensor] : first.tensors()) {
    const auto& same = second.tensors().at(name);
    EXPECT_EQ(tensor.type, same.type) << name;
    EXPECT_EQ(tensor.shape, same.shape) << name;
    EXPECT_TRUE(std::ranges::equal(tensor.data, same.data)) << name;
  }
}

// The container gptq has float16 scales, as blocks have.
TEST_F(WrittenForm, AGgufFileIsThatOfTheExport) {
  make("codes", "container: gptq\n" + kFourBits);
  for (const std::string type : {"q4_0", "gguf", "f16"}) {
    SCOPED_TRACE(type);
    const std::string file = at(type + ".gguf").string();
    ASSERT_EQ(run_pare({"export", at("codes").string(), file, "--format", type}).status, 0);
    make(type, "container: " + type + "\n" + kFourBits);
    expect_same_tensors(at(type) / (type + ".gguf"), file);
    EXPECT_EQ(files(type), (std::set<std::string>{type + ".gguf", "LICENSE", "README.md", "README.source.md",
                                                  "pare.json", "report.html", "report.json"}));
    const GgufFile made = GgufFile::open(at(type) / (type + ".gguf"));
    EXPECT_EQ(made.text("general.name"), type);
    EXPECT_EQ(made.text("general.license"), "apache-2.0");
    EXPECT_FALSE(fs::exists(at(type + ".partial")));
  }
  const Json manifest = json("q4_0/pare.json");
  EXPECT_EQ(manifest.at("written_as").at("format"), "q4_0");
  EXPECT_EQ(manifest.at("written_as").at("architecture"), "llama");
  EXPECT_EQ(manifest.at("engines").size(), 2u);
  EXPECT_EQ(manifest.at("sizes").at("output_bytes"), fs::file_size(at("q4_0/q4_0.gguf")));
  EXPECT_NE(bytes("q4_0/README.md").find("llama-cli"), std::string::npos);
  EXPECT_NE(bytes("q4_0/README.md").find("license: apache-2.0"), std::string::npos);
}

// Blocks that the pass gguf makes are those of its own container, exported.
TEST_F(WrittenForm, BlocksOfThePassAreCopied) {
  const std::string passes = "calibration: {text: " + at("text.txt").string() +
                             ", samples: 1, tokens: 16}\npasses:\n  - gguf: {type: q4_1, fit: false}\n    layers: "
                             "{exclude: [\"*.down_proj\"]}\n";
  make("blocks", passes);
  ASSERT_EQ(run_pare({"export", at("blocks").string(), at("b.gguf").string(), "--format", "q4_1"}).status, 0);
  make("file", "container: q4_1\n" + passes);
  expect_same_tensors(at("file/file.gguf"), at("b.gguf"));
}

TEST_F(WrittenForm, AFolderWithAFileIsAModelForEveryCommand) {
  make("out",
       "container: q8_0\npasses:\n  - rtn: {bits: 8, group_size: 32}\n    layers: {exclude: [\"*.down_proj\"]}\n" +
           evaluation());
  const std::string folder = at("out").string(), file = at("out/out.gguf").string();
  EXPECT_EQ(run_pare({"verify", folder}).status, 0);
  EXPECT_EQ(run_pare({"doctor", folder}).status, 0);
  EXPECT_EQ(run_pare({"card", folder}).status, 0);
  EXPECT_EQ(run_pare({"report", folder}).status, 0);
  EXPECT_EQ(run_pare({"inspect", folder, "--json"}).out, run_pare({"inspect", file, "--json"}).out);
  const Outcome said = run_pare({"generate", folder, "--prompt", "Once", "--max-tokens", "8", "--json"});
  ASSERT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(
      Json::parse(said.out).at("text"),
      Json::parse(run_pare({"generate", file, "--prompt", "Once", "--max-tokens", "8", "--json"}).out).at("text"));
  // The run measured beside its source: losses round a little differently without.
  const auto measured = [&](const std::string& model) {
    const Outcome outcome = run_pare({"eval", model, "--text", at("text.txt").string(), "--context", "16", "--windows",
                                      "1", "--reference", at("model").string(), "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out).at("perplexity") : Json();
  };
  EXPECT_EQ(measured(folder), json("out/report.json").at("perplexity").at(0).at("perplexity"));
  EXPECT_EQ(measured(file), measured(folder));
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-1, std::ios::end);
  damaged.put('\x55');
  damaged.close();
  EXPECT_EQ(run_pare({"verify", folder}).status, 1);
  const Outcome refused = run_pare({"eval", folder, "--text", at("text.txt").string(), "--windows", "1"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("damaged"), std::string::npos) << refused.err;
}

// An evaluation decodes the file at the end of a run, which knows before its work whether there is room.
TEST_F(WrittenForm, RoomToEvaluateTheFileIsLookedForBeforeAnyWork) {
  fs::create_directory(at("small"));
  const std::optional<int> status = on_a_small_disk(at("small"), "64k", [&] {
    ::setenv("TMPDIR", at("small").c_str(), 1);
    const Outcome refused = run("out", "container: q4_0\n" + kFourBits + evaluation(), {});
    const bool is_told = refused.err.find("set TMPDIR to a folder with more") != std::string::npos;
    const bool has_begun = refused.err.find("blocks") != std::string::npos || fs::exists(at("out.partial/progress"));
    if (refused.status == 1 && is_told && !has_begun && !fs::exists(at("out"))) return 0;
    std::fprintf(stderr, "status %d: %s\n", refused.status, refused.err.c_str());
    return 1;
  });
  if (!status) GTEST_SKIP() << "a test may mount nothing here";
  EXPECT_EQ(*status, 0);
}

TEST_F(WrittenForm, DenseWeightsAreThoseOfTheExport) {
  make("codes", kFourBits);
  ASSERT_EQ(run_pare({"export", at("codes").string(), at("decoded").string(), "--format", "dense"}).status, 0);
  make("dense", "container: dense\n" + kFourBits);
  EXPECT_EQ(bytes("dense/model.safetensors"), bytes("decoded/model.safetensors"));
  EXPECT_EQ(bytes("dense/config.json"), bytes("decoded/config.json"));
  EXPECT_EQ(run_pare({"verify", at("dense").string()}).status, 0);
  const Json manifest = json("dense/pare.json");
  EXPECT_EQ(manifest.at("written_as").at("format"), "dense");
  for (const Json& engine : manifest.at("engines")) EXPECT_EQ(engine.at("loads"), true) << engine;
  // Without codes nothing is changed on the way.
  make("pruned", "container: dense\npasses:\n  - magnitude: {resolve: 0}\n");
  make("plain", "passes:\n  - magnitude: {resolve: 0}\n");
  EXPECT_EQ(bytes("pruned/model.safetensors"), bytes("plain/model.safetensors"));
}

// They are names for what compressed-tensors holds already.
TEST_F(WrittenForm, Nvfp4AndMxfp4AreCompressedTensors) {
  for (const std::string code : {"nvfp4", "mxfp4"}) {
    const std::string passes = "passes:\n  - rtn: {code: " + code + "}\n    layers: {exclude: [\"*.mlp.*\"]}\n";
    make(code, "container: " + code + "\n" + passes);
    make(code + "-plain", passes);
    EXPECT_EQ(bytes(code + "/model.safetensors"), bytes(code + "-plain/model.safetensors"));
    EXPECT_EQ(bytes(code + "/config.json"), bytes(code + "-plain/config.json"));
  }
}

TEST_F(WrittenForm, ADryRunSaysWhoLoadsTheFileAndWritesNothing) {
  const Outcome plan = run("out", "container: q4_0\n" + kFourBits, {"--dry-run"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.out.find("engine: llama.cpp"), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find("vLLM"), std::string::npos) << plan.out;
  EXPECT_FALSE(fs::exists(at("out")));
  EXPECT_FALSE(fs::exists(at("out.partial")));
  // The tensors of the file are as many bytes as the plan says: what is rounded beside the layers is known.
  make("out", "container: q4_0\n" + kFourBits);
  int64_t num_bytes = 0;
  const Json made = json("out/pare.json");
  for (const Json& tensor : made.at("written_as").at("tensors")) num_bytes += tensor.at("bytes").get<int64_t>();
  const Outcome planned = run("other", "container: q4_0\n" + kFourBits, {"--dry-run", "--json"});
  EXPECT_EQ(Json::parse(planned.out).at("predicted_output_bytes").get<int64_t>(), num_bytes);
}

// Evaluations read what the form holds, and not the codes that the passes have made.
TEST_F(WrittenForm, APlanCountsTheWeightsThatEvaluationsRead) {
  const auto evaluated = [&](const std::string& container) {
    const Outcome plan = run("out", container + kFourBits + evaluation(), {"--dry-run", "--json"});
    EXPECT_EQ(plan.status, 0) << plan.err;
    std::map<std::string, int64_t> memory;
    const Json said = Json::parse(plan.out);
    for (const Json& stage : said.at("stages")) memory[stage.at("stage")] = stage.at("memory_bytes").get<int64_t>();
    return memory.at("evaluate") - memory.at("write and verify");  // which counts the program alone
  };
  int64_t source = 0;
  const Checkpoint checkpoint = Checkpoint::open(at("model"));
  for (const std::string& name : checkpoint.tensor_names()) source += checkpoint.layout(name).num_bytes();
  EXPECT_GE(evaluated("container: dense\n"), 2 * source);  // the result, and the source beside it
  EXPECT_LT(evaluated(""), evaluated("container: dense\n"));
  EXPECT_EQ(evaluated("container: q4_0\n"), evaluated("container: f16\n"));  // 16 bits, as both are decoded
}

// Blocks that are finished serve the same recipe again, and no recipe of another container.
TEST_F(WrittenForm, AFailedRunGoesOnInTheSameContainerAlone) {
  const std::string recipe = kFourBits + evaluation();
  ASSERT_EQ(run("out", "container: q4_0\n" + recipe + "fail_if: {perplexity_ratio: 0.001}\n").status, 1);
  EXPECT_TRUE(fs::exists(at("out.partial/artifact/out.gguf")));
  const Outcome other = run("out", "container: gguf\n" + recipe);
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("container"), std::string::npos) << other.err;
  const Outcome again = run("out", "container: q4_0\n" + recipe, {"--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out).at("resumed_blocks").get<int>(), 5);
  make("anew", "container: q4_0\n" + recipe);
  expect_same_tensors(at("out/out.gguf"), at("anew/anew.gguf"));
}

// Of several phases the last one writes the file.
TEST_F(WrittenForm, TrainedCodesBecomeAFile) {
  make("out", "container: q4_0\n" + kFourBits + "  - distill: {text: " + at("text.txt").string() +
                  ", tokens: 16, total_tokens: 32, batch: 1, train: {weights: false}, validation_windows: 1}\n");
  const Json manifest = json("out/pare.json");
  EXPECT_TRUE(manifest.contains("training"));
  int64_t num_kept = 0;
  for (const Json& tensor : manifest.at("written_as").at("tensors")) num_kept += tensor.at("keeps_codes") == true;
  EXPECT_EQ(num_kept, 20);  // of 5 blocks
  EXPECT_EQ(run_pare({"verify", at("out").string()}).status, 0);
}

TEST_F(WrittenForm, WhatTheFormDoesNotHoldIsRefusedBeforeWork) {
  const auto expect_refused = [&](const std::string& recipe, std::initializer_list<std::string> words) {
    const Outcome outcome = run("refused", recipe);
    EXPECT_EQ(outcome.status, 1) << recipe;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(at("refused")));
    EXPECT_FALSE(fs::exists(at("refused.partial")));
  };
  // A layer's width is known to the plan alone.
  expect_refused("container: q8_0\npasses:\n  - rtn: {bits: 8, group_size: -1}\n", {"down_proj", "172", "exclude"});
  expect_refused("container: q4_0\npasses:\n  - rtn: {bits: 8}\n", {"r.yaml:2", "'q4_0' and rtn", "change 'bits'"});
}

}  // namespace
}  // namespace pare::test
