// Who loads a model, as `pare inspect` reads it from the files. The oracle is pare.json, whose verdicts follow from the
// plan of the run or export that made them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/export/engine_verdicts.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class InspectedVerdicts : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return folder_ / name; }
  static Json engines_of(const fs::path& path) {
    const Outcome outcome = run_pare({"inspect", path.string(), "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out).value("engines", Json()) : Json();
  }
  void expect_those_of_manifest(const std::string& name) {
    SCOPED_TRACE(name);
    const Json manifest = Json::parse(read_text_file(at(name) / "pare.json"));
    EXPECT_EQ(engines_of(at(name)), manifest.at("engines"));
  }
  void make(const fs::path& model, const std::string& out, const std::string& recipe) {
    write_text(at("r.yaml"), "model: " + model.string() + "\n" + recipe);
    const Outcome run = run_pare({"run", at("r.yaml").string(), "--out", at(out).string(), "--quiet"});
    ASSERT_EQ(run.status, 0) << run.err;
    expect_those_of_manifest(out);
  }
  void exported(const std::string& from, const std::string& to, const std::string& format) {
    const Outcome outcome = run_pare({"export", at(from).string(), at(to).string(), "--format", format});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    if (fs::is_directory(at(to))) expect_those_of_manifest(to);
  }
  static constexpr size_t kVllm = 2, kConverter = 3;
  static void verdict(const fs::path& model, size_t engine, bool loads, const std::string& reason) {
    SCOPED_TRACE(model.string() + " " + std::to_string(engine));
    const Json engines = engines_of(model);
    ASSERT_EQ(engines.size(), 4u);
    EXPECT_EQ(engines[engine].at("loads"), loads) << engines[engine];
    EXPECT_NE(engines[engine].at("reasons").dump().find(reason), std::string::npos) << engines[engine];
  }
  TemporaryFolder folder_{"inspected_verdicts"};
};

TEST_F(InspectedVerdicts, AreThoseOfTheRun) {
  const fs::path llama = family("llama_gqa_untied");
  make(llama, "four", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  make(llama, "three", "passes:\n  - rtn: {bits: 3, group_size: 32}\n    layers: {exclude: [\"*.k_proj\"]}\n");
  make(llama, "mixed",
       "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {override: {\"*.down_proj\": {bits: 8}}}\n");
  make(llama, "inputs", "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  make(llama, "fp8", "passes:\n  - fp8: {}\n");
  make(llama, "nvfp4", "passes:\n  - rtn: {code: nvfp4}\n");
  make(llama, "head", "passes:\n  - rtn: {bits: 4, group_size: 32}\nhead: {bits: 8}\n");
  make(llama, "gptq", "container: gptq\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
  make(llama, "pruned", "passes:\n  - magnitude: {resolve: 0}\n");
  make(llama, "packed", "passes:\n  - magnitude: {resolve: 0, storage: packed}\n");
  make(family("mixtral_experts"), "experts", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  make(family("mixtral_experts"), "router",
       "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.experts.*\"]}\n");
  exported("four", "four-awq", "awq-gemm");
  exported("four", "four-dense", "dense");
  exported("mixed", "mixed-gptq", "gptq");
  exported("experts", "experts-gptq", "gptq");
  const std::string text = run_pare({"inspect", at("head").string()}).out;
  EXPECT_NE(text.find("engine            vLLM 0.33: does not load it: a quantized embedding"), std::string::npos)
      << text;
}

// FP8 with one scale per tensor, as published in the container fp8. Its tensors have two sets of names, of which vLLM
// and llama.cpp's converter read one each. Expected is what their sources say: vLLM 0.33, fp8.py and mistral3.py;
// conversion/base.py, dequant_model.
TEST_F(InspectedVerdicts, OfFp8WithOneScalePerTensorFollowItsNames) {
  const auto published = [&](const std::string& name, const std::string& range, bool is_early,
                             const fs::path& model = family("mixtral_experts")) {
    const std::string calibration = range == "static" ? "calibration: {text: " + at("ids.npy").string() + "}\n" : "";
    write_npy(at("ids.npy"), TokenWindows{2, 4, {3, 4, 5, 6, 7, 8, 9, 10}});
    make(model, name, calibration + "passes:\n  - fp8: {per_tensor: true, activations: {range: " + range + "}}\n");
    for (const char* file : {"pare.json", "report.json", "report.html"}) fs::remove(at(name) / file);
    Json config = Json::parse(read_text_file(at(name) / "config.json"));
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"activation_scheme", range == "static" ? "static" : "dynamic"}};
    write_text(at(name) / "config.json", config.dump());
    const fs::path weights = at(name) / "model.safetensors", renamed = at("renamed.safetensors");
    const SafetensorsFile file = SafetensorsFile::open(weights);
    std::vector<NamedTensor> tensors;
    for (const auto& [stored, view] : file.tensors()) {
      std::string tensor = stored;
      const auto rename = [&](const std::string& from, const std::string& to) {
        if (!is_early && tensor.ends_with(from)) tensor.replace(tensor.size() - from.size(), from.size(), to);
      };
      rename(".weight_scale", ".weight_scale_inv");
      rename(".input_scale", ".activation_scale");
      tensors.push_back({tensor, view.dtype, view.shape, view.data});
    }
    write_safetensors(renamed, tensors);
    fs::rename(renamed, weights);
    return at(name);
  };
  const fs::path early = published("early", "tensor", true), late = published("late", "tensor", false);
  const fs::path ranges = published("ranges", "static", true);
  verdict(early, kVllm, true, "one range for all tokens of a batch");
  verdict(early, kVllm, true, "gate and up of an expert are rounded again");
  verdict(early, kConverter, false, "found weight_scale or input_scale");
  verdict(late, kVllm, false, "found weight_scale_inv or activation_scale");
  verdict(late, kConverter, true, "only weights are read");
  verdict(ranges, kVllm, true, "all experts of a block get the largest");
  verdict(ranges, kConverter, false, "found weight_scale or input_scale");
  // vLLM's class for Mistral 3 renames them.
  const fs::path whole = fs::path(kSourceFolder) / "tests/golden/wholes/mistral3";
  verdict(published("mistral3", "tensor", false, whole), kVllm, true, "rounded again");
}

// FP8 with scales of blocks, as most are published. vLLM 0.33 fuses q, k, v and gate, up, also of experts, and puts
// their scales one after the other: fp8_utils.py, validate_fp8_block_shape; linear.py, adjust_block_scale_shard.
TEST_F(InspectedVerdicts, OfFp8BlocksFollowTheRowsOfFusedLayers) {
  const fs::path golden = fs::path(kSourceFolder) / "tests/golden/fp8";
  // 4 heads and 2 of keys of 32 channels, and 256 rows of gate and up, in blocks of 128.
  verdict(golden / "qwen3", kVllm, false, "128 rows do not divide the 64 of k_proj");
  verdict(golden / "qwen3", kVllm, false, "puts their scales in wrong places");
  verdict(golden / "qwen3", kConverter, true, "only weights are read");
  verdict(golden / "qwen3_compressed_tensors", kVllm, false, "it refuses them");
  verdict(golden / "qwen3_moe_stacks", kVllm, true, "compute capability 8.9");  // blocks of 64 rows
  verdict(golden / "deepseek_v3", kVllm, false, "128 rows do not divide the 24 of q_a_proj");
  verdict(golden / "deepseek_v3", kVllm, false, "16 of gate_proj, which it fuses with others: it refuses them");
  // Of the last of fused layers a block may be a part: kv_a_proj_with_mqa has 30 rows.
  const ModelDescription deepseek = Checkpoint::open(golden / "deepseek_v3").description();
  PackScheme scheme = Checkpoint::open(golden / "deepseek_v3").stored_scheme(deepseek.blocks[0].o).value();
  scheme.block.num_rows = 24;
  JudgedModel judged;
  for (const BlockDescription& block : deepseek.blocks) {
    judged.blocks.emplace_back();
    for (const Stage stage : block_stages(block)) {
      for (const LinearDescription& linear : stage_layers(block, stage)) {
        judged.blocks.back().push_back({linear, stage, scheme});
        if (stage.expert != Stage::kNoExpert) judged.blocks.back().back().scheme.reset();
      }
    }
  }
  EXPECT_TRUE(judge_engines(judged, deepseek)[kVllm].loads);
}

// The layer whose blocks do not fit need not be the first that is fused, which may have been left as it was.
TEST_F(InspectedVerdicts, OfFp8BlocksBehindALayerThatIsPlain) {
  for (const char* name : {"qwen3", "qwen3_compressed_tensors"}) {
    const Checkpoint checkpoint = Checkpoint::open(fs::path(kSourceFolder) / "tests/golden/fp8" / name);
    JudgedModel judged;
    for (const BlockDescription& block : checkpoint.description().blocks) {
      judged.blocks.emplace_back();
      for (const Stage stage : block_stages(block)) {
        for (const LinearDescription& linear : stage_layers(block, stage)) {
          judged.blocks.back().push_back({linear, stage, checkpoint.stored_scheme(linear)});
          if (linear.name.ends_with("q_proj")) judged.blocks.back().back().scheme.reset();
        }
      }
    }
    const EngineVerdict verdict = judge_engines(judged, checkpoint.description())[kVllm];
    EXPECT_FALSE(verdict.loads) << name;
    EXPECT_NE(Json(verdict.reasons).dump().find("128 rows do not divide the 64 of k_proj"), std::string::npos)
        << Json(verdict.reasons);
  }
}

TEST_F(InspectedVerdicts, OfFilesNameLlamaCppAndOfOthersNothing) {
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data/stories260k";
  make(stories, "file",
       "container: q8_0\npasses:\n  - rtn: {bits: 8, group_size: 32}\n    layers: {exclude: "
       "[\"*.down_proj\"]}\n");
  const Json engines = engines_of(at("file/file.gguf"));
  ASSERT_EQ(engines.size(), 2u);
  EXPECT_EQ(engines[1].at("engine"), "llama.cpp (commit 0c1e57098, 2026)");
  EXPECT_EQ(engines[1].at("loads"), true);
  // Files that pare itself does not read are still described.
  std::string bytes = read_text_file(at("file/file.gguf"));
  for (size_t i = bytes.find("llama"); i != std::string::npos && i < 2000; i = bytes.find("llama", i + 1)) {
    bytes.replace(i, 5, "lxama");
  }
  write_text(at("other.gguf"), bytes);
  const Json other = engines_of(at("other.gguf"));
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(other[0].at("engine"), "pare");
  EXPECT_EQ(other[0].at("loads"), false);
  // AutoRound's packing of AWQ is read by AutoRound's package, and not as files of AWQ.
  EXPECT_EQ(engines_of(fs::path(kSourceFolder) / "tests/golden/auto_round/awq_w4").size(), 1u);
  EXPECT_TRUE(engines_of(stories / "model.safetensors").is_null());
}

}  // namespace
}  // namespace pare::test
