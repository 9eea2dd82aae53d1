#include "runtime/containers/bitsandbytes_nf4.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

constexpr const char* kState = "m.weight.quant_state.bitsandbytes__nf4";
const std::string kConfig = R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})";

// The state dicts that bitsandbytes' Linear4bit produced for random weights (make_bitsandbytes.py), under the name "m".
class BitsAndBytesNf4Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string prefix = GetParam() + ".";
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name.starts_with(prefix)) parts_["m." + name.substr(prefix.size())] = tensor;
    }
    dense_ = parts_.at("m.dense");
    state_ = Json::parse(text_of(parts_.at(kState)));
  }
  static std::string text_of(const TensorView& tensor) {
    return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
  }
  int64_t num_out() const { return dense_.shape[0]; }
  int64_t num_in() const { return dense_.shape[1]; }
  void set_state(const std::string& text) {
    state_text_ = text;
    parts_[kState] = {
        DType::U8, {static_cast<int64_t>(text.size())}, std::as_bytes(std::span(state_text_.data(), text.size()))};
  }
  StoredLinear load() {
    const FindTensor find = [&](const std::string& name) -> const TensorView* {
      const auto found = parts_.find(name);
      return found == parts_.end() ? nullptr : &found->second;
    };
    const auto scheme = container_.read_config(kConfig, "c")->scheme_of("m", "Linear", find);
    if (!scheme) throw std::runtime_error("the module is not quantized");
    container_.check(find, *scheme, num_out(), num_in(), "m");
    return container_.load(find, *scheme, num_out(), num_in(), "m");
  }
  // Loading must fail with these words after `change`, and is mended again.
  void refused(const std::function<void()>& change, std::initializer_list<std::string> words) {
    const auto whole = parts_;
    change();
    expect_error<std::runtime_error>([&] { load(); }, words);
    parts_ = whole;
  }

  const ContainerFormat& container_ = bitsandbytes_nf4_container();
  SafetensorsFile file_ = SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/formats/nf4.safetensors");
  std::map<std::string, TensorView> parts_;
  TensorView dense_;
  Json state_;
  std::string state_text_;
};

// Both multiply value and scale once in float32.
TEST_P(BitsAndBytesNf4Golden, DequantizingGivesTheLibrarysWeights) {
  std::vector<float> theirs(static_cast<size_t>(num_out() * num_in()));
  convert_to_float(DType::F32, dense_.data, theirs);
  EXPECT_EQ(dequantize(load().weight), theirs);
}

TEST_P(BitsAndBytesNf4Golden, WritingGivesTheLibrarysBytes) {
  const StoredLinear linear = load();
  const PackScheme scheme = container_.adapted({.code = &kNf4Code, .bits = 4, .group_size = linear.weight.group_size});
  const std::vector<OwnedTensor> tensors = container_.store(linear, scheme, "m");
  ASSERT_EQ(tensors.size(), 4u);
  for (const OwnedTensor& tensor : tensors) {
    const TensorView& expected = parts_.at(tensor.name);
    if (tensor.name == kState) {
      // Scales that are quantized themselves are written as they are.
      for (const char* key : {"nested_blocksize", "nested_dtype", "nested_offset"}) state_.erase(key);
      EXPECT_EQ(Json::parse(text_of({tensor.dtype, tensor.shape, tensor.data})), state_);
      continue;
    }
    if (GetParam() == "nested" && tensor.name == "m.weight.absmax") continue;
    EXPECT_EQ(tensor.dtype, expected.dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, expected.shape) << tensor.name;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected.data.begin(), expected.data.end()))
        << tensor.name;
  }
}

TEST_P(BitsAndBytesNf4Golden, TensorsThatDoNotFitAreRefused) {
  std::vector<std::string> names = {"m.weight", "m.weight.absmax", "m.weight.quant_map"};
  if (GetParam() == "nested") names.insert(names.end(), {"m.weight.nested_absmax", "m.weight.nested_quant_map"});
  for (const std::string& name : names) {
    refused([&] { parts_[name].shape.push_back(1); }, {"'" + name + "'", "expected", "found"});
    refused([&] { parts_[name].shape[0] -= 1; }, {"'" + name + "'", "expected", "found"});
    refused([&] { parts_[name].dtype = DType::I64; }, {"'" + name + "'", "found I64"});
    if (name != "m.weight.absmax") refused([&] { parts_.erase(name); }, {"'" + name + "'", "missing"});
  }
  refused([&] { parts_.erase(kState); }, {kState, "missing"});
  refused([&] { parts_[kState].dtype = DType::I8; }, {kState, "expected U8, found I8"});
  static const std::vector<std::byte> ones(4 * 512, std::byte{0xff});
  refused([&] { parts_["m.weight.quant_map"].data = std::span(ones).first(64); }, {"m.weight.quant_map", "nf4"});
  const std::string scales = GetParam() == "nested" ? "m.weight.nested_absmax" : "m.weight.absmax";
  refused([&] { parts_[scales].data = std::span(ones).first(parts_[scales].data.size()); },
          {"'m'", "scale", "nan", "not finite"});
}

TEST_P(BitsAndBytesNf4Golden, StatesThatDoNotFitAreRefused) {
  const auto with = [&](const char* key, const Json& value) {
    Json state = state_;
    state[key] = value;
    return [this, text = state.dump()] { set_state(text); };
  };
  refused([&] { set_state("{\"quant_type\": "); }, {kState});
  refused([&] { set_state("[1]"); }, {kState});
  refused(with("quant_type", "fp4"), {kState, "quant_type", "nf4", "fp4"});
  for (const Json& block : {Json(63), Json(0), Json(-64), Json("64"), Json(8192), Json(), Json(1e300)}) {
    refused(with("blocksize", block), {kState, "64, 128, ..., 4096"});
  }
  // The blocks of the smaller module run on from row to row.
  if (GetParam() == "plain") refused(with("blocksize", 256), {"256", "128 inputs"});
  for (const Json& shape : {Json{num_in(), num_out()}, Json{num_out()}, Json(7), Json()}) {
    refused(with("shape", shape), {kState, "shape: expected"});
  }
  refused(with("nested_blocksize", 0), {kState, "nested_blocksize"});
  refused(with("nested_blocksize", -1), {kState, "nested_blocksize"});
  if (GetParam() == "plain") {
    refused(with("nested_blocksize", 256), {kState, "nested_offset"});
  } else {
    refused(with("nested_offset", "x"), {kState, "nested_offset"});
    refused(with("nested_offset", 1e300), {"'m'", "scale inf"});
    refused(with("nested_offset", -1e3), {"'m'", "is negative"});
    refused(with("nested_blocksize", 64), {"m.weight.nested_absmax", "expected", "found"});
  }
}

// The scale of a block of zeros is 0. Stored in 8 bits with an offset, it may come out just below 0.
TEST_P(BitsAndBytesNf4Golden, ScalesBelowZeroAreThoseOfZeros) {
  if (GetParam() != "nested") return;
  state_["nested_offset"] = 0.0;  // half of the scales are then below 0
  set_state(state_.dump());
  std::vector<std::byte> codes(parts_["m.weight"].data.size(), std::byte{0x77});  // of 0
  parts_["m.weight"].data = codes;
  const QuantizedWeight weight = load().weight;
  for (const float scale : weight.scales_OG) EXPECT_GE(scale, 0.0f);
  EXPECT_EQ(dequantize(weight), std::vector<float>(static_cast<size_t>(num_out() * num_in()), 0.0f));
  std::fill(codes.begin(), codes.end(), std::byte{0x78});
  expect_error<std::runtime_error>([&] { load(); }, {"'m'", "is negative"});
}

INSTANTIATE_TEST_SUITE_P(All, BitsAndBytesNf4Golden, testing::Values("plain", "nested"),
                         [](const auto& golden) { return golden.param; });

TEST(BitsAndBytesNf4, ConfigurationsAreReadBackAndOthersRefused) {
  const ContainerFormat& container = bitsandbytes_nf4_container();
  const PackScheme scheme = container.adapted({.code = &kNf4Code, .bits = 4, .group_size = 64});
  const std::vector<std::string> skipped = {"lm_head"};
  const std::string text = container.config_json(std::vector<StoredModule>{{"m", scheme}}, skipped);
  EXPECT_EQ(find_container("bitsandbytes", text), &container);
  const TensorView some{DType::F32, {1}, {}};
  const FindTensor finds_all = [&](const std::string&) { return &some; };
  const auto config = container.read_config(text, "c");
  expect_error<std::runtime_error>([&] { config->scheme_of("lm_head", "Linear", finds_all); }, {"lm_head"});
  EXPECT_EQ(config->scheme_of("m", "Linear", [](const std::string&) { return nullptr; }), std::nullopt);
  const auto refused = [&](const std::string& json, std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { container.read_config(json, "c"); }, words);
  };
  refused(R"({"load_in_4bit": true})", {"'c'", "bnb_4bit_quant_type", "nf4"});
  refused(R"({"load_in_4bit": true, "bnb_4bit_quant_type": "fp4"})", {"'c'", "bnb_4bit_quant_type", "\"fp4\""});
  refused(R"({"bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": 1})", {"llm_int8_skip_modules", "array"});
  refused(R"({"bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": [1]})", {"llm_int8_skip_modules", "strings"});
  refused("[]", {"'c'", "object"});
}

TEST(BitsAndBytesNf4, OtherWeightsAreRefused) {
  const ContainerFormat& container = bitsandbytes_nf4_container();
  const PackScheme good{.code = &kNf4Code, .bits = 4, .group_size = 64};
  const auto refused = [&](auto&& change, std::initializer_list<std::string> words, int64_t num_in = 128) {
    PackScheme scheme = good;
    change(scheme);
    const Acceptance found = container.accepts(container.adapted(scheme), 4, num_in);
    ASSERT_FALSE(found);
    for (const std::string& word : words) EXPECT_NE(found.reason.find(word), std::string::npos) << found.reason;
  };
  EXPECT_TRUE(container.accepts(container.adapted(good), 4, 128));
  refused([](PackScheme& s) { s.code = &kIntegerCode; }, {"nf4", "w4", "another container"});
  refused([](PackScheme& s) { s.code = nullptr, s.bits = kDenseBits; }, {"nf4", "dense"});
  refused([](PackScheme& s) { s.group_size = 32; }, {"64, 128", "found 32"});
  refused([](PackScheme& s) { s.group_size = kPerChannel; }, {"64, 128"});
  refused([](PackScheme& s) { s.act_order = StoredActOrder::group; }, {"static"});
  refused([](PackScheme& s) { s.input.type = InputType::int8; }, {"not rounded"});
  const std::vector<StoredModule> with_embedding = {{"m", container.adapted(good)},
                                                    {"e", container.adapted(good), false}};
  EXPECT_NE(container.accepts_together(with_embedding).reason.find("'e' is an embedding"), std::string::npos);
}

}  // namespace
}  // namespace pare
