// Recipes that start from models in the containers of other programs. The oracles are the weights as AutoRound, MLX and
// GPTQModel decode them (tests/golden/make_auto_round.py, make_mlx.py), and a dense export of the same model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/run/packed_source.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/small_disk.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return fs::path(kSourceFolder) / "tests/golden" / name;
}

std::vector<float> values_of(const TensorView& view) {
  std::vector<float> values(view.data.size() / dtype_size_bytes(view.dtype));
  convert_to_float(view.dtype, view.data, values);
  return values;
}

std::vector<float> weight_of(const Checkpoint& checkpoint, const LinearDescription& linear) {
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
  return values;
}

Outcome run_on(const fs::path& model, const fs::path& out, const std::string& recipe) {
  const fs::path file = out.string() + ".yaml";
  write_text(file, "model: " + model.string() + "\n" + recipe);
  return run_pare({"run", file.string(), "--out", out.string()});
}

// What another program has decoded: each is compared in the type of the other.
void expect_decoded(const fs::path& unpacked, const fs::path& oracle) {
  const Checkpoint made = Checkpoint::open(unpacked);
  EXPECT_FALSE(made.is_quantized());
  const SafetensorsFile dense = SafetensorsFile::open(oracle);
  ASSERT_FALSE(dense.tensors().empty());
  for (const auto& [name, view] : dense.tensors()) {
    const TensorView tensor = made.tensor(name);
    std::vector<float> expected = values_of(view), found = values_of(tensor);
    for (float& value : expected) value = round_to(value, tensor.dtype);
    for (float& value : found) value = round_to(value, view.dtype);
    // What the oracle has rounded to float16 before may end one step of bfloat16 away.
    const bool is_rounded_twice = view.dtype == DType::F16 && tensor.dtype == DType::BF16;
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], is_rounded_twice ? 0x1p-7f * std::abs(expected[i]) : 0.0f) << name << " " << i;
    }
  }
}

TEST(PublishedCodes, AreDecodedAsOtherProgramsDecodeThem) {
  const TemporaryFolder folder("published");
  const std::vector<std::pair<std::string, std::string>> sources = {{"auto_round/gptq_w4", "gptq"},
                                                                    {"auto_round/gptq_w3", "gptq"},
                                                                    {"auto_round/v2_w4", "gptq-v2"},
                                                                    {"auto_round/awq_w4", "awq-gemm"},
                                                                    {"auto_round/mlx_w4", "mlx"},
                                                                    {"auto_round/fp8_block", "fp8"},
                                                                    {"auto_round/ar_fp8_block", "fp8"},
                                                                    {"mlx/w4", "mlx"},
                                                                    {"mlx/w6", "mlx"}};
  for (const auto& [name, container] : sources) {
    SCOPED_TRACE(name);
    const Checkpoint source = Checkpoint::open(golden(name));
    EXPECT_EQ(published_codes(source), container);
    const fs::path place = folder / name.substr(name.find('/') + 1) / container;
    unpack_source(source, place);
    expect_decoded(place, golden(name) / "dense.safetensors");
    const Json config = Json::parse(read_text_file(place / "config.json"));
    for (const char* key : {"quantization_config", "quantization"}) EXPECT_FALSE(config.contains(key)) << key;
    for (const std::string& tensor : Checkpoint::open(place).tensor_names()) {
      for (const char* part : {"scales", "biases", "qweight", "qzeros", "g_idx"}) {
        EXPECT_EQ(tensor.find(part), std::string::npos) << tensor;
      }
    }
  }
  EXPECT_EQ(published_codes(Checkpoint::open(golden("auto_round/nvfp4"))), "compressed-tensors");
  EXPECT_EQ(published_codes(Checkpoint::open(family("llama_gqa_untied"))), "");
}

// Of llm-compressor every folder that is read at all: weights are what eval multiplies, in the model's own type, and
// nothing of codes, of scales or of rounded keys and values is left.
TEST(PublishedCodes, OfLlmCompressorAreDecodedAsEvalDecodesThem) {
  const TemporaryFolder folder("published-llm-compressor");
  int num_read = 0;
  for (const auto& entry : fs::directory_iterator(golden("llm_compressor"))) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || name.starts_with("refused_")) continue;
    SCOPED_TRACE(name);
    ++num_read;
    const Checkpoint source = Checkpoint::open(entry.path());
    EXPECT_EQ(published_codes(source), "compressed-tensors");
    unpack_source(source, folder / name);
    expect_decoded(folder / name, entry.path() / "dense.safetensors");
    const Checkpoint made = Checkpoint::open(folder / name);
    for (const LinearDescription& linear : stored_linears(source)) {
      std::vector<float> expected = weight_of(source, linear);
      for (float& value : expected) value = round_to(value, source.description().dtype);
      EXPECT_EQ(weight_of(made, linear), expected) << linear.name;
    }
    for (const std::string& tensor : made.tensor_names()) {
      for (const char* part : {"scale", "zero", "packed", "_shape", "g_idx"}) {
        EXPECT_EQ(tensor.find(part), std::string::npos) << tensor;
      }
    }
  }
  EXPECT_EQ(num_read, 20);
}

TEST(PublishedCodes, RecipesStartFromThoseOfLlmCompressor) {
  const TemporaryFolder folder("published-llm-compressor-run");
  const std::string passes = "passes:\n  - rtn: {bits: 3, group_size: 32}\n";
  for (const std::string name : {"w4a16_asym", "w8a8_static_asym", "mixed", "nvfp4", "fp8_kv", "experts_w4"}) {
    SCOPED_TRACE(name);
    const fs::path source = golden("llm_compressor") / name;
    const Outcome outcome = run_on(source, folder / name, passes);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::string dense = (folder / (name + "-dense")).string();
    const Outcome exported = run_pare({"export", source.string(), dense, "--format", "dense"});
    ASSERT_EQ(exported.status, 0) << exported.err;
    ASSERT_EQ(run_on(dense, folder / (name + "-expected"), passes).status, 0);
    for (const char* file : {"model.safetensors", "config.json"}) {
      EXPECT_EQ(read_text_file(folder / name / file), read_text_file(folder / (name + "-expected") / file)) << file;
    }
    const std::string events = Json::parse(read_text_file(folder / name / "pare.json")).at("events").dump();
    const std::string rounded = name == "fp8_kv" ? "its inputs, keys and values are not" : "its inputs are not";
    EXPECT_NE(events.find("its compressed-tensors codes are decoded to BF16, and " + rounded), std::string::npos)
        << events;
  }
  const Outcome strict = run_on(golden("llm_compressor/w8a8"), folder / "strict", "strict: true\n" + passes);
  EXPECT_EQ(strict.status, 1);
  EXPECT_NE(strict.err.find("codes are decoded"), std::string::npos) << strict.err;
  const auto refused = [&](const fs::path& source, const std::string& word) {
    SCOPED_TRACE(source.string());
    const Outcome outcome = run_on(source, folder / "refused", passes);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder / "refused"));
    EXPECT_FALSE(fs::exists(folder / "refused.partial"));
  };
  // What eval refuses is refused in the same words.
  refused(golden("llm_compressor/refused_mxfp4"), "not supported by this runtime");
  refused(golden("llm_compressor/refused_mxfp8"), "not supported by this runtime");
  refused(golden("llm_compressor/refused_quip"), "rotations that are multiplied into the weights");
  refused(golden("llm_compressor/refused_w4a4"), "expected 8");
  refused(golden("llm_compressor/refused_w4afp8"), "expected the type of the weights");
}

// The same folder with 0xff in place of every byte of a weight: no scale, factor or norm is a number any more. Shapes
// that are stored as tensors stay.
void copy_without_weights(const fs::path& model, const fs::path& copy) {
  fs::create_directory(copy);
  for (const auto& entry : fs::directory_iterator(model)) {
    if (!entry.is_regular_file() || entry.path().extension() == ".safetensors") continue;
    fs::copy_file(entry.path(), copy / entry.path().filename());
  }
  const SafetensorsFile file = SafetensorsFile::open(model / "model.safetensors");
  std::vector<NamedTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
  bytes.reserve(file.tensors().size());
  for (const auto& [name, view] : file.tensors()) {
    const bool is_shape = view.dtype == DType::I64;
    bytes.emplace_back(view.data.begin(), view.data.end());
    if (!is_shape) std::ranges::fill(bytes.back(), std::byte{0xff});
    tensors.push_back({name, view.dtype, view.shape, bytes.back()});
  }
  write_safetensors(copy / "model.safetensors", tensors);
}

// A dry run decodes nothing: a source whose weights are no numbers has the plan of the whole one, and of the decoded
// one. The run itself finds the damage.
TEST(PublishedCodes, APlanReadsNoWeights) {
  const TemporaryFolder folder("published-plan");
  const std::string passes = "passes:\n  - rtn: {bits: 3, group_size: 32}\n";
  const auto plan = [&](const fs::path& model, const std::string& recipe) {
    write_text(folder / "r.yaml", "model: " + model.string() + "\n" + recipe);
    return run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / "out").string(), "--dry-run", "--json"});
  };
  const auto sizes = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json report = outcome.status == 0 ? Json::parse(outcome.out) : Json::object();
    return std::pair(report.value("predicted_output_bytes", 0), report.value("predicted_disk_bytes", 0));
  };
  for (const std::string name : {"llm_compressor/w4a16", "llm_compressor/nvfp4", "llm_compressor/experts_w4",
                                 "auto_round/gptq_w4", "fp8/qwen3_moe_stacks", "mlx/w4"}) {
    SCOPED_TRACE(name);
    const fs::path copy = folder / name.substr(name.find('/') + 1), dense = copy.string() + "-dense";
    copy_without_weights(golden(name), copy);
    const Outcome without = plan(copy, passes);
    EXPECT_NE(without.err.find("its weights are not read for a plan"), std::string::npos) << without.err;
    unpack_source(Checkpoint::open(golden(name)), dense);
    EXPECT_EQ(sizes(without), sizes(plan(golden(name), passes)));
    EXPECT_EQ(sizes(without), sizes(plan(dense, passes)));
    const Outcome run = run_on(copy, folder / "run", passes);
    EXPECT_EQ(run.status, 1) << run.err;
  }
  // What begins with a student, and statistics.
  EXPECT_EQ(plan(folder / "w4a16", "student: {feed_forward_size: 32}\n" + passes).status, 0);
  write_npy(folder / "ids.npy", TokenWindows{2, 4, {3, 4, 5, 6, 7, 8, 9, 10}});
  write_text(folder / "c.yaml", "model: " + (folder / "w4a16").string() +
                                    "\ncalibration: {text: " + (folder / "ids.npy").string() + "}\n");
  const Outcome calibrated =
      run_pare({"calibrate", (folder / "c.yaml").string(), (folder / "s.h5").string(), "--dry-run"});
  EXPECT_EQ(calibrated.status, 0) << calibrated.err;
}

// Statistics are of the decoded weights, so a plan with them decodes.
TEST(PublishedCodes, APlanComparesStatisticsWithTheDecodedModel) {
  const TemporaryFolder folder("published-statistics");
  write_npy(folder / "ids.npy", TokenWindows{2, 4, {3, 4, 5, 6, 7, 8, 9, 10}});
  const std::string model = "model: " + golden("llm_compressor/w4a16").string() + "\n";
  write_text(folder / "c.yaml", model + "calibration: {text: " + (folder / "ids.npy").string() + "}\n");
  ASSERT_EQ(run_pare({"calibrate", (folder / "c.yaml").string(), (folder / "s.h5").string()}).status, 0);
  write_text(folder / "r.yaml", model + "calibration: {statistics: " + (folder / "s.h5").string() +
                                    "}\npasses:\n  - gptq: {bits: 3, group_size: 32}\n");
  const Outcome outcome =
      run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / "out").string(), "--dry-run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

// What is claimed to be pruned is known without weights: what cannot hold zeros is refused by the plan as by the run.
TEST(PublishedCodes, APlanKnowsClaimedZeros) {
  const TemporaryFolder folder("published-zeros");
  const std::string pruning = "passes:\n  - magnitude: {resolve: 0, storage: packed}\n";
  ASSERT_EQ(run_on(family("llama_gqa_untied"), folder / "packed", pruning).status, 0);
  write_npy(folder / "ids.npy", TokenWindows{2, 4, {3, 4, 5, 6, 7, 8, 9, 10}});
  const std::string calibration = "\ncalibration: {text: " + (folder / "ids.npy").string() + "}";
  for (const std::string type : {"q4_0", "q4_1"}) {
    write_text(folder / "r.yaml",
               "model: " + (folder / "packed").string() + calibration + "\npasses:\n  - gguf: {type: " + type + "}\n");
    const Outcome outcome =
        run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / "out").string(), "--dry-run"});
    if (type == "q4_0") {
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_NE(outcome.out.find("are said to be pruned, and zeros stay 0"), std::string::npos)
          << outcome.out << outcome.err;
    } else {
      EXPECT_EQ(outcome.status, 1);
      EXPECT_NE(outcome.err.find("is pruned in the source"), std::string::npos) << outcome.err;
    }
  }
}

// Weights without codes whose inputs are rounded: beside codes they stay as they are, and alone there is nothing to
// decode. Codes that no layer reads would stay codes in a result that says it is dense.
TEST(PublishedCodes, OfCompressedTensorsMayStandBesideOtherWeights) {
  const TemporaryFolder folder("published-others");
  const std::string some =
                        "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n"
                        "    layers: {exclude: [\"*.q_proj\", \"*.k_proj\", \"*.v_proj\"]}\n",
                    inputs = "passes:\n  - activations: int8\n";
  const auto made_by_others = [&](const std::string& name, const std::string& recipe) {
    const Outcome outcome = run_on(family("llama_gqa_untied"), folder / name, recipe);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    for (const char* file : {"pare.json", "report.json", "report.html"}) fs::remove(folder / name / file);
  };
  made_by_others("mixed", some);
  Json config = Json::parse(read_text_file(folder / "mixed/config.json"));
  Json& quantization = config.at("quantization_config");
  Json group = quantization.at("config_groups").at("group_0");
  group["weights"] = nullptr;
  group["format"] = "dense";
  group["targets"] = Json::array({"re:.*(q|k|v)_proj$"});
  quantization["config_groups"]["group_1"] = group;
  quantization["format"] = "mixed-precision";
  quantization["ignore"] = Json::array({"lm_head"});
  write_text(folder / "mixed/config.json", config.dump());
  const Checkpoint source = Checkpoint::open(folder / "mixed");
  EXPECT_EQ(published_codes(source), "compressed-tensors");
  EXPECT_TRUE(source.stored_scheme({"model.layers.0.self_attn.v_proj", 0, 0, false})->has_own_tensor());
  unpack_source(source, folder / "unpacked");
  const Checkpoint unpacked = Checkpoint::open(folder / "unpacked");
  EXPECT_FALSE(unpacked.is_quantized());
  for (const LinearDescription& linear : stored_linears(source)) {
    EXPECT_EQ(weight_of(unpacked, linear), weight_of(source, linear)) << linear.name;  // the model's type is float32
  }
  const std::string three = "passes:\n  - rtn: {bits: 3, group_size: 32}\n";
  made_by_others("inputs", inputs);
  EXPECT_EQ(published_codes(Checkpoint::open(folder / "inputs")), "");
  const Outcome alone = run_on(folder / "inputs", folder / "out", three);
  EXPECT_EQ(alone.status, 1);
  EXPECT_NE(alone.err.find("quantized already"), std::string::npos) << alone.err;

  const fs::path golden_w4 = golden("llm_compressor/w4a16"), unread = folder / "unread";
  fs::create_directory(unread);
  fs::copy_file(golden_w4 / "config.json", unread / "config.json");
  const SafetensorsFile file = SafetensorsFile::open(golden_w4 / "model.safetensors");
  const std::string known = "model.layers.0.mlp.up_proj", other = "mtp.layers.0.mlp.up_proj";
  std::vector<NamedTensor> tensors;
  for (const auto& [name, view] : file.tensors()) {
    tensors.push_back({name, view.dtype, view.shape, view.data});
    if (name.starts_with(known)) {
      tensors.push_back({other + name.substr(known.size()), view.dtype, view.shape, view.data});
    }
  }
  write_safetensors(unread / "model.safetensors", tensors);
  const Outcome outcome = run_on(unread, folder / "out", three);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find(other + ".weight_scale belongs to codes that no layer"), std::string::npos) << outcome.err;
}

// The result is that of a dense export of the source, and says where it comes from.
TEST(PublishedCodes, RecipesStartFromThem) {
  const TemporaryFolder folder("published-run");
  const auto run = [&](const fs::path& model, const std::string& out, const std::string& recipe) {
    write_text(folder / "r.yaml", "model: " + model.string() + "\n" + recipe);
    return run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / out).string()});
  };
  const std::string four = "passes:\n  - rtn: {bits: 4, group_size: 32}\n",
                    three = "passes:\n  - rtn: {bits: 3, group_size: 32}\n";
  ASSERT_EQ(run(family("llama_gqa_untied"), "four", four).status, 0);
  ASSERT_EQ(run(family("llama_gqa_untied"), "int8", "passes:\n  - llm_int8: {layout: bitsandbytes}\n").status, 0);
  const auto exported = [&](const std::string& from, const std::string& to, const std::string& format) {
    const Outcome outcome = run_pare({"export", (folder / from).string(), (folder / to).string(), "--format", format});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  };
  exported("four", "gptq", "gptq");
  exported("four", "awq-gemm", "awq-gemm");
  exported("four", "bitsandbytes-nf4", "bitsandbytes");
  for (const std::string source : {"gptq", "awq-gemm", "bitsandbytes-nf4", "int8"}) {
    SCOPED_TRACE(source);
    const Outcome outcome = run(folder / source, source + "-three", three);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    exported(source, source + "-dense", "dense");
    ASSERT_EQ(run(folder / (source + "-dense"), source + "-expected", three).status, 0);
    for (const char* file : {"model.safetensors", "config.json"}) {
      EXPECT_EQ(read_text_file(folder / (source + "-three") / file),
                read_text_file(folder / (source + "-expected") / file))
          << file;
    }
    const Json manifest = Json::parse(read_text_file(folder / (source + "-three") / "pare.json"));
    EXPECT_NE(manifest.at("events").dump().find("codes are decoded to F32"), std::string::npos) << manifest["events"];
    const Outcome strict = run(folder / source, "strict", "strict: true\n" + three);
    EXPECT_EQ(strict.status, 1);
    EXPECT_NE(strict.err.find("codes are decoded"), std::string::npos) << strict.err;
  }
  const fs::path small = folder / "small";
  fs::create_directory(small);
  const std::optional<int> status = on_a_small_disk(small, "64k", [&] {
    ::setenv("TMPDIR", small.c_str(), 1);
    const Outcome full = run(folder / "gptq", "full", three);
    const bool names_source = full.err.find((folder / "gptq").string() + "' is decoded to") != std::string::npos;
    if (full.status == 1 && names_source && full.err.find("set TMPDIR") != std::string::npos) return 0;
    std::fprintf(stderr, "status %d: %s\n", full.status, full.err.c_str());
    return 1;
  });
  EXPECT_EQ(status.value_or(0), 0);  // where a test may mount something
  // What pare stores by default is refused as before.
  const Outcome refused = run(folder / "four", "again", three);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("quantized already"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace pare::test
