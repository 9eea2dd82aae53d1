#include "runtime/containers/compressed_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

struct PackedCase {
  int bits;
  const char* strategy;
  bool symmetric;
};

std::string case_name(const testing::TestParamInfo<PackedCase>& info) {
  return "w" + std::to_string(info.param.bits) + "_" + info.param.strategy +
         (info.param.symmetric ? "_symmetric" : "_asymmetric");
}

// The output of compressed-tensors' own compressor for random weights (make_formats.py), with its own decompression.
class PackedGolden : public testing::TestWithParam<PackedCase> {
 protected:
  void SetUp() override {
    const std::string key = "w" + std::to_string(GetParam().bits) + "." + GetParam().strategy + "." +
                            (GetParam().symmetric ? "symmetric." : "asymmetric.");
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name.starts_with(key)) parts_[name.substr(name.rfind('.') + 1)] = tensor;
    }
    ASSERT_TRUE(parts_.contains("weight_packed")) << key;
    std::memcpy(shape_, parts_["weight_shape"].data.data(), sizeof(shape_));
    scheme_.bits = GetParam().bits;
    scheme_.group_size = std::string(GetParam().strategy) == "group" ? 32 : kPerChannel;
    scheme_.symmetric = GetParam().symmetric;
  }

  const TensorView* part(const std::string& name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? nullptr : &found->second;
  }

  QuantizedWeight unpack() const {
    return unpack_compressed_tensors({.packed = part("weight_packed"),
                                      .scale = part("weight_scale"),
                                      .shape = part("weight_shape"),
                                      .zero_point = part("weight_zero_point")},
                                     scheme_, shape_[0], shape_[1], "m");
  }

  SafetensorsFile file_ =
      SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/formats/packed.safetensors");
  std::map<std::string, TensorView> parts_;
  PackScheme scheme_;
  int64_t shape_[2] = {};
};

TEST_P(PackedGolden, UnpackingGivesTheCodesZerosAndScales) {
  const QuantizedWeight weight = unpack();
  const auto codes = std::as_bytes(std::span(weight.codes_OI));
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), parts_["codes"].data.begin(), parts_["codes"].data.end()));
  const auto zeros = std::as_bytes(std::span(weight.zeros_OG));
  if (!scheme_.symmetric) {
    EXPECT_TRUE(std::equal(zeros.begin(), zeros.end(), parts_["zeros"].data.begin(), parts_["zeros"].data.end()));
  }
  EXPECT_EQ(weight.scale_dtype, parts_["weight_scale"].dtype);
}

// The package multiplies in the type of the scales: it rounds the exact product once to that type.
TEST_P(PackedGolden, DequantizingAgreesWithThePackage) {
  const std::vector<float> ours = dequantize(unpack());
  const TensorView& dense = parts_["dense"];
  std::vector<float> theirs(ours.size());
  convert_to_float(dense.dtype, dense.data, theirs);
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_EQ(round_to(ours[i], dense.dtype), theirs[i]) << i;
}

TEST_P(PackedGolden, PackingGivesThePackagesBytes) {
  const std::vector<OwnedTensor> tensors = pack_compressed_tensors(unpack(), "m");
  EXPECT_EQ(tensors.size(), scheme_.symmetric ? 3u : 4u);
  for (const OwnedTensor& tensor : tensors) {
    ASSERT_TRUE(tensor.name.starts_with("m."));
    const TensorView* expected = part(tensor.name.substr(2));
    ASSERT_NE(expected, nullptr) << tensor.name;
    EXPECT_EQ(tensor.dtype, expected->dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, expected->shape) << tensor.name;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected->data.begin(), expected->data.end()))
        << tensor.name;
  }
}

std::vector<PackedCase> all_cases() {
  std::vector<PackedCase> cases;
  for (int bits : {2, 3, 4, 8}) {
    for (const char* strategy : {"group", "channel"}) {
      for (bool symmetric : {true, false}) cases.push_back({bits, strategy, symmetric});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PackedGolden, testing::ValuesIn(all_cases()), case_name);

// --- int-quantized and float-quantized ---

struct PlainCase {
  const char* name;  // the name in make_formats.py
  PackScheme scheme;
};

std::vector<PlainCase> plain_cases() {
  const auto scheme = [](int bits, bool is_float, int64_t group_size, bool per_tensor, bool symmetric) {
    return PackScheme{
        .code = is_float ? &kFp8Code : &kIntegerCode,
        .bits = bits,
        .group_size = group_size,
        .symmetric = symmetric,
        .layout = is_float ? CodeLayout::packed : CodeLayout::bytes,
        .per_tensor = per_tensor,
        .input = {
            .type = is_float ? InputType::fp8 : InputType::int8, .range = InputRange::static_, .symmetric = symmetric}};
  };
  return {{"int8.channel.symmetric", scheme(8, false, kPerChannel, false, true)},
          {"int8.tensor.symmetric", scheme(8, false, kPerChannel, true, true)},
          {"int8.channel.asymmetric", scheme(8, false, kPerChannel, false, false)},
          {"int8.tensor.asymmetric", scheme(8, false, kPerChannel, true, false)},
          {"int4.group.symmetric", scheme(4, false, 32, false, true)},
          {"int4.group.asymmetric", scheme(4, false, 32, false, false)},
          {"float8.channel.symmetric", scheme(8, true, kPerChannel, false, true)},
          {"float8.tensor.symmetric", scheme(8, true, kPerChannel, true, true)}};
}

std::string plain_name(const testing::TestParamInfo<PlainCase>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// The output of compressed-tensors' compressors for random weights, with their own decompression.
class PlainGolden : public testing::TestWithParam<PlainCase> {
 protected:
  static constexpr int64_t kOut = 10, kIn = 96;

  void SetUp() override {
    const std::string key = std::string(GetParam().name) + ".";
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name.starts_with(key)) parts_[name.substr(key.size())] = tensor;
    }
    ASSERT_TRUE(parts_.contains("weight")) << key;
  }
  const TensorView* part(const std::string& name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? nullptr : &found->second;
  }
  PackedTensors tensors() const {
    return {.packed = part("weight_packed"),
            .scale = part("weight_scale"),
            .shape = part("weight_shape"),
            .zero_point = part("weight_zero_point"),
            .group_index = part("weight_g_idx"),
            .plain = part("weight"),
            .input_scale = part("input_scale"),
            .input_zero_point = part("input_zero_point")};
  }
  StoredLinear unpack() const { return unpack_compressed_linear(tensors(), scheme_, kOut, kIn, "m"); }

  SafetensorsFile file_ = SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/formats/plain.safetensors");
  std::map<std::string, TensorView> parts_;
  PackScheme scheme_ = GetParam().scheme;
};

TEST_P(PlainGolden, DequantizingAgreesWithThePackage) {
  const StoredLinear linear = unpack();
  const std::vector<float> ours = dequantize(linear.weight);
  std::vector<float> theirs(ours.size());
  convert_to_float(parts_["dense"].dtype, parts_["dense"].data, theirs);
  // The package multiplies in the type of the scales: our exact product, rounded once to that type.
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_EQ(round_to(ours[i], parts_["dense"].dtype), theirs[i]) << i;
  EXPECT_EQ(input_scheme(linear.input), scheme_.input);
  EXPECT_EQ(linear.input.scale, 0.125f);
  EXPECT_EQ(linear.input.zero, scheme_.symmetric ? 0 : -3);
}

TEST_P(PlainGolden, PackingGivesThePackagesBytes) {
  const std::vector<OwnedTensor> packed = pack_compressed_tensors(unpack(), scheme_, "m");
  EXPECT_EQ(packed.size() + 1, parts_.size());  // all parts except `dense`
  for (const OwnedTensor& tensor : packed) {
    const TensorView* expected = part(tensor.name.substr(2));
    ASSERT_NE(expected, nullptr) << tensor.name;
    EXPECT_EQ(tensor.dtype, expected->dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, expected->shape) << tensor.name;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected->data.begin(), expected->data.end()))
        << tensor.name;
  }
}

TEST_P(PlainGolden, ReadingRefusesWhatDoesNotFit) {
  const auto refused = [this](const std::string& name, const std::function<void(TensorView&)>& damage,
                              std::initializer_list<std::string> messages) {
    const std::map<std::string, TensorView> whole = parts_;
    damage(parts_[name]);
    expect_error<std::runtime_error>([&] { unpack(); }, messages);
    parts_ = whole;
  };
  for (const auto& [name, tensor] : std::map<std::string, TensorView>(parts_)) {
    if (name == "dense") continue;
    refused(name, [](TensorView& t) { t.shape.push_back(1); }, {"'m." + name + "'", "expected", "found"});
    refused(name, [](TensorView& t) { t.dtype = DType::I32; }, {"'m." + name + "'", "found I32"});
    refused(name, [this, name = name](TensorView&) { parts_.erase(name); }, {"'m." + name + "'", "missing"});
  }
  static const std::vector<std::byte> ones(static_cast<size_t>(kOut * kIn), std::byte{0xff});
  refused("input_scale", [](TensorView& t) { t.data = std::span(ones).first(t.data.size()); },
          {"input_scale", "positive"});
  refused("weight_scale", [](TensorView& t) { t.data = std::span(ones).first(t.data.size()); }, {"'m'", "scale"});
  if (scheme_.code == &kFp8Code) {
    refused("weight", [](TensorView& t) { t.data = ones; }, {"'m'", "[0, 0]", "NaN"});
  } else if (scheme_.bits == 4) {
    static const std::vector<std::byte> eights(ones.size(), std::byte{8});  // one more than the largest value
    refused("weight", [](TensorView& t) { t.data = eights; }, {"'m'", "code 16"});
  }
  for (const char* stray : {"weight_packed", "weight_shape", "weight_g_idx"}) {
    refused(stray, [](TensorView&) {}, {std::string("'m.") + stray + "'", "unexpected"});
  }
  if (scheme_.symmetric) refused("weight_zero_point", [](TensorView&) {}, {"weight_zero_point", "symmetric"});
  scheme_.input = {};
  refused("dense", [](TensorView&) {}, {"input_scale", "unexpected"});
}

INSTANTIATE_TEST_SUITE_P(All, PlainGolden, testing::ValuesIn(plain_cases()), plain_name);

TEST(CompressedTensors, WritingRefusesASchemeThatIsNotTheWeights) {
  StoredLinear linear;
  QuantizedWeight weight;
  weight.num_out = 2;
  weight.num_in = 4;
  weight.bits = 8;
  weight.codes_OI.resize(8);
  weight.scales_OG = {1, 2};
  linear.weight = weight;
  const PackScheme channel{.bits = 8, .layout = CodeLayout::bytes};
  const auto refused = [&](const PackScheme& scheme, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { pack_compressed_tensors(linear, scheme, "m"); }, parts);
  };
  EXPECT_NO_THROW(pack_compressed_tensors(linear, channel, "m"));
  PackScheme other = channel;
  other.per_tensor = true;
  refused(other, {"'m'", "one scale", "1.0", "2.0", "row 1"});
  other = channel;
  other.bits = 4;
  refused(other, {"'m'", "expected 4 bits", "found 8 bits"});
  other = channel;
  other.code = &kFp8Code;
  refused(other, {"'m'", "fp8"});
  other = channel;
  other.input.type = InputType::int8;
  refused(other, {"'m'", "activations"});
  other.input = {.type = InputType::int8, .range = InputRange::static_, .symmetric = false};
  linear.input = other.input;
  linear.input.scale = 0.5f;
  linear.input.zero = 128;
  refused(other, {"'m'", "[-128, 127]", "128"});
  linear.input.zero = -128;
  EXPECT_EQ(pack_compressed_tensors(linear, other, "m").size(), 4u);
  linear.input.scale = 0.1f;
  refused(other, {"'m'", "0.1", "BF16"});
  linear.input = {};
  linear.weight.code = &kFp8Code;
  refused(channel, {"'m'", "int", "found fp8"});
}

// --- codes of 4 bits that are floats (formats_python_test.cpp has the package read them) ---

// The tensors of one weight of such a code. Tests damage them one by one.
struct Fp4Tensors {
  QuantizedWeight weight;
  PackScheme scheme;
  std::vector<OwnedTensor> owned;
  std::map<std::string, TensorView> views;

  explicit Fp4Tensors(const WeightCode& code) : scheme{.code = &code, .bits = 4, .group_size = code.block} {
    weight.num_out = 3;
    weight.num_in = 64;
    weight.code = &code;
    weight.bits = 4;
    weight.group_size = code.block;
    weight.scale_dtype = *code.scale_dtype;
    if (code.has_tensor_scale) weight.tensor_scale = 1234.5f;
    for (int i = 0; i < 3 * 64; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(i * 7 % 16));
    for (int i = 0; i < 3 * weight.num_groups(); ++i) weight.scales_OG.push_back(static_cast<float>(1 << i % 5));
    owned = pack_compressed_tensors(StoredLinear{.weight = weight}, scheme, "m");
    for (const OwnedTensor& tensor : owned) views[tensor.name.substr(2)] = {tensor.dtype, tensor.shape, tensor.data};
  }
  QuantizedWeight unpack() const {
    const auto view = [&](const char* name) {
      const auto found = views.find(name);
      return found == views.end() ? nullptr : &found->second;
    };
    return unpack_compressed_tensors({.packed = view("weight_packed"),
                                      .scale = view("weight_scale"),
                                      .shape = view("weight_shape"),
                                      .zero_point = view("weight_zero_point"),
                                      .group_index = view("weight_g_idx"),
                                      .plain = view("weight"),
                                      .global_scale = view("weight_global_scale")},
                                     scheme, weight.num_out, weight.num_in, "m");
  }
};

TEST(CompressedTensors, Fp4CodesAreReadBack) {
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
    const Fp4Tensors tensors(*code);
    const QuantizedWeight back = tensors.unpack();
    EXPECT_EQ(back.codes_OI, tensors.weight.codes_OI);
    EXPECT_EQ(back.scales_OG, tensors.weight.scales_OG);
    EXPECT_EQ(back.tensor_scale, tensors.weight.tensor_scale);
    EXPECT_EQ(back.code, code);
    EXPECT_EQ(tensors.views.at("weight_packed").shape, (std::vector<int64_t>{3, 32}));
    // The first code of a byte lies in its lower half.
    EXPECT_EQ(std::to_integer<int>(tensors.views.at("weight_packed").data[0]), 0 | 7 << 4);
    EXPECT_EQ(tensors.views.at("weight_scale").dtype, code == &kNvfp4Code ? DType::F8_E4M3 : DType::U8);
  }
}

TEST(CompressedTensors, Fp4TensorsThatDoNotFitAreRefused) {
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
    const auto refused = [&](const std::string& name, const auto& change, std::initializer_list<std::string> parts) {
      SCOPED_TRACE(std::string(code->name) + " " + name);
      Fp4Tensors tensors(*code);
      change(tensors.views[name]);
      expect_error<std::runtime_error>([&] { tensors.unpack(); }, parts);
    };
    std::vector<std::string> names = {"weight_packed", "weight_scale"};
    if (code->has_tensor_scale) names.push_back("weight_global_scale");
    for (const std::string& name : names) {
      refused(name, [](TensorView& t) { t.shape[0] += 1; }, {"'m." + name + "'", "expected", "found"});
      refused(name, [](TensorView& t) { t.dtype = DType::BF16; }, {"'m." + name + "'", "found BF16"});
      Fp4Tensors tensors(*code);
      tensors.views.erase(name);
      expect_error<std::runtime_error>([&] { tensors.unpack(); }, {"'m." + name + "'", "missing"});
    }
    static const std::vector<std::byte> ones(64, std::byte{0xff});
    refused("weight_scale", [](TensorView& t) { t.data = std::span(ones).first(t.data.size()); },
            {"'m'", "scale", "not finite"});
    for (const char* name : {"weight", "weight_shape", "weight_zero_point", "weight_g_idx"}) {
      refused(name,
              [](TensorView& t) {
                t = {DType::I32, {1}, std::span(ones).first(4)};
              },
              {"'m." + std::string(name) + "'", "unexpected"});
    }
    if (!code->has_tensor_scale) {
      refused("weight_global_scale",
              [](TensorView& t) {
                t = {DType::F32, {1}, std::span(ones).first(4)};
              },
              {"'m.weight_global_scale'", "unexpected", "mxfp4-pack-quantized"});
    }
    Fp4Tensors tensors(*code);
    tensors.weight.num_in = 40;
    expect_error<std::runtime_error>([&] { tensors.unpack(); }, {"'m'", "40"});
  }
  for (const float scale :
       {0.0f, -1.0f, 1e-40f, 3e38f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Fp4Tensors tensors(kNvfp4Code);
    tensors.views["weight_global_scale"].data = std::as_bytes(std::span(&scale, 1));
    expect_error<std::runtime_error>([&] { tensors.unpack(); }, {"'m'", "a positive scale", "whole weight"});
  }
  // Scales that become infinite when they are divided by that of the whole weight.
  Fp4Tensors tensors(kNvfp4Code);
  const float smallest = std::numeric_limits<float>::min();
  tensors.views["weight_global_scale"].data = std::as_bytes(std::span(&smallest, 1));
  expect_error<std::runtime_error>([&] { tensors.unpack(); }, {"'m'", "scale inf", "not finite"});
}

TEST(CompressedTensors, TheFactorOfNvfp4InputsIsReadBack) {
  Fp4Tensors tensors(kNvfp4Code);
  PackScheme scheme = tensors.scheme;
  scheme.input.type = InputType::nvfp4;
  StoredLinear linear{.weight = tensors.weight, .input = scheme.input};
  linear.input.scale = 123.456f;  // no BF16 number
  const std::vector<OwnedTensor> owned = pack_compressed_tensors(linear, scheme, "m");
  std::map<std::string, TensorView> views;
  for (const OwnedTensor& tensor : owned) views[tensor.name.substr(2)] = {tensor.dtype, tensor.shape, tensor.data};
  EXPECT_EQ(views.size(), 4u);
  const TensorView& factor = views.at("input_global_scale");
  EXPECT_EQ(factor.dtype, DType::F32);
  EXPECT_EQ(factor.shape, std::vector<int64_t>{1});
  PackedTensors stored{.packed = &views.at("weight_packed"),
                       .scale = &views.at("weight_scale"),
                       .global_scale = &views.at("weight_global_scale"),
                       .input_global_scale = &factor};
  const auto unpack = [&] { return unpack_compressed_linear(stored, scheme, 3, 64, "m"); };
  const StoredLinear back = unpack();
  EXPECT_EQ(back.input, linear.input);
  EXPECT_EQ(back.weight.codes_OI, tensors.weight.codes_OI);
  const TensorView narrow{DType::BF16, {1}, factor.data.first(2)};
  stored.input_global_scale = &narrow;
  expect_error<std::runtime_error>([&] { unpack(); }, {"'m.input_global_scale'", "F32", "found BF16"});
  stored.input_global_scale = nullptr;
  expect_error<std::runtime_error>([&] { unpack(); }, {"'m.input_global_scale'", "missing"});
  for (const float scale : {0.0f, -1.0f, 1e-40f, 2e38f, std::numeric_limits<float>::infinity()}) {
    const TensorView wrong{DType::F32, {1}, std::as_bytes(std::span(&scale, 1))};
    stored.input_global_scale = &wrong;
    expect_error<std::runtime_error>([&] { unpack(); }, {"'m.input_global_scale'", "1.2e-38"});
    linear.input.scale = scale;
    expect_error<std::runtime_error>([&] { pack_compressed_tensors(linear, scheme, "m"); }, {"'m.input_global_scale'"});
  }
  stored.input_global_scale = stored.input_scale = &factor;
  expect_error<std::runtime_error>([&] { unpack(); }, {"'m.input_scale'", "unexpected"});
  stored.input_scale = nullptr;
  scheme.input = {};
  expect_error<std::runtime_error>([&] { unpack(); }, {"'m.input_global_scale'", "unexpected"});
}

// --- Act-order and refusals, on a weight of the test's own ---

QuantizedWeight small_weight() {
  QuantizedWeight weight;
  weight.num_out = 3;
  weight.num_in = 64;
  weight.bits = 3;
  weight.group_size = 32;
  weight.symmetric = false;
  for (int i = 0; i < 3 * 64; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(i * 5 % 8));
  for (int i = 0; i < 6; ++i) weight.scales_OG.push_back(0.5f + static_cast<float>(i) / 4);
  for (int i = 0; i < 6; ++i) weight.zeros_OG.push_back(static_cast<uint8_t>(i));
  for (int i = 0; i < 64; ++i) weight.group_of_I.push_back(i % 3 == 0);
  return weight;
}

// The packed tensors of small_weight(). Tests damage them one by one.
struct SmallTensors {
  std::vector<OwnedTensor> owned = pack_compressed_tensors(small_weight(), "m");
  std::map<std::string, TensorView> views;
  PackScheme scheme{.bits = 3, .group_size = 32, .symmetric = false, .act_order = StoredActOrder::group};
  int64_t num_out = 3, num_in = 64;

  SmallTensors() {
    for (const OwnedTensor& tensor : owned) views[tensor.name.substr(2)] = {tensor.dtype, tensor.shape, tensor.data};
  }
  const TensorView* view(const std::string& name) const {
    const auto found = views.find(name);
    return found == views.end() ? nullptr : &found->second;
  }
  QuantizedWeight unpack() const {
    return unpack_compressed_tensors({view("weight_packed"), view("weight_scale"), view("weight_shape"),
                                      view("weight_zero_point"), view("weight_g_idx")},
                                     scheme, num_out, num_in, "m");
  }
};

// For inputs alone the container holds the fixed scale and zero. The weight stays where it is.
TEST(CompressedTensors, DenseSchemesStoreTheInputAlone) {
  const PackScheme scheme{.code = nullptr,
                          .bits = kDenseBits,
                          .input = {.type = InputType::int8, .range = InputRange::static_, .symmetric = false}};
  StoredLinear linear{.weight = {}, .input = scheme.input};
  linear.weight.num_out = 2;
  linear.weight.num_in = 3;
  linear.input.scale = 0.125f;
  linear.input.zero = -7;
  const std::vector<OwnedTensor> tensors = pack_compressed_tensors(linear, scheme, "m");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "m.input_scale");
  EXPECT_EQ(tensors[1].name, "m.input_zero_point");
  const std::vector<float> weight(6, 1.0f);
  const auto view = [](DType dtype, std::vector<int64_t> shape, auto& data) {
    return TensorView{dtype, std::move(shape), std::as_bytes(std::span(data))};
  };
  const TensorView plain = view(DType::F32, {2, 3}, weight), scale = view(DType::BF16, {1}, tensors[0].data),
                   zero = view(DType::I8, {1}, tensors[1].data), narrow = view(DType::F32, {3, 2}, weight);
  const PackedTensors stored{.plain = &plain, .input_scale = &scale, .input_zero_point = &zero};
  const StoredLinear back = unpack_compressed_linear(stored, scheme, 2, 3, "m");
  EXPECT_EQ(back.input, linear.input);
  EXPECT_TRUE(back.weight.codes_OI.empty());
  const auto refused = [&](PackedTensors tensors_of_m, std::initializer_list<std::string> words) {
    expect_error<std::runtime_error>([&] { check_compressed_tensors(tensors_of_m, scheme, 2, 3, "m"); }, words);
  };
  refused({.plain = &plain, .input_scale = &scale}, {"m.input_zero_point"});
  refused({.input_scale = &scale, .input_zero_point = &zero}, {"m.weight"});
  refused({.plain = &narrow, .input_scale = &scale, .input_zero_point = &zero}, {"m.weight", "[2, 3]", "[3, 2]"});
  refused({.scale = &scale, .plain = &plain, .input_scale = &scale, .input_zero_point = &zero},
          {"m.weight_scale", "unexpected", "dense"});
}

TEST(CompressedTensors, ActOrderKeepsTheGroupOfEachColumn) {
  const QuantizedWeight weight = small_weight();
  const QuantizedWeight back = SmallTensors().unpack();
  EXPECT_EQ(back.codes_OI, weight.codes_OI);
  EXPECT_EQ(back.scales_OG, weight.scales_OG);
  EXPECT_EQ(back.zeros_OG, weight.zeros_OG);
  EXPECT_EQ(back.group_of_I, weight.group_of_I);
  EXPECT_EQ(back.scale_dtype, DType::BF16);
}

TEST(CompressedTensors, TensorsNeedNoAlignment) {
  SmallTensors tensors;
  std::vector<std::vector<std::byte>> shifted;
  for (auto& [name, view] : tensors.views) {
    std::vector<std::byte>& copy = shifted.emplace_back(view.data.size() + 1);
    std::copy(view.data.begin(), view.data.end(), copy.begin() + 1);
    view.data = std::span(copy).subspan(1);
  }
  EXPECT_EQ(tensors.unpack().codes_OI, small_weight().codes_OI);
}

TEST(CompressedTensors, ReadingRefusesWhatDoesNotFit) {
  const auto refused = [](const std::function<void(SmallTensors&)>& damage, std::initializer_list<std::string> parts) {
    SmallTensors tensors;
    damage(tensors);
    expect_error<std::runtime_error>([&] { tensors.unpack(); }, parts);
  };
  for (const char* name : {"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"}) {
    refused([&](auto& t) { t.views.erase(name); }, {std::string("'m.") + name + "'", "missing"});
    refused([&](auto& t) { t.views[name].dtype = DType::I8; }, {std::string("'m.") + name + "'", "found I8"});
    refused([&](auto& t) { t.views[name].shape.push_back(1); }, {std::string("'m.") + name + "'", "found"});
  }
  refused([](auto& t) { t.views["weight_packed"].shape[1] = 7; },
          {"m.weight_packed", "padded 3-bit layout", "expected the dense one, 6"});
  refused([](auto& t) { t.views["weight_packed"].data = t.views["weight_packed"].data.subspan(4); }, {"size"});
  refused([](auto& t) { t.num_out = 4; }, {"m.weight_shape", "expected [4, 64]", "found [3, 64]"});
  refused([](auto& t) { t.scheme.group_size = 48; }, {"'m'", "48", "does not divide", "64"});
  refused([](auto& t) { t.scheme.group_size = 64; }, {"m.weight_scale", "expected BF16 [3, 1], found BF16 [3, 2]"});
  refused([](auto& t) { t.scheme.symmetric = true; }, {"m.weight_zero_point", "unexpected", "symmetric: true"});
  refused([](auto& t) { t.scheme.act_order = StoredActOrder::weight; }, {"m.weight_g_idx", "unexpected", "actorder"});
  refused([](auto& t) { t.scheme.bits = 4; }, {"m.weight_packed", "expected I32 [3, 8], found I32 [3, 6]"});
  static const std::vector<std::byte> ones(64 * 4, std::byte{0xff});
  refused([](auto& t) { t.views["weight_scale"].data = std::span(ones).first(12); }, {"'m'", "scale", "not finite"});
  refused([](auto& t) { t.views["weight_g_idx"].data = ones; }, {"'m'", "column 0 names group -1"});
}

TEST(CompressedTensors, WritingRefusesScalesThatTheirTypeCannotHold) {
  QuantizedWeight weight = small_weight();
  weight.scales_OG[4] = 1.001f;
  expect_error<std::invalid_argument>([&] { pack_compressed_tensors(weight, "m"); }, {"'m'", "1.001", "BF16"});
  weight.scales_OG[4] = 1e6f;  // infinite in F16
  weight.scale_dtype = DType::F16;
  expect_error<std::invalid_argument>([&] { pack_compressed_tensors(weight, "m"); }, {"'m'", "F16"});
  weight.codes_OI[0] = 8;
  expect_error<std::runtime_error>([&] { pack_compressed_tensors(weight, "m"); }, {"'m'", "code 8"});
}

}  // namespace
}  // namespace pare
