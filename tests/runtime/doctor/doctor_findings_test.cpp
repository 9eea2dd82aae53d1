// More illnesses that a test plants: what cannot be read, what is missing, and numbers that are far from all others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/doctor/examine.h"
#include "runtime/doctor/repair.h"
#include "runtime/system/atomic_file.h"
#include "tests/places.h"
#include "tests/runtime/doctor/planted_model.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class DoctorFindings : public testing::Test {
 protected:
  // Returns the one finding.
  Finding only_finding(Illness illness) const {
    const Examination examination = examine(ill_);
    EXPECT_EQ(examination.findings.size(), 1u) << to_text(examination);
    if (examination.findings.empty()) return {};
    EXPECT_EQ(examination.findings.front().illness, illness) << to_text(examination);
    return examination.findings.front();
  }
  void expect_healthy() const {
    const Examination examination = examine(ill_);
    EXPECT_TRUE(examination.findings.empty()) << to_text(examination);
  }

  TemporaryFolder folder_;
  const fs::path ill_ = folder_.path() / "ill";
  const fs::path stories_ = std::string(kSourceFolder) + "/calibration_data/stories260k";
};

// Codes are there, and what the configuration says of them is not known.
TEST_F(DoctorFindings, AConfigurationThatCannotBeReadIsTheOnlyFinding) {
  planted("compressed-tensors", {}).write(ill_);
  const std::string whole = read_text_file(ill_ / "config.json");
  const std::string twice = "{\"model_type\": \"llama\"," + whole.substr(1);
  for (const std::string& text : {std::string(), std::string("[]"), std::string("\xff\xfe{}"), twice}) {
    SCOPED_TRACE(text.substr(0, 20));
    std::ofstream(ill_ / "config.json", std::ios::binary) << text;
    only_finding(Illness::unreadable_file);
  }
  fs::remove(ill_ / "config.json");
  only_finding(Illness::unreadable_file);
}

TEST_F(DoctorFindings, AVocabularyThatIsMissingIsFound) {
  fs::copy(stories_, ill_);
  expect_healthy();
  fs::remove(ill_ / "tokenizer.json");
  const Finding finding = only_finding(Illness::tokenizer_refused);
  EXPECT_EQ(finding.certainty, Certainty::likely);
  EXPECT_EQ(finding.concerned, std::vector<std::string>{"tokenizer.json"});
  // Other programs read it from here.
  std::ofstream(ill_ / "tokenizer.model") << "x";
  expect_healthy();
}

TEST_F(DoctorFindings, ASizeThatIsNoNumberIsFoundAndReplaced) {
  fs::copy(std::string(kSourceFolder) + "/tests/golden/families/llama_sharded_fp16", ill_);
  const fs::path index = ill_ / "model.safetensors.index.json";
  TestJson json = TestJson::parse(read_text_file(index));
  json["metadata"]["total_size"] = "12";
  std::ofstream(index) << json.dump();
  const Finding finding = only_finding(Illness::index_total_size);
  EXPECT_NE(finding.what.find("no number"), std::string::npos) << finding.what;
  const fs::path copy = folder_.path() / "copy";
  fs::create_directory(copy);
  write_repaired(examine(ill_), copy);
  EXPECT_TRUE(examine(copy).findings.empty());
}

TEST_F(DoctorFindings, MatricesOfZerosAreFound) {
  for (const std::string name : {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"}) {
    SCOPED_TRACE(name);
    PlantedModel model = PlantedModel::read(std::string(kSourceFolder) + "/tests/golden/families/llama_gqa_untied");
    std::ranges::fill(model.tensors.at(name).data, std::byte{0});
    model.write(ill_);
    EXPECT_EQ(only_finding(Illness::weight_zero).concerned, std::vector<std::string>{name});
  }
  // A bias may be zero.
  PlantedModel model = PlantedModel::read(std::string(kSourceFolder) + "/tests/golden/families/qwen2_biases_tied");
  EXPECT_GT(model.each(".bias",
                       [](const std::string&, OwnedTensor& tensor) { std::ranges::fill(tensor.data, std::byte{0}); }),
            0);
  model.write(ill_);
  expect_healthy();
}

TEST_F(DoctorFindings, ScalesFarFromAllOthersAreFound) {
  for (const auto& [container, suffix] : {std::pair<std::string, std::string>("gptq", ".scales"),
                                          {"awq-gemm", ".scales"},
                                          {"compressed-tensors", ".weight_scale"}}) {
    SCOPED_TRACE(container);
    PlantedModel model = planted(container, {});
    const std::string layer = "model.layers.1.self_attn.q_proj" + suffix;
    OwnedTensor& scales = model.tensors.at(layer);
    std::vector<float> values(scales.data.size() / dtype_size_bytes(scales.dtype));
    const auto write_times = [&](float factor) {
      OwnedTensor& changed = model.tensors.at(layer);
      convert_to_float(changed.dtype, changed.data, values);
      for (float& value : values) value *= factor;
      convert_from_float(changed.dtype, values, changed.data);
      model.write(ill_);
    };
    write_times(30.0f);  // layers differ
    expect_healthy();
    write_times(10000.0f / 30.0f);
    const Finding finding = only_finding(Illness::scale_apart);
    EXPECT_EQ(finding.concerned, std::vector<std::string>{layer});
    EXPECT_EQ(finding.certainty, Certainty::likely);
  }
}

TEST_F(DoctorFindings, BitsAndGroupsOfCompressedTensorsAreThoseOfTheShapes) {
  const PlantedModel healthy = planted("compressed-tensors", {.group_size = 32});
  healthy.write(ill_);
  expect_healthy();
  const auto expected = healthy.config;
  for (const auto& [key, value] : std::map<std::string, int>{{"num_bits", 8}, {"group_size", 64}}) {
    SCOPED_TRACE(key);
    PlantedModel model = healthy;
    model.quantization()["config_groups"]["group_0"]["weights"][key] = value;
    model.write(ill_);
    const Finding finding = only_finding(Illness::bits_or_groups);
    EXPECT_EQ(finding.certainty, Certainty::certain);
    EXPECT_NE(finding.what.find("those of bits 4 and group_size 32"), std::string::npos) << finding.what;
    const fs::path copy = folder_.path() / ("copy-" + key);
    fs::create_directory(copy);
    write_repaired(examine(ill_), copy);
    EXPECT_TRUE(examine(copy).findings.empty()) << to_text(examine(copy));
    EXPECT_EQ(TestJson::parse(read_text_file(copy / "config.json")), expected);
  }
}

}  // namespace
}  // namespace pare
