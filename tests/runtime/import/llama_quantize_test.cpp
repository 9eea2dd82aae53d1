// The oracle is llama.cpp: its llama-quantize made the files of tests/golden/llama_quantize, and expanded them again.
// Its llama-perplexity gave the log probabilities. make_llama_quantize.py says how.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/export/export_gguf.h"
#include "runtime/files/gguf.h"
#include "runtime/import/import.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kQuantized = fs::path(kSourceFolder) / "tests/golden/llama_quantize";

const nlohmann::json& oracle() {
  static const nlohmann::json kOracle = nlohmann::json::parse(read_text_file(kQuantized / "oracle.json"));
  return kOracle;
}

// In the order of the arrays.
std::vector<std::string> quantized_files() {
  return oracle().at("order").get<std::vector<std::string>>();
}

class LlamaQuantize : public testing::TestWithParam<std::string> {
 protected:
  fs::path file_ = kQuantized / (GetParam() + ".gguf");
  TemporaryFolder folder_;
};

TEST_P(LlamaQuantize, ValuesAreThoseThatItExpandsItself) {
  const nlohmann::json& expected = oracle().at("files").at(GetParam());
  const GgufFile file = GgufFile::open(file_);
  EXPECT_EQ(file.tensors().size(), expected.size());
  for (const auto& [name, tensor] : file.tensors()) {
    EXPECT_EQ(gguf_block(static_cast<uint32_t>(tensor.type)).name, expected.at(name).at("type")) << name;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    decode_gguf_blocks(tensor.type, tensor.data, values);
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(values))), expected.at(name).at("sha256")) << name;
  }
}

// llama.cpp computed in float32 with the expanded weights. Two such passes that sum in different orders differ by a few
// 1e-6 of the largest logit on models of this size, so 1e-5 is asked for. A log probability then moves by at most twice
// that. No logit is larger than the distance of the largest and the least one of its row, since 0 lies between them.
// The golden keeps whole steps.
TEST_P(LlamaQuantize, LogProbabilitiesAreThoseOfLlamaPerplexity) {
  import_model(file_, folder_.path() / "model", {.tokenizer = {}, .dtype = DType::F32, .progress = {}});
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(folder_.path() / "model"), *backend);
  const auto ids = oracle().at("tokens").get<std::vector<int32_t>>();
  const auto width = static_cast<size_t>(model.description().vocabulary_size);
  const std::vector<float> logits = prefill_logits(model, ids, 1);

  const size_t first = ids.size() / 2, num_rows = ids.size() - 1 - first;
  const std::vector<std::string> all = quantized_files();
  const auto place = static_cast<size_t>(std::ranges::find(all, GetParam()) - all.begin());
  const std::vector<float> expected = read_golden_floats(kQuantized / "logits.npy");
  const std::vector<float> steps = read_golden_floats(kQuantized / "steps.npy");
  ASSERT_EQ(expected.size(), all.size() * num_rows * width);
  ASSERT_EQ(steps.size(), all.size() * num_rows);
  for (size_t row = 0; row < num_rows; ++row) {
    const std::span<const float> own = std::span(logits).subspan((first + row) * width, width);
    const size_t golden = place * num_rows + row;
    const auto [least, most] = std::ranges::minmax(own);
    ASSERT_TRUE(least < 0.0f && most > 0.0f);
    double sum = 0.0;
    for (const float logit : own) sum += std::exp(static_cast<double>(logit - most));
    const double tolerance = 2e-5 * static_cast<double>(most - least) + 0.5 * static_cast<double>(steps[golden]);
    for (size_t token = 0; token < width; ++token) {
      const double found = static_cast<double>(own[token] - most) - std::log(sum);
      ASSERT_NEAR(found, expected[golden * width + token], tolerance) << "row " << row << ", token " << token;
    }
  }
}

TEST_P(LlamaQuantize, BlocksPassThroughAnExport) {
  const fs::path out = folder_.path() / "out.gguf";
  import_model(file_, folder_.path() / "model", {.tokenizer = {}, .codes = GgufCodes::kept, .progress = {}});
  const GgufExport result =
      export_gguf(Checkpoint::open(folder_.path() / "model"), out, *find_gguf_format("gguf"), {.source = file_});
  const GgufFile expected = GgufFile::open(file_), found = GgufFile::open(out);
  EXPECT_EQ(found.tensors().size(), expected.tensors().size());
  for (const GgufExportedTensor& tensor : result.tensors) {
    EXPECT_TRUE(tensor.is_lossless) << tensor.name;
    EXPECT_EQ(tensor.type, expected.tensor(tensor.name).type) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(found.tensor(tensor.name).data, expected.tensor(tensor.name).data)) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, LlamaQuantize, testing::ValuesIn(quantized_files()),
                         [](const auto& param) { return param.param; });

// All types of blocks that llama-quantize writes, and the floats that it keeps.
TEST(LlamaQuantizeFiles, HaveEveryType) {
  std::set<std::string> seen;
  for (const nlohmann::json& tensors : oracle().at("files")) {
    for (const nlohmann::json& tensor : tensors) seen.insert(tensor.at("type").get<std::string>());
  }
  for (const char* const type : {"F32",     "Q1_0",  "Q2_0",   "Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",
                                 "Q3_K",    "Q4_K",  "Q5_K",   "Q6_K",   "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S",
                                 "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",   "NVFP4"}) {
    EXPECT_TRUE(seen.contains(type)) << type;
  }
}

}  // namespace
}  // namespace pare
