// Recipes that start from a model that is published in fp8 (tests/golden/make_fp8.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compress/run/packed_source.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return fs::path(kSourceFolder) / "tests/golden/fp8" / name;
}

std::vector<float> weight(const Checkpoint& checkpoint, const LinearDescription& linear) {
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
  return values;
}

TEST(Fp8Source, IsDecodedToTheModelsType) {
  const TemporaryFolder folder("fp8-source");
  for (const char* const name : {"qwen3", "deepseek_v3"}) {
    const Checkpoint source = Checkpoint::open(golden(name));
    EXPECT_TRUE(is_fp8_source(source));
    EXPECT_FALSE(is_packed_source(source));
    unpack_source(source, folder / name);
    const Checkpoint dense = Checkpoint::open(folder / name);
    EXPECT_FALSE(dense.is_quantized());
    for (const LinearDescription& linear : stored_linears(source)) {
      EXPECT_EQ(weight(dense, linear), weight(source, linear)) << linear.name;  // the model's type is float32
    }
    for (const std::string& tensor : dense.tensor_names()) EXPECT_EQ(tensor.find("scale"), std::string::npos) << tensor;
  }
  const fs::path other = fs::path(kSourceFolder) / "tests/golden/auto_round/gptq_w4";
  EXPECT_FALSE(is_fp8_source(Checkpoint::open(other)));
}

// The result is that of the decoded model, and says where it comes from.
TEST(Fp8Source, RecipesStartFromIt) {
  const TemporaryFolder folder("fp8-run");
  unpack_source(Checkpoint::open(golden("qwen3")), folder / "dense");
  const auto run = [&](const fs::path& model, const std::string& out) {
    write_text(folder / "r.yaml", "model: " + model.string() + "\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
    return run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / out).string()});
  };
  const Outcome outcome = run(golden("qwen3"), "of-fp8");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("fp8 codes"), std::string::npos) << outcome.err;
  ASSERT_EQ(run(folder / "dense", "of-dense").status, 0);
  EXPECT_EQ(read_text_file(folder / "of-fp8/model.safetensors"), read_text_file(folder / "of-dense/model.safetensors"));
  EXPECT_EQ(read_text_file(folder / "of-fp8/config.json"), read_text_file(folder / "of-dense/config.json"));
  const std::string manifest = read_text_file(folder / "of-fp8/pare.json");
  EXPECT_NE(manifest.find("its fp8 codes are decoded to F32"), std::string::npos);
}

}  // namespace
}  // namespace pare::test
