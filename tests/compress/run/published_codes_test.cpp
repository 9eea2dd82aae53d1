// Recipes that start from models in the containers of other programs. The oracles are the weights as AutoRound, MLX and
// GPTQModel decode them (tests/golden/make_auto_round.py, make_mlx.py), and a dense export of the same model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/run/packed_source.h"
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
  EXPECT_EQ(published_codes(Checkpoint::open(golden("auto_round/nvfp4"))), "");  // compressed-tensors
  EXPECT_EQ(published_codes(Checkpoint::open(family("llama_gqa_untied"))), "");
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
