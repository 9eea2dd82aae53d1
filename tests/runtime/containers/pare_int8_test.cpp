#include "runtime/containers/pare_int8.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

constexpr int64_t kNumOut = 5, kNumIn = 12;

StoredLinear random_linear(OutlierRule rule, bool symmetric) {
  StoredLinear linear;
  linear.weight.num_out = kNumOut;
  linear.weight.num_in = kNumIn;
  linear.weight.bits = 8;
  linear.weight.scale_dtype = DType::F32;
  linear.input = {.type = InputType::int8, .symmetric = symmetric, .outliers = rule};
  if (rule == OutlierRule::columns) {
    linear.input.outlier_columns = {0, 7, 11};
  } else {
    linear.input.outlier_threshold = 6.125f;
  }
  std::mt19937 random(3);
  for (int64_t i = 0; i < kNumOut * kNumIn; ++i) linear.weight.codes_OI.push_back(1 + random() % 255);
  for (int64_t o = 0; o < kNumOut; ++o) {
    linear.weight.scales_OG.push_back(0.001f * static_cast<float>(1 + random() % 1000));
    for (const int32_t column : linear.input.outlier_columns) {
      linear.weight.codes_OI[o * kNumIn + column] = 128;
      linear.outlier_weight_OJ.push_back(round_to(static_cast<float>(random() % 100) / 7, DType::BF16));
    }
  }
  return linear;
}

PackScheme scheme_of(const StoredLinear& linear) {
  return {
      .bits = 8, .layout = CodeLayout::bytes, .container = std::string(kPareInt8), .input = input_scheme(linear.input)};
}

// Finds the tensors by name, as a reader does.
struct Found {
  std::vector<OwnedTensor> owned;
  std::vector<TensorView> views;

  explicit Found(std::vector<OwnedTensor> tensors) : owned(std::move(tensors)) {
    for (const OwnedTensor& tensor : owned) views.push_back({tensor.dtype, tensor.shape, tensor.data});
  }
  TensorView* at(const std::string& name) {
    for (size_t i = 0; i < owned.size(); ++i) {
      if (owned[i].name == name) return &views[i];
    }
    return nullptr;
  }
  PareInt8Tensors tensors() {
    return {at("m.weight"), at("m.weight_scale"), at("m.outlier_columns"), at("m.outlier_weight"),
            at("m.input_threshold")};
  }
};

TEST(PareInt8, EveryLinearIsReadBackBitByBit) {
  for (const OutlierRule rule : {OutlierRule::absolute, OutlierRule::relative, OutlierRule::columns}) {
    for (const bool symmetric : {true, false}) {
      const StoredLinear linear = random_linear(rule, symmetric);
      const PackScheme scheme = scheme_of(linear);
      Found found(pack_pare_int8(linear, scheme, "m"));
      EXPECT_EQ(found.owned.size(), rule == OutlierRule::columns ? 4u : 3u);
      ASSERT_NE(found.at("m.weight"), nullptr);
      EXPECT_EQ(found.at("m.weight")->dtype, DType::I8);
      EXPECT_EQ(static_cast<int8_t>(found.at("m.weight")->data[1]), linear.weight.codes_OI[1] - 128);
      const StoredModule module = {.name = "m", .scheme = scheme};
      const auto config = PareInt8Config::parse(pare_int8_config_json({&module, 1}, {}), "config.json");
      PackScheme read = config.scheme;
      EXPECT_EQ(read.input.symmetric, symmetric);
      EXPECT_EQ(read.input.outliers, rule);
      const StoredLinear back = unpack_pare_int8(found.tensors(), read, kNumOut, kNumIn, "m");
      EXPECT_EQ(back.weight.codes_OI, linear.weight.codes_OI);
      EXPECT_EQ(back.weight.scales_OG, linear.weight.scales_OG);
      EXPECT_EQ(back.input, linear.input);
      EXPECT_EQ(back.outlier_weight_OJ, linear.outlier_weight_OJ);
    }
  }
}

TEST(PareInt8, ALinearWithoutOutlierColumnsHasNoTensorsForThem) {
  StoredLinear linear = random_linear(OutlierRule::columns, true);
  linear.input.outlier_columns.clear();
  linear.outlier_weight_OJ.clear();
  Found found(pack_pare_int8(linear, scheme_of(linear), "m"));
  EXPECT_EQ(found.owned.size(), 2u);
  const StoredLinear back = unpack_pare_int8(found.tensors(), scheme_of(linear), kNumOut, kNumIn, "m");
  EXPECT_EQ(back.weight.codes_OI, linear.weight.codes_OI);
  EXPECT_TRUE(back.input.outlier_columns.empty());
}

TEST(PareInt8, RefusesTensorsThatDoNotFit) {
  const StoredLinear linear = random_linear(OutlierRule::columns, true);
  const auto refused = [&](const std::string& name, const std::function<void(TensorView&)>& change,
                           std::initializer_list<std::string> parts) {
    Found found(pack_pare_int8(linear, scheme_of(linear), "m"));
    change(*found.at(name));
    expect_error<std::runtime_error>(
        [&] { unpack_pare_int8(found.tensors(), scheme_of(linear), kNumOut, kNumIn, "m"); }, parts);
  };
  refused("m.weight", [](TensorView& t) { t.shape = {kNumIn, kNumOut}; }, {"m.weight", "[5, 12]"});
  refused("m.weight_scale", [](TensorView& t) { t.dtype = DType::BF16; }, {"m.weight_scale", "F32"});
  refused("m.outlier_columns", [](TensorView& t) { t.shape = {0}; }, {"m.outlier_columns", "1 to 12"});
  refused("m.outlier_weight", [](TensorView& t) { t.dtype = DType::I8; }, {"m.outlier_weight", "BF16"});
  std::vector<float> negative(kNumOut, 1.0f);
  negative[3] = -0.25f;
  refused("m.weight_scale", [&](TensorView& t) { t.data = std::as_bytes(std::span(negative)); },
          {"m.weight_scale", "at least 0", "-0.25", "row 3", "damaged"});
  const std::vector<int32_t> unordered = {7, 0, 11};
  refused("m.outlier_columns", [&](TensorView& t) { t.data = std::as_bytes(std::span(unordered)); }, {"ascending"});
  const std::vector<float> infinite(kNumOut * 3, std::numeric_limits<float>::infinity());
  refused("m.outlier_weight",
          [&](TensorView& t) {
            t.dtype = DType::F32;
            t.data = std::as_bytes(std::span(infinite));
          },
          {"m.outlier_weight", "finite"});
  Found found(pack_pare_int8(linear, scheme_of(linear), "m"));
  PareInt8Tensors tensors = found.tensors();
  tensors.outlier_weight = nullptr;
  expect_error<std::runtime_error>([&] { unpack_pare_int8(tensors, scheme_of(linear), kNumOut, kNumIn, "m"); },
                                   {"m.outlier_weight"});
}

TEST(PareInt8, RefusesLinearsThatItCannotHold) {
  const auto refused = [](const std::function<void(StoredLinear&)>& change, std::initializer_list<std::string> parts) {
    StoredLinear linear = random_linear(OutlierRule::columns, true);
    change(linear);
    expect_error<std::invalid_argument>([&] { pack_pare_int8(linear, scheme_of(linear), "m"); }, parts);
  };
  refused([](StoredLinear& l) { l.weight.scale_dtype = DType::BF16; }, {"'m'", "another weight"});
  refused([](StoredLinear& l) { l.weight.scales_OG[1] = -1.0f; }, {"'m'", "negative", "compressed-tensors"});
  refused([](StoredLinear& l) { l.outlier_weight_OJ.pop_back(); }, {"expected 15", "14"});
  refused([](StoredLinear& l) { l.input = {.type = InputType::int8}; }, {"without an outlier rule"});
}

TEST(PareInt8, OneConfigurationHoldsForAllModules) {
  const StoredModule one = {.name = "a", .scheme = scheme_of(random_linear(OutlierRule::columns, true))};
  for (const PackScheme& other :
       {scheme_of(random_linear(OutlierRule::columns, false)), scheme_of(random_linear(OutlierRule::absolute, true))}) {
    const std::vector<StoredModule> modules = {one, {.name = "b", .scheme = other}};
    expect_error<std::invalid_argument>([&] { pare_int8_config_json(modules, {}); }, {"'b'", "'a'"});
  }
  const auto refused = [](const Json& config, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { PareInt8Config::parse(config.dump(), "c.json"); }, parts);
  };
  const Json good = {{"quant_method", "pare-int8"}, {"outliers", "columns"}, {"ignore", {"lm_head"}}};
  EXPECT_TRUE(PareInt8Config::parse(good.dump(), "c.json").is_ignored("lm_head"));
  for (const auto& [key, value, part] :
       std::vector<std::tuple<const char*, Json, const char*>>{{"quant_method", "awq", "quant_method"},
                                                               {"outliers", "some", "\"some\""},
                                                               {"symmetric", "no", "symmetric"},
                                                               {"ignore", "lm_head", "ignore"},
                                                               {"ignore", {1}, "ignore"}}) {
    Json bad = good;
    bad[key] = value;
    refused(bad, {"c.json", part});
  }
}

}  // namespace
}  // namespace pare
