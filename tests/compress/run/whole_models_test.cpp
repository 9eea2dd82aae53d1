// Models of texts and images: the text part is compressed, and the result is a whole model that transformers loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/engine/backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class WholeModels : public testing::TestWithParam<std::string> {
 protected:
  fs::path source() const { return fs::path(kSourceFolder) / "tests/golden/wholes" / GetParam(); }
  Outcome run(const std::string& rest, const std::string& out) {
    write_text(folder_ / "r.yaml", "model: " + source().string() +
                                       "\ncalibration: {text: " + (source() / "ids.npy").string() + "}\n" + rest);
    return run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / out).string(), "--quiet"});
  }
  std::vector<float> runtime_logits(const fs::path& directory) const {
    const TokenWindows windows = read_npy(source() / "ids.npy");
    const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
    Transformer model = Transformer::load(Checkpoint::open(directory), *backend);
    const int64_t num_rows = windows.num_windows * windows.num_tokens;
    const Buffer<float> hidden = backend->allocate(num_rows * model.description().hidden_size);
    model.prefill_windows(windows.ids_NT, windows.num_windows, hidden.get());
    std::vector<float> logits(static_cast<size_t>(num_rows * model.description().vocabulary_size));
    backend->linear(model.head(), hidden.get(), num_rows, logits.data());
    return logits;
  }
  // Returns the logits of a whole model, once transformers has found the other parts to be those of the source.
  std::vector<float> transformers_logits(const fs::path& directory) const {
    const char* python = std::getenv("PARE_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "PARE_PYTHON is not set (make test sets it up)";
      return {};
    }
    const fs::path out = folder_ / "logits.f32", log = folder_ / "log";
    const std::string line = std::string("'") + python + "' '" + kSourceFolder +
                             "/tests/compress/run/whole_with_transformers.py' '" + directory.string() + "' '" +
                             source().string() + "' '" + (source() / "ids.npy").string() + "' '" + out.string() +
                             "' >'" + log.string() + "' 2>&1";
    if (std::system(line.c_str()) != 0) {
      ADD_FAILURE() << line << "\n" << std::ifstream(log).rdbuf();
      return {};
    }
    std::vector<float> logits(fs::file_size(out) / sizeof(float));
    std::ifstream(out, std::ios::binary)
        .read(reinterpret_cast<char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(float)));
    return logits;
  }
  TemporaryFolder folder_{"whole_models"};
};

// The weights are the same numbers in both programs: only the order of sums differs (1e-4 as for the families).
TEST_P(WholeModels, TransformersLoadsWhatWasMade) {
  std::vector<std::string> recipes = {
      "passes: [{gptq: {bits: 4, group_size: 32}}]\n",
      "passes: [{awq: {}}, {rtn: {bits: 8, group_size: -1}, layers: {exclude: ['*.layers.0.mlp.*']}}]\n",
      "passes: [{sparsegpt: {pattern: '2:4'}}]\n"};
  if (GetParam() != "gemma3") recipes.resize(1);  // each takes a start of Python
  for (size_t r = 0; r < recipes.size(); ++r) {
    SCOPED_TRACE(recipes[r]);
    const std::string out = "out" + std::to_string(r);
    const Outcome outcome = run(recipes[r], out);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<float> found = runtime_logits(folder_ / out), expected = transformers_logits(folder_ / out);
    ASSERT_EQ(found.size(), expected.size());
    double largest = 0.0, difference = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
      difference = std::max(difference, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    }
    EXPECT_LE(difference, 1e-4 * largest);
  }
}

// Other programs know the tensors by the names that the source had, and the other parts' bytes are theirs.
TEST_P(WholeModels, NamesAndOtherPartsStay) {
  const Outcome outcome = run("passes: [{magnitude: {resolve: 0}}]\n", "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const SafetensorsFile before = SafetensorsFile::open(source() / "model.safetensors"),
                        after = SafetensorsFile::open(folder_ / "out/model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  int num_others = 0;
  for (const auto& [name, view] : before.tensors()) {
    ASSERT_TRUE(after.tensors().contains(name)) << name;
    const bool is_pruned = name.find("layers.") != std::string::npos && name.ends_with("_proj.weight") &&
                           name.find("vision") == std::string::npos;
    if (is_pruned) continue;
    num_others += name.find("vis") != std::string::npos ? 1 : 0;
    EXPECT_EQ(std::memcmp(view.data.data(), after.tensors().at(name).data.data(), view.data.size()), 0) << name;
  }
  EXPECT_GT(num_others, 5);
}

TEST_P(WholeModels, ATrainedModelIsWholeToo) {
  if (GetParam() != "qwen3_vl") return;  // the one whose head is tied, and whose file has transformers' own names
  const std::string ids = (source() / "ids.npy").string();
  const Outcome outcome =
      run("passes:\n  - rtn: {bits: 4, group_size: 32}\n  - distill: {text: " + ids + ", validation_text: " + ids +
              ", validation_windows: 1, total_tokens: 96, batch: 1, train: {weights: false}, "
              "scale_learning_rate: 1e-3}\n",
          "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(transformers_logits(folder_ / "out").size(), runtime_logits(folder_ / "out").size());
}

TEST_P(WholeModels, WhatCannotBeWholeIsRefusedBeforeAnyWork) {
  const Outcome student = run("student: {layers: 1}\npasses: [{distill: {text: " + (source() / "ids.npy").string() +
                                  ", total_tokens: 48, batch: 1}}]\n",
                              "out");
  EXPECT_NE(student.status, 0);
  EXPECT_NE(student.err.find("text part"), std::string::npos) << student.err;
  const Outcome awq = run("container: awq-gemm\npasses: [{rtn: {bits: 4, group_size: 32, symmetric: false}}]\n", "out");
  EXPECT_NE(awq.status, 0);
  EXPECT_NE(awq.err.find("other parts than its text part"), std::string::npos) << awq.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

INSTANTIATE_TEST_SUITE_P(All, WholeModels, testing::Values("gemma3", "llava", "mistral3", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace pare::test
