// More illnesses that a test plants: what cannot be read, what is missing, and numbers that are far from all others.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "runtime/doctor/examine.h"
#include "runtime/doctor/examine_exchanged.h"
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

// pare needs no zeros of symmetric weights. GPTQModel and AutoGPTQ state the tensor, and load it.
TEST_F(DoctorFindings, CodesWithoutZerosAreFound) {
  for (const std::string container : {"gptq", "gptq-v2"}) {
    SCOPED_TRACE(container);
    const PlantedModel whole = planted(container, {});
    PlantedModel model = whole;
    std::erase_if(model.tensors, [](const auto& tensor) { return tensor.first.ends_with(".qzeros"); });
    fs::remove_all(ill_);
    model.write(ill_);
    const Finding finding = only_finding(Illness::zeros_missing);
    EXPECT_EQ(finding.certainty, Certainty::likely);
    EXPECT_EQ(finding.concerned.size(), 20u);
    EXPECT_FALSE(examine(ill_).is_healthy());
    const fs::path copy = folder_.path() / "copy";
    fs::remove_all(copy);
    fs::create_directory(copy);
    write_repaired(examine(ill_), copy);
    EXPECT_TRUE(examine(copy).findings.empty());
    const PlantedModel mended = PlantedModel::read(copy);
    for (const auto& [name, tensor] : whole.tensors) {
      EXPECT_EQ(mended.tensors.at(name).data, tensor.data) << name;
      EXPECT_EQ(mended.tensors.at(name).shape, tensor.shape) << name;
    }
  }
  PlantedModel model = planted("gptq-v2", {.symmetric = false});
  const std::string layer = "model.layers.2.self_attn.k_proj";
  model.tensors.erase(layer + ".qzeros");
  fs::remove_all(ill_);
  model.write(ill_);
  const Finding finding = only_finding(Illness::zeros_missing);
  EXPECT_EQ(finding.certainty, Certainty::certain);
  EXPECT_EQ(finding.concerned, std::vector<std::string>{layer});
  EXPECT_FALSE(finding.repair.is_possible());
}

// Puts the tensors of each layer, by the ends of their names, in the place of those of the next.
void exchange(PlantedModel& model, const std::vector<std::string>& layers) {
  std::map<std::string, OwnedTensor> moved;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string &from = layers[i], &to = layers[(i + 1) % layers.size()];
    for (const auto& [name, tensor] : model.tensors) {
      if (!name.starts_with(from + ".")) continue;
      OwnedTensor other = tensor;
      other.name = to + name.substr(from.size());
      moved[other.name] = std::move(other);
    }
  }
  for (auto& [name, tensor] : moved) model.tensors[name] = std::move(tensor);
}

TEST_F(DoctorFindings, ExchangedLayersAreNamed) {
  const auto original = std::make_shared<const Checkpoint>(Checkpoint::open(stories_));
  const ExamineOptions options{.original = [&](const std::string& module, int64_t num_out, int64_t num_in) {
    std::vector<float> values;
    for (const LinearDescription& linear : stored_linears(*original)) {
      if (linear.name != module || linear.num_out != num_out || linear.num_in != num_in) continue;
      values.resize(static_cast<size_t>(num_out * num_in));
      weight_rows(original->linear(linear), 0, num_out, values);
    }
    return values;
  }};
  const auto layer = [](int block, const std::string& name) {
    return "model.layers." + std::to_string(block) + "." + name;
  };
  const std::vector<std::vector<std::string>> exchanges = {
      {layer(0, "self_attn.q_proj"), layer(3, "self_attn.q_proj")},                        // codes
      {layer(1, "self_attn.k_proj"), layer(1, "self_attn.v_proj")},                        // in a block
      {layer(1, "mlp.up_proj"), layer(4, "mlp.up_proj")},                                  // floats
      {layer(0, "mlp.gate_proj"), layer(2, "mlp.gate_proj"), layer(3, "mlp.gate_proj")}};  // in a circle
  for (const char* const container : {"gptq", "awq-gemm", "compressed-tensors"}) {
    SCOPED_TRACE(container);
    const PlantedModel healthy = planted(container, {});
    fs::remove_all(ill_);
    healthy.write(ill_);
    EXPECT_TRUE(examine(ill_, options).findings.empty()) << to_text(examine(ill_, options));
    for (const std::vector<std::string>& layers : exchanges) {
      SCOPED_TRACE(layers.front());
      PlantedModel model = healthy;
      exchange(model, layers);
      fs::remove_all(ill_);
      model.write(ill_);
      EXPECT_TRUE(examine(ill_).findings.empty()) << to_text(examine(ill_));  // nothing but the original tells
      const Examination examination = examine(ill_, options);
      ASSERT_EQ(examination.findings.size(), 1u) << to_text(examination);
      const Finding& finding = examination.findings.front();
      EXPECT_EQ(finding.illness, Illness::layers_exchanged);
      EXPECT_EQ(finding.certainty, Certainty::certain);
      EXPECT_EQ(std::set<std::string>(finding.concerned.begin(), finding.concerned.end()),
                std::set<std::string>(layers.begin(), layers.end()));
      for (const std::string& name : layers) EXPECT_NE(finding.what.find(name), std::string::npos) << finding.what;
    }
  }
  // A weight that is there twice.
  PlantedModel model = planted("gptq", {});
  const std::vector<std::string> both = {layer(0, "self_attn.q_proj"), layer(3, "self_attn.q_proj")};
  for (const char* const suffix : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
    model.tensors.at(both[1] + suffix).data = model.tensors.at(both[0] + suffix).data;
  }
  fs::remove_all(ill_);
  model.write(ill_);
  const Examination examination = examine(ill_, options);
  ASSERT_EQ(examination.findings.size(), 1u) << to_text(examination);
  EXPECT_EQ(examination.findings.front().certainty, Certainty::likely);
  EXPECT_EQ(examination.findings.front().concerned, std::vector<std::string>{both[1]});
}

TEST(Correlation, IsPearsons) {
  const std::vector<float> rising = {1.0f, 2.0f, 3.0f, 4.0f}, other = {1.0f, 3.0f, 2.0f, 5.0f};
  EXPECT_DOUBLE_EQ(*correlation(rising, rising), 1.0);
  EXPECT_DOUBLE_EQ(*correlation(rising, std::vector<float>{-1.0f, -2.0f, -3.0f, -4.0f}), -1.0);
  // Of deviations -1.5, -0.5, 0.5, 1.5 and -1.75, 0.25, -0.75, 2.25 the products sum to 5.5, the squares to 5 and 8.75.
  EXPECT_DOUBLE_EQ(*correlation(rising, other), 5.5 / std::sqrt(5.0 * 8.75));
  EXPECT_FALSE(correlation(rising, std::vector<float>(4, 2.0f)));
  EXPECT_FALSE(correlation(rising, std::vector<float>{1.0f, NAN, 2.0f, 3.0f}));
}

}  // namespace
}  // namespace pare
