#include "runtime/containers/bitsandbytes_int8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/engine/backend.h"
#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

// The state dicts that bitsandbytes' Linear8bitLt produced for random weights (make_bitsandbytes.py).
class BitsAndBytesGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const char* part : {"weight", "SCB", "weight_format", "dense"}) {
      parts_[part] = file_.tensors().at(GetParam() + "." + part);
    }
  }
  int64_t num_out() { return parts_["weight"].shape[0]; }
  int64_t num_in() { return parts_["weight"].shape[1]; }
  QuantizedWeight unpack() {
    return unpack_bitsandbytes_int8({&parts_["weight"], &parts_["SCB"], &parts_["weight_format"]}, num_out(), num_in(),
                                    "m");
  }
  SafetensorsFile file_ = SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/formats/int8.safetensors");
  std::map<std::string, TensorView> parts_;
};

// The library multiplies code and SCB, then by 1/127: three roundings. Ours are those of the quotient SCB / 127 and of
// the product. Each of these five is at most 2^-24 of the result.
TEST_P(BitsAndBytesGolden, DequantizingAgreesWithTheLibrary) {
  const std::vector<float> ours = dequantize(unpack());
  std::vector<float> theirs(ours.size());
  convert_to_float(DType::F32, parts_["dense"].data, theirs);
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 5.1 * 0x1p-24 * std::fabs(theirs[i])) << i;
}

// The codes of x and the outlier columns are the library's, so the integer sums are, too. The library scales them by
// 6.200124e-05 for 1 / 127^2 = 6.2000124e-05, which is 1.81e-5 too much, and both round a few times. Relative to the
// terms' sum of magnitudes M, that is at most 1.81e-5 M + (I + 16) 2^-24 M. (A code that differs by one moves y by
// about M / 127 / I.)
TEST_P(BitsAndBytesGolden, LinearsGiveTheLibrarysOutputs) {
  const QuantizedWeight weight = unpack();
  const std::vector<float> weight_OI = dequantize(weight);
  const TensorView& x = file_.tensors().at(GetParam() + ".x");
  const int64_t num_rows = x.shape[0];
  std::vector<float> x_RI(static_cast<size_t>(num_rows * num_in()));
  convert_to_float(DType::F32, x.data, x_RI);
  std::vector<float> gates;  // silu(32) = 32 exactly, so activate emits x
  for (int64_t r = 0; r < num_rows; ++r) {
    gates.insert(gates.end(), static_cast<size_t>(num_in()), 32.0f);
    for (int64_t i = 0; i < num_in(); ++i) gates.push_back(x_RI[r * num_in() + i] / 32.0f);
  }
  for (const float threshold : {6.0f, 0.0f}) {
    const PackScheme scheme = BitsAndBytesConfig::parse(bitsandbytes_config_json(threshold, {}), "c").scheme;
    const LinearWeights linear = {.name = "m", .weight = weight, .bias_O = {}, .input = scheme.input};
    std::vector<float> theirs(static_cast<size_t>(num_rows * num_out()));
    convert_to_float(DType::F32, file_.tensors().at(GetParam() + (threshold > 0 ? ".y" : ".y_no_outliers")).data,
                     theirs);
    std::vector<std::unique_ptr<Backend>> backends;
    backends.push_back(make_reference_backend());
    for (const Isa isa : kIsas) {
      if (supports_isa(isa)) backends.push_back(make_cpu_backend(isa, 2));
    }
    for (const auto& backend : backends) {
      const auto packed = backend->pack({&linear, 1});
      const std::vector<Sequence> all = {{.num_rows = num_rows}};
      LinearInput input(*backend, num_rows, num_in(), true);
      input.prepare(*packed, bounded(all));
      backend->activate(gates.data(), Activation::silu, num_rows, num_in(), input);
      std::vector<float> y(theirs.size());
      backend->linear(*packed, input, num_rows, y.data());
      for (int64_t i = 0; i < num_rows * num_out(); ++i) {
        double magnitude = 0.0;
        for (int64_t k = 0; k < num_in(); ++k) {
          magnitude += std::abs(static_cast<double>(x_RI[i / num_out() * num_in() + k]) *
                                weight_OI[i % num_out() * num_in() + k]);
        }
        const double tolerance = (1.81e-5 + static_cast<double>(num_in() + 16) * 0x1p-24) * magnitude;
        ASSERT_NEAR(y[i], theirs[i], tolerance) << backend->name() << ", threshold " << threshold << ", " << i;
      }
    }
  }
}

TEST_P(BitsAndBytesGolden, PackingGivesTheLibrarysBytes) {
  const std::vector<OwnedTensor> tensors = pack_bitsandbytes_int8(unpack(), "m");
  ASSERT_EQ(tensors.size(), 3u);
  for (const OwnedTensor& tensor : tensors) {
    const TensorView& expected = parts_.at(tensor.name.substr(2));
    EXPECT_EQ(tensor.dtype, expected.dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, expected.shape) << tensor.name;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected.data.begin(), expected.data.end()))
        << tensor.name;
  }
}

TEST_P(BitsAndBytesGolden, ReadingRefusesWhatDoesNotFit) {
  for (const char* name : {"weight", "SCB", "weight_format"}) {
    const TensorView whole = parts_[name];
    parts_[name].shape.push_back(1);
    expect_error<std::runtime_error>([&] { unpack(); }, {std::string("'m.") + name, "expected", "found"});
    parts_[name] = whole;
    parts_[name].dtype = DType::I64;
    expect_error<std::runtime_error>([&] { unpack(); }, {std::string("'m.") + name, "found I64"});
    parts_[name] = whole;
  }
  static const std::vector<std::byte> ones(64 * 4, std::byte{0xff});
  parts_["weight_format"].data = std::span(ones).first(1);
  expect_error<std::runtime_error>([&] { unpack(); }, {"m.weight_format", "expected 0", "255"});
  EXPECT_NO_THROW(unpack_bitsandbytes_int8({&parts_["weight"], &parts_["SCB"], nullptr}, num_out(), num_in(), "m"));
  parts_["weight_format"] = file_.tensors().at(GetParam() + ".weight_format");
  parts_["SCB"].data = std::span(ones).first(parts_["SCB"].data.size());
  expect_error<std::runtime_error>([&] { unpack(); }, {"'m'", "scale", "not finite"});
  // An absmax is a magnitude, though integers of other files may have negative scales.
  std::vector<float> absmax_O(static_cast<size_t>(num_out()), 2.0f);
  absmax_O.back() = -2.0f;
  parts_["SCB"].data = std::as_bytes(std::span(absmax_O));
  expect_error<std::runtime_error>([&] { unpack(); },
                                   {"m.SCB", "at least 0", "-2", "row " + std::to_string(num_out() - 1), "damaged"});
}

INSTANTIATE_TEST_SUITE_P(All, BitsAndBytesGolden, testing::Values("square", "wide"),
                         [](const auto& golden) { return golden.param; });

QuantizedWeight weight_with_scales(std::vector<float> scales_O) {
  QuantizedWeight weight;
  weight.num_out = static_cast<int64_t>(scales_O.size());
  weight.num_in = 1;
  weight.bits = 8;
  weight.scale_dtype = DType::F32;
  weight.codes_OI.assign(scales_O.size(), 200);
  weight.scales_OG = std::move(scales_O);
  return weight;
}

QuantizedWeight written_and_read(const QuantizedWeight& weight) {
  const std::vector<OwnedTensor> tensors = pack_bitsandbytes_int8(weight, "m");
  std::vector<TensorView> views;
  for (const OwnedTensor& tensor : tensors) views.push_back({tensor.dtype, tensor.shape, tensor.data});
  return unpack_bitsandbytes_int8({&views[0], &views[1], &views[2]}, weight.num_out, weight.num_in, "m");
}

TEST(BitsAndBytesInt8, ScalesSurviveTheDivisionBy127) {
  std::mt19937 generator(4);
  std::vector<float> scales = {0.0f};
  for (int i = 0; i < 20000; ++i) {
    const float value =
        std::ldexp(1.0f + static_cast<float>(generator() & 0x7fffff) * 0x1p-23f, -static_cast<int>(i % 20));
    scales.push_back(value / 127.0f);
    scales.push_back(round_to(value, DType::BF16));
    scales.push_back(round_to(value, DType::F16));
  }
  const QuantizedWeight weight = weight_with_scales(scales);
  const QuantizedWeight back = written_and_read(weight);
  EXPECT_EQ(back.scales_OG, scales);
  EXPECT_EQ(back.codes_OI, weight.codes_OI);
}

TEST(BitsAndBytesInt8, WritingRefusesWhatTheContainerCannotHold) {
  // Some float32 values are not 1/127 of any float32. One is found by trying.
  float hole = 1.0f;
  const auto has_absmax = [](float scale) {
    for (const int step : {-2, -1, 0, 1, 2}) {
      if (std::bit_cast<float>(std::bit_cast<uint32_t>(scale * 127.0f) + step) / 127.0f == scale) return true;
    }
    return false;
  };
  while (has_absmax(hole)) hole = std::nextafter(hole, 2.0f);
  const auto refused = [](QuantizedWeight weight, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { pack_bitsandbytes_int8(weight, "m"); }, parts);
  };
  refused(weight_with_scales({1.0f, hole}), {"'m'", "row 1", "127", "int-quantized"});
  refused(weight_with_scales({1.0f, 0.5f, -1.0f}), {"'m'", "row 2", "negative", "int-quantized"});
  QuantizedWeight weight = weight_with_scales({1.0f});
  weight.symmetric = false;
  weight.zeros_OG = {3};
  refused(weight, {"'m'", "zeros"});
  weight = weight_with_scales({1.0f});
  weight.bits = 4;
  weight.codes_OI = {3};
  refused(weight, {"'m'", "8 bits", "found 4"});
  weight = weight_with_scales({1.0f});
  weight.group_size = 1;
  refused(weight, {"'m'", "groups"});
}

TEST(BitsAndBytesConfig, IsReadBack) {
  const std::vector<std::string> skipped = {"lm_head"};
  const std::string text = bitsandbytes_config_json(5.5f, skipped);
  const BitsAndBytesConfig config = BitsAndBytesConfig::parse(text, "config.json");
  EXPECT_EQ(config.scheme.bits, 8);
  EXPECT_EQ(config.scheme.container, kBitsAndBytes);
  EXPECT_EQ(config.scheme.input.type, InputType::int8);
  EXPECT_EQ(config.scheme.input.range, InputRange::token);
  EXPECT_EQ(config.scheme.input.outliers, OutlierRule::absolute);
  EXPECT_EQ(config.scheme.input.outlier_threshold, 5.5f);
  EXPECT_TRUE(config.is_skipped("lm_head"));
  EXPECT_FALSE(config.is_skipped("model.embed_tokens"));
  Json silent = Json::parse(text);
  silent.erase("llm_int8_threshold");
  EXPECT_EQ(BitsAndBytesConfig::parse(silent.dump(), "c").scheme.input.outlier_threshold, 6.0f);
  const BitsAndBytesConfig none = BitsAndBytesConfig::parse(bitsandbytes_config_json(0.0f, {}), "c");
  EXPECT_EQ(none.scheme.input, (InputFormat{.type = InputType::int8, .outliers = OutlierRule::columns}));
  expect_error<std::invalid_argument>([] { bitsandbytes_config_json(-1.0f, {}); }, {"threshold"});
}

TEST(BitsAndBytesConfig, EverythingUnsupportedIsRefusedByName) {
  const auto refused = [](const char* key, const Json& value, std::initializer_list<std::string> parts) {
    Json config = Json::parse(bitsandbytes_config_json(6.0f, {}));
    config[key] = value;
    expect_error<std::invalid_argument>([&] { BitsAndBytesConfig::parse(config.dump(), "config.json"); }, parts);
  };
  refused("load_in_8bit", false, {"'config.json'", "load_in_8bit", "false"});
  refused("load_in_4bit", true, {"load_in_4bit"});
  refused("llm_int8_threshold", -1, {"llm_int8_threshold", "-1"});
  refused("llm_int8_threshold", "6", {"llm_int8_threshold", "\"6\""});
  refused("llm_int8_skip_modules", "lm_head", {"llm_int8_skip_modules", "array"});
  refused("quant_method", "awq", {"quant_method", "awq"});
  expect_error<std::invalid_argument>([] { BitsAndBytesConfig::parse("", "config.json"); }, {"not valid JSON"});
}

}  // namespace
}  // namespace pare
