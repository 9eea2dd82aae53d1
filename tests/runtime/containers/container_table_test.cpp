#include "runtime/containers/container_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "runtime/blocks/gguf_encode.h"
#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/containers/pare_int8.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/value_limits.h"
#include "runtime/model/checkpoint.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/row_container.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const InputFormat kTokens{.type = InputType::int8};
const InputFormat kFp8{.type = InputType::fp8};
const InputFormat kNvfp4Inputs{.type = InputType::nvfp4};
const InputFormat kAbsolute{.type = InputType::int8, .outliers = OutlierRule::absolute, .outlier_threshold = 6.0f};
const InputFormat kRelative{.type = InputType::int8, .outliers = OutlierRule::relative, .outlier_threshold = 8.0f};
const InputFormat kColumns{.type = InputType::int8, .outliers = OutlierRule::columns};

InputFormat asymmetric(InputFormat input) {
  input.symmetric = false;
  return input;
}

InputFormat with_range(InputFormat input, InputRange range) {
  input.range = range;
  return input;
}

// Returns the inputs that a sweep tries: every combination, sensible or not.
std::vector<InputFormat> all_inputs() {
  std::vector<InputFormat> inputs = {{}};
  for (const InputFormat& type : {kTokens, kFp8, kNvfp4Inputs}) {
    for (const InputRange range : {InputRange::token, InputRange::tensor, InputRange::static_}) {
      inputs.push_back(with_range(type, range));
      inputs.push_back(asymmetric(with_range(type, range)));
    }
  }
  for (const InputFormat& input : {kAbsolute, kRelative, kColumns}) {
    inputs.push_back(input);
    inputs.push_back(asymmetric(input));
  }
  return inputs;
}

std::vector<std::pair<const WeightCode*, CodeLayout>> all_codes() {
  std::vector<std::pair<const WeightCode*, CodeLayout>> codes = {{nullptr, CodeLayout::packed},
                                                                 {&kIntegerCode, CodeLayout::bytes}};
  for (const WeightCode* code : weight_codes()) codes.emplace_back(code, CodeLayout::packed);
  return codes;
}

std::vector<PackScheme> all_schemes() {
  std::vector<PackScheme> schemes;
  for (const int bits : {2, 3, 4, 5, 6, 8, kDenseBits}) {
    for (const int64_t group_size : {kPerChannel, int64_t{4}, int64_t{16}, int64_t{32}, int64_t{64}}) {
      for (const StoredActOrder order : {StoredActOrder::none, StoredActOrder::weight, StoredActOrder::group}) {
        for (const auto& [code, layout] : all_codes()) {
          // Codes of blocks have one width each, and are so many that others of them would take minutes.
          const bool is_blocks = code != nullptr && code->is_blocks();
          if (is_blocks ? bits != code->width() : bits == 5 || bits == 6) continue;
          for (const bool symmetric : {true, false}) {
            for (const bool per_tensor : {false, true}) {
              for (const InputFormat& input : all_inputs()) {
                schemes.push_back({.code = code,
                                   .bits = bits,
                                   .group_size = group_size,
                                   .symmetric = symmetric,
                                   .act_order = order,
                                   .layout = layout,
                                   .per_tensor = per_tensor,
                                   .input = input});
                if (input.type == InputType::fp8 || input.range == InputRange::tensor) continue;
                schemes.push_back(schemes.back());
                schemes.back().pattern = kTwoOfFour;
              }
            }
          }
        }
      }
    }
  }
  return schemes;
}

// Returns a linear that agrees with the scheme, and whose scales, zeros and columns the containers can hold.
StoredLinear random_linear(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent& extent) {
  std::mt19937 random(static_cast<uint32_t>(num_out * 1000 + num_in));
  StoredLinear linear{.weight = {}, .input = scheme.input, .input_scale_dtype = extent.input_scale_dtype};
  if (scheme.input.has_stored_scale()) {
    linear.input.scale = 0.25f;
    linear.input.zero = scheme.input.symmetric ? 0 : -7;
  }
  QuantizedWeight& weight = linear.weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.pattern = scheme.pattern;
  const auto is_pruned = [&](int64_t i) { return !scheme.pattern.is_dense() && (i + i / num_in) % 3 != 0; };
  if (scheme.is_dense()) {
    if (scheme.has_own_tensor()) return linear;
    std::vector<float> values;
    for (int64_t i = 0; i < num_out * num_in; ++i) values.push_back(is_pruned(i) ? 0.0f : 0.25f * (i % 99));
    linear.dense_dtype = extent.dense_dtype;
    linear.dense_OI.resize(values.size() * dtype_size_bytes(extent.dense_dtype));
    convert_from_float(extent.dense_dtype, values, linear.dense_OI);
    return linear;
  }
  weight.code = scheme.code;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = scheme.code->scale_dtype.value_or(extent.scale_dtype);
  if (scheme.code->is_blocks()) {
    const auto type = static_cast<GgufType>(scheme.code->gguf_type);
    const auto row_bytes = static_cast<size_t>(gguf_row_bytes(type, num_in));
    weight.codes_OI.resize(static_cast<size_t>(num_out) * row_bytes);
    std::vector<float> row(static_cast<size_t>(num_in));
    for (size_t o = 0; o < static_cast<size_t>(num_out); ++o) {
      for (float& value : row) value = 0.01f * static_cast<float>(random() % 199) - 1.0f;
      encode_gguf_row(type, row, {},
                      std::as_writable_bytes(std::span(weight.codes_OI)).subspan(o * row_bytes, row_bytes));
    }
    return linear;
  }
  if (scheme.code->has_tensor_scale) weight.tensor_scale = 3.7f;
  for (int64_t i = 0; i < num_out * num_in; ++i) {
    const auto code = static_cast<uint8_t>(random() & ((1u << scheme.bits) - 1));
    weight.codes_OI.push_back(weight.code == &kFp8Code ? code & 0xfe : code);  // no NaN
    // Where zeros are packed away, -0 becomes +0.
    if (!scheme.pattern.is_dense() && !weight.code->is_integer() && weight.code->value(code) == 0.0f) {
      weight.codes_OI.back() = weight.code->zero_code(scheme.bits);
    }
  }
  const float shared = 0.5f + 0.125f * static_cast<float>(random() % 8);
  for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
    // Exact in every type.
    const float scale = round_to(static_cast<float>(1 + random() % 200) / 64.0f, weight.scale_dtype);
    weight.scales_OG.push_back(scheme.per_tensor ? shared : scheme.container == kBitsAndBytes ? scale / 127 : scale);
    if (scheme.symmetric) continue;
    weight.zeros_OG.push_back(scheme.per_tensor ? 1 : random() & ((1u << scheme.bits) - 1));
    if (scheme.container == kGptq && weight.zeros_OG.back() == 0) weight.zeros_OG.back() = 1;
  }
  if (scheme.act_order == StoredActOrder::group) {
    for (int64_t i = 0; i < num_in; ++i) weight.group_of_I.push_back(static_cast<int32_t>(i % weight.num_groups()));
  }
  for (int64_t i = 0; i < num_out * num_in; ++i) {
    if (!is_pruned(i)) continue;
    const int64_t row = i / num_in;
    weight.codes_OI[static_cast<size_t>(i)] = static_cast<uint8_t>(weight.zero(row, weight.group(i % num_in)));
  }
  if (scheme.input.outliers != OutlierRule::columns || scheme.container == kBitsAndBytes) return linear;
  // The smallest step above 1 of each type, which no narrower type holds.
  const float value = extent.outlier_dtype == DType::F32   ? 1.0f + 0x1p-20f
                      : extent.outlier_dtype == DType::F16 ? 1.0f + 0x1p-10f
                                                           : 1.0f + 0x1p-7f;
  for (int64_t j = 0; j < extent.num_outlier_columns; ++j) {
    linear.input.outlier_columns.push_back(static_cast<int32_t>(j));
    for (int64_t row = 0; row < num_out; ++row) linear.outlier_weight_OJ.push_back(value);
  }
  return linear;
}

// Finds tensors by name.
class Tensors {
 public:
  explicit Tensors(std::vector<OwnedTensor> tensors) : owned_(std::move(tensors)) {
    for (const OwnedTensor& tensor : owned_) views_[tensor.name] = {tensor.dtype, tensor.shape, tensor.data};
  }
  void add(const std::string& name, TensorView view) { views_[name] = std::move(view); }
  FindTensor finder() const {
    return [this](const std::string& name) {
      const auto found = views_.find(name);
      return found == views_.end() ? nullptr : &found->second;
    };
  }
  int64_t num_bytes() const {
    int64_t bytes = 0;
    for (const OwnedTensor& tensor : owned_) bytes += static_cast<int64_t>(tensor.data.size());
    return bytes;
  }
  const std::vector<OwnedTensor>& owned() const { return owned_; }

 private:
  std::vector<OwnedTensor> owned_;
  std::map<std::string, TensorView> views_;
};

void expect_equal(const StoredLinear& found, const StoredLinear& expected) {
  EXPECT_EQ(found.weight.codes_OI, expected.weight.codes_OI);
  EXPECT_EQ(found.weight.scales_OG, expected.weight.scales_OG);
  EXPECT_EQ(found.weight.zeros_OG, expected.weight.zeros_OG);
  EXPECT_EQ(found.weight.group_of_I, expected.weight.group_of_I);
  EXPECT_EQ(found.weight.symmetric, expected.weight.symmetric);
  EXPECT_EQ(found.weight.bits, expected.weight.bits);
  EXPECT_EQ(found.input, expected.input);
  EXPECT_EQ(found.outlier_weight_OJ, expected.outlier_weight_OJ);
  EXPECT_EQ(found.weight.pattern, expected.weight.pattern);
  EXPECT_EQ(found.dense_OI, expected.dense_OI);
}

// Checks that an accepted scheme is stored in the predicted bytes under the listed suffixes. Read back with its own
// configuration, it must be equal. The oracle of the sizes is the tensors.
void check_accepted(const ContainerFormat& container, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    StoredExtent extent) {
  if (container.name() != kCompressedTensors) extent.scale_dtype = container.scale_dtype(DType::BF16);
  const StoredLinear linear = random_linear(scheme, num_out, num_in, extent);
  Tensors tensors(container.store(linear, scheme, "a.m"));
  ASSERT_EQ(container.stored_bytes(scheme, num_out, num_in, extent), tensors.num_bytes());
  const std::span<const std::string_view> suffixes = container.suffixes();
  for (const OwnedTensor& tensor : tensors.owned()) {
    const std::string suffix = tensor.name.substr(3);
    EXPECT_NE(std::find(suffixes.begin(), suffixes.end(), suffix), suffixes.end()) << tensor.name;
  }
  const std::vector<float> dense(static_cast<size_t>(num_out * num_in), 1.0f);
  if (scheme.has_own_tensor())
    tensors.add("a.m.weight", {DType::F32, {num_out, num_in}, std::as_bytes(std::span(dense))});

  const std::vector<StoredModule> modules = {{.name = "a.m", .scheme = scheme}};
  const std::vector<std::string> ignored = {"b.m"};
  const std::string json = container.config_json(modules, ignored);
  const ContainerFormat* recognized = find_container(Json::parse(json).at("quant_method").get<std::string>(), json);
  ASSERT_EQ(recognized, &container);
  const std::unique_ptr<ContainerConfig> config = container.read_config(json, "config.json");
  EXPECT_FALSE(config->scheme_of("b.m", "Linear", tensors.finder()).has_value());
  const std::optional<PackScheme> read = config->scheme_of("a.m", "Linear", tensors.finder());
  ASSERT_TRUE(read.has_value());
  PackScheme stated = scheme;
  stated.input.outlier_threshold = read->input.outlier_threshold;  // may be the linear's own threshold
  EXPECT_EQ(*read, stated);
  container.check(tensors.finder(), *read, num_out, num_in, "a.m");
  expect_equal(container.load(tensors.finder(), *read, num_out, num_in, "a.m"), linear);
}

TEST(ContainerFormat, WhateverIsAcceptedTakesThePredictedBytesAndIsReadBack) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1},   {5, 7},   {8, 32},   {24, 96},
                                                           {11, 64}, {16, 33}, {32, 128}, {3, 256}};
  const std::vector<StoredExtent> extents = {
      {},
      {.scale_dtype = DType::F32, .input_scale_dtype = DType::F32, .num_outlier_columns = 1, .dense_dtype = DType::F32},
      {.scale_dtype = DType::F16, .num_outlier_columns = 1, .outlier_dtype = DType::F32},
      {.num_outlier_columns = 1, .outlier_dtype = DType::F16}};
  const std::vector<PackScheme> schemes = all_schemes();
  std::map<std::string, std::set<int>> bits_of;
  for (const ContainerFormat* container : container_formats()) {
    if (container == &row_container()) continue;
    if (!container->is_for_recipes()) continue;  // fp8_test.cpp and mlx_test.cpp
    size_t num_accepted = 0;
    for (const PackScheme& wanted : schemes) {
      const Acceptance accepted = container->accepts(wanted);
      const PackScheme scheme = container->adapted(wanted);
      ASSERT_EQ(container->adapted(scheme), scheme);
      ASSERT_EQ(scheme.container, container->name());
      ASSERT_EQ(container->accepts(scheme).reason, accepted.reason);
      for (const auto& [num_out, num_in] : shapes) {
        const Acceptance fits = container->accepts(wanted, num_out, num_in);
        if (!accepted) {
          ASSERT_EQ(fits.reason, accepted.reason);
        }
        if (!fits) {
          EXPECT_THROW(container->stored_bytes(wanted, num_out, num_in), std::invalid_argument);
          continue;
        }
        bits_of[std::string(container->name())].insert(scheme.bits);
        const StoredExtent& extent = extents[num_accepted++ % extents.size()];
        SCOPED_TRACE(std::string(container->name()) + ": " + std::to_string(scheme.bits) + " bits, groups " +
                     std::to_string(scheme.group_size) + (scheme.symmetric ? ", symmetric" : ", asymmetric") +
                     ", code " + code_name(scheme.code, scheme.bits) + ", layout " +
                     std::string(name_of(scheme.layout)) + ", order " +
                     std::to_string(static_cast<int>(scheme.act_order)) + ", input " + input_format_name(scheme.input) +
                     ", [" + std::to_string(num_out) + ", " + std::to_string(num_in) + "]");
        check_accepted(*container, scheme, num_out, num_in, extent);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GE(num_accepted, shapes.size() / 2) << container->name();
  }
  EXPECT_EQ(bits_of, (std::map<std::string, std::set<int>>{{"compressed-tensors", {2, 3, 4, 8, kDenseBits}},
                                                           {"awq-gemm", {4}},
                                                           {"gptq", {2, 3, 4, 8}},
                                                           {"gptq-v2", {2, 3, 4, 8}},
                                                           {"bitsandbytes", {8}},
                                                           {"bitsandbytes-nf4", {4}},
                                                           {"pare-gguf", {2, 3, 4, 5, 6, 8}},
                                                           {"pare-int8", {8}},
                                                           {"pare-sparse24", {2, 3, 4, 8, kDenseBits}}}));
}

// The sizes are computed by hand.
TEST(ContainerFormat, SizesOfKnownLayers) {
  const auto bytes = [](std::string_view name, const PackScheme& scheme, const StoredExtent& extent = {}) {
    return container_format(name).stored_bytes(scheme, 64, 256, extent);
  };
  constexpr int64_t kWeights = 64 * 256;
  EXPECT_EQ(bytes("compressed-tensors", {.bits = 4, .group_size = 128}), kWeights / 2 + 64 * 2 * 2 + 16);
  EXPECT_EQ(bytes("compressed-tensors", {.bits = 3, .group_size = 128, .symmetric = false}),
            kWeights * 3 / 8 + 64 * 2 * 2 + 16 + 64 * 3 / 8 * 2);
  EXPECT_EQ(bytes("compressed-tensors", {.bits = 8, .input = kTokens}), kWeights + 64 * 2);  // int-quantized
  EXPECT_EQ(bytes("compressed-tensors", {.bits = 8, .per_tensor = true}, {.scale_dtype = DType::F32}), kWeights + 4);
  EXPECT_EQ(bytes("compressed-tensors",
                  {.code = nullptr, .bits = kDenseBits, .input = asymmetric(with_range(kTokens, InputRange::static_))}),
            2 + 1);
  EXPECT_EQ(bytes("awq-gemm", {.bits = 4, .group_size = 128}), kWeights / 2 + 2 * 64 / 2 + 2 * 64 * 2);
  EXPECT_EQ(bytes("gptq", {.bits = 4, .group_size = 128}), kWeights / 2 + 2 * 64 / 2 + 2 * 64 * 2 + 256 * 4);
  EXPECT_EQ(bytes("gptq-v2", {.bits = 3, .symmetric = false}), kWeights * 3 / 8 + 64 * 3 / 8 + 64 * 2 + 256 * 4);
  EXPECT_EQ(bytes("bitsandbytes", {.bits = 8, .input = kAbsolute}), kWeights + 64 * 4 + 1);
  EXPECT_EQ(bytes("pare-int8", {.bits = 8, .input = kRelative}), kWeights + 64 * 4 + 4);
  EXPECT_EQ(bytes("pare-int8", {.bits = 8, .input = kColumns}, {.num_outlier_columns = 10}),
            kWeights + 64 * 4 + 10 * 4 + 10 * 64 * 2);
  PackScheme sparse{.bits = 4, .group_size = 128, .pattern = kTwoOfFour};
  EXPECT_EQ(bytes("pare-sparse24", sparse), kWeights / 4 + kWeights / 8 + 64 * 2 * 2);
  sparse.symmetric = false;
  EXPECT_EQ(bytes("pare-sparse24", sparse), kWeights / 4 + kWeights / 8 + 64 * 2 * 2 + 64 * 2 / 2);
  EXPECT_EQ(bytes("pare-sparse24", {.bits = 3, .group_size = 128}), kWeights * 3 / 8 + 64 * 2 * 2);
  EXPECT_EQ(bytes("pare-sparse24", {.code = nullptr, .bits = kDenseBits, .pattern = kTwoOfFour}),
            kWeights + kWeights / 8);
}

TEST(ContainerFormat, RefusesWithWhatIsExpectedAndWhatWouldFit) {
  const auto refused = [](std::string_view name, const PackScheme& scheme, std::initializer_list<std::string> parts,
                          int64_t num_out = 64, int64_t num_in = 256) {
    const Acceptance found = container_format(name).accepts(scheme, num_out, num_in);
    EXPECT_FALSE(found) << name;
    for (const std::string& part : parts) {
      EXPECT_NE(found.reason.find(part), std::string::npos) << "expected '" << part << "' in: " << found.reason;
    }
  };
  const PackScheme groups{.bits = 4, .group_size = 128};
  PackScheme changed = groups;
  EXPECT_TRUE(container_format("awq-gemm").accepts(groups, 64, 256));
  changed.bits = 3;
  refused("awq-gemm", changed, {"expected 4 bits", "found 3", "pack-quantized"});
  changed = groups;
  changed.act_order = StoredActOrder::group;
  refused("awq-gemm", changed, {"act-order", "groups"});
  changed.act_order = StoredActOrder::weight;
  EXPECT_TRUE(container_format("awq-gemm").accepts(changed, 64, 256));
  changed.input = kTokens;
  refused("awq-gemm", changed, {"inputs that are not rounded", "a8"});
  refused("awq-gemm", groups, {"multiple of 8", "found 60"}, 60);
  refused("awq-gemm", groups, {"group size 128", "does not divide", "100"}, 64, 100);
  refused("awq-gemm", groups, {"impossible shape"}, 0);

  // One scale per tensor goes with one byte per weight, whatever the bits are.
  refused("compressed-tensors", {.bits = 4, .per_tensor = true}, {"per tensor", "expected 8", "found 4", "channel"});
  refused("compressed-tensors", {.bits = 4, .layout = CodeLayout::bytes}, {"found 4", "pack-quantized"});
  EXPECT_TRUE(container_format("compressed-tensors").accepts({.bits = 8, .per_tensor = true}));
  refused("compressed-tensors", {.bits = 8, .input = kAbsolute}, {"cannot hold outliers"});
  refused("compressed-tensors", {.bits = 5}, {"5 bits"});

  refused("bitsandbytes", groups, {"expected 8 bits", "found 4", "pack-quantized"});
  refused("bitsandbytes", {.bits = 8}, {"inputs", "found float", "compressed-tensors"});
  refused("bitsandbytes", {.bits = 8, .input = kRelative}, {"absolute", "pare-int8"});
  refused("bitsandbytes", {.bits = 8, .input = asymmetric(kAbsolute)}, {"symmetric", "pare-int8"});
  refused("pare-int8", {.bits = 8, .input = kTokens}, {"without an outlier rule", "compressed-tensors"});
  refused("pare-int8", {.bits = 8, .group_size = 32, .input = kAbsolute}, {"another weight", "compressed-tensors"});
}

// Containers accept such schemes, and store some of their linears.
TEST(ContainerFormat, ValuesThatAContainerDoesNotHoldAreNamed) {
  for (const ContainerFormat* container : container_formats()) {
    for (const PackScheme& wanted : {PackScheme{.bits = 4, .group_size = 16, .symmetric = false},
                                     PackScheme{.bits = 8, .input = kColumns}, PackScheme{.bits = 8}}) {
      const PackScheme scheme = container->adapted(wanted);
      const bool depends_on_values = (container->name() == kGptq && !scheme.symmetric) ||
                                     (container->name() == kBitsAndBytes && scheme.input.has_outliers());
      EXPECT_EQ(!holds_all(*container, scheme), depends_on_values) << container->name();
    }
  }
  const PackScheme zeros = gptq_container().adapted({.bits = 4, .group_size = 16, .symmetric = false});
  StoredLinear linear = random_linear(zeros, 32, 32, {.scale_dtype = DType::F16});
  EXPECT_TRUE(holds(gptq_container(), linear, zeros));
  linear.weight.zeros_OG[2 * 5 + 1] = 0;
  const auto refused = [&](const ContainerFormat& container, const PackScheme& scheme,
                           std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { container.store(linear, scheme, "a.m"); }, words);
    EXPECT_FALSE(holds(container, linear, scheme));
  };
  refused(gptq_container(), zeros, {"'a.m'", "row 5, group 1", "a zero of 0", "gptq-v2"});
  PackScheme second = zeros;
  second.container = kGptqV2;
  EXPECT_TRUE(holds(gptq_v2_container(), linear, second));

  const PackScheme columns = bitsandbytes_int8_container().adapted({.bits = 8, .input = kColumns});
  linear = random_linear(columns, 32, 32, {.scale_dtype = DType::F32});
  EXPECT_TRUE(holds(bitsandbytes_int8_container(), linear, columns));
  linear.weight.scales_OG[3] *= -1.0f;
  refused(bitsandbytes_int8_container(), columns, {"'a.m'", "row 3", "negative"});
  linear.weight.scales_OG[3] *= -1.0f;
  linear.input.outlier_columns = {4};
  refused(bitsandbytes_int8_container(), columns, {"'a.m'", "absolute", "columns known beforehand", "pare-int8"});
}

TEST(ContainerFormat, OneCheckpointHoldsWhatOneConfigurationSays) {
  const auto together = [](std::string_view name, const PackScheme& a, const PackScheme& b, bool b_is_linear = true) {
    const ContainerFormat& container = container_format(name);
    const std::vector<StoredModule> modules = {{"a", container.adapted(a)}, {"b", container.adapted(b), b_is_linear}};
    const Acceptance accepted = container.accepts_together(modules);
    if (accepted) {
      EXPECT_NO_THROW(container.config_json(modules, {}));
    } else {
      expect_error<std::invalid_argument>([&] { container_config_json(modules, {}); }, {"'b'", accepted.reason});
    }
    return static_cast<bool>(accepted);
  };
  const PackScheme g128{.bits = 4, .group_size = 128}, g64{.bits = 4, .group_size = 64};
  const PackScheme int8{.bits = 8, .input = kAbsolute};
  PackScheme other = int8;
  other.input.outlier_threshold = 7.0f;
  EXPECT_TRUE(together("compressed-tensors", g128, g64));
  EXPECT_TRUE(together("compressed-tensors", g128, {.bits = 8}, false));
  EXPECT_TRUE(together("awq-gemm", g128, g128));
  EXPECT_FALSE(together("awq-gemm", g128, g64));
  EXPECT_FALSE(together("awq-gemm", g128, g128, false));
  EXPECT_TRUE(together("gptq", g128, g64));
  EXPECT_FALSE(together("gptq", g128, g128, false));
  EXPECT_TRUE(together("bitsandbytes", int8, int8));
  EXPECT_FALSE(together("bitsandbytes", int8, other));
  PackScheme sparse = g64;
  sparse.pattern = kTwoOfFour;
  EXPECT_TRUE(together("pare-sparse24", sparse, g128));
  EXPECT_TRUE(together("pare-sparse24", sparse, {.bits = 8}, false));
  EXPECT_TRUE(together("pare-int8", int8, other));
  EXPECT_FALSE(together("pare-int8", int8, {.bits = 8, .input = kColumns}));
  EXPECT_FALSE(together("pare-int8", int8, int8, false));

  const std::vector<StoredModule> mixed = {{"a", container_format("awq-gemm").adapted(g128)}, {"b", g128}};
  for (const char* name : {"awq-gemm", "compressed-tensors"}) {
    const Acceptance accepted = container_format(name).accepts_together(mixed);
    EXPECT_FALSE(accepted);
    EXPECT_NE(accepted.reason.find("a checkpoint has one"), std::string::npos) << accepted.reason;
  }
  expect_error<std::invalid_argument>([] { container_config_json({}, {}); }, {"at least one"});
}

TEST(ContainerFormat, StoringRefusesALinearThatIsNotItsSchemes) {
  const PackScheme scheme = container_format("awq-gemm").adapted({.bits = 4, .group_size = 32});
  StoredLinear linear = random_linear(scheme, 8, 64, {.scale_dtype = DType::F16});
  const auto refused = [&](const PackScheme& stated, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { awq_gemm_container().store(linear, stated, "m"); }, parts);
  };
  EXPECT_EQ(awq_gemm_container().store(linear, scheme, "m").size(), 3u);
  PackScheme other = scheme;
  other.group_size = 64;
  refused(other, {"'m'", "expected 4 bits in groups of 64", "found 4 bits in groups of 32"});
  other = scheme;
  other.container = kCompressedTensors;
  refused(other, {"'m'", "expected the container awq-gemm", "found compressed-tensors"});
  other = scheme;
  other.bits = 8;
  refused(other, {"'m'", "expected 4 bits"});
  linear.input = kTokens;
  refused(scheme, {"'m'", "input activations"});
}

// A pattern that the container does not store is not hashed, and a reader is not told of it.
TEST(ContainerFormat, AdaptingTakesThePatternOfTheScheme) {
  const PackScheme sparse{.bits = 4, .group_size = 32, .pattern = kTwoOfFour};
  for (const ContainerFormat* container : container_formats()) {
    StoredLinear linear = random_linear(sparse, 8, 64, {.scale_dtype = DType::F16});
    PackScheme unpacked = sparse;
    unpacked.pattern = {};
    container->adapt(linear, container->adapted(unpacked));
    EXPECT_EQ(linear.weight.pattern, SparsePattern{}) << container->name();
    EXPECT_EQ(static_cast<bool>(container->accepts(sparse)), container->packs(kTwoOfFour)) << container->name();
  }
}

// A symmetric weight gets AWQ's zeros and keeps its values.
TEST(ContainerFormat, AdaptingKeepsTheValues) {
  const PackScheme wanted{.bits = 4, .group_size = 32, .act_order = StoredActOrder::weight};
  const PackScheme scheme = awq_gemm_container().adapted(wanted);
  EXPECT_FALSE(scheme.symmetric);
  EXPECT_EQ(scheme.act_order, StoredActOrder::none);
  StoredLinear linear = random_linear(wanted, 8, 64, {.scale_dtype = DType::F16});
  const std::vector<float> before = dequantize(linear.weight);
  awq_gemm_container().adapt(linear, scheme);
  EXPECT_EQ(linear.weight.zeros_OG, std::vector<uint8_t>(8 * 2, 8));
  EXPECT_EQ(dequantize(linear.weight), before);
  EXPECT_EQ(awq_gemm_container().store(linear, scheme, "m").size(), 3u);
}

TEST(ContainerFormat, TheTableIsFoundByNameAndByConfiguration) {
  std::set<std::string_view> names;
  for (const ContainerFormat* format : container_formats()) {
    EXPECT_TRUE(names.insert(format->name()).second) << format->name();
    EXPECT_EQ(&container_format(format->name()), format);
    // These share their methods with others.
    const std::map<const ContainerFormat*, std::string> said = {
        {&bitsandbytes_nf4_container(), R"({"load_in_4bit": true})"},
        {&gptq_v2_container(), R"({"checkpoint_format": "gptq_v2"})"},
        {&mlx_container(), R"({"bits": 4, "group_size": 64})"}};
    const std::string_view method = format == &mlx_container() ? "" : format->method();  // MLX's files name none
    EXPECT_EQ(find_container(method, said.contains(format) ? said.at(format) : "{}"), format);
    EXPECT_FALSE(format->suffixes().empty());
  }
  for (const char* const other :
       {R"({"bits": 4, "group_size": -1})", R"({"bits": 4})", R"({"bits": 4, "group_size": 64, "desc_act": false})",
        R"({"bits": 4, "group_size": 64, "zero_point": true})"}) {
    EXPECT_EQ(find_container("", other), nullptr) << other;
  }
  expect_error<std::invalid_argument>([] { container_format("gguf"); },
                                      {"'gguf'", "'compressed-tensors'", "'awq-gemm'", "'gptq'", "'gptq-v2'",
                                       "'bitsandbytes'", "'pare-int8'", "'pare-sparse24'"});
  EXPECT_EQ(find_container("quip", "{}"), nullptr);
  EXPECT_TRUE(compressed_tensors_container().unread_by(Engine::vllm, PackScheme{}).empty());
  EXPECT_FALSE(pare_int8_container().unread_by(Engine::vllm, PackScheme{}).empty());
  for (const Engine engine : {Engine::transformers, Engine::vllm, Engine::llama_cpp}) {
    EXPECT_EQ(container_format("pare-sparse24").unread_by(engine, PackScheme{}),
              std::vector<std::string>{"the container pare-sparse24 is pare's own"});
  }
}

// --- A container of one file and one registration ---

// A golden model whose linears of the first block are stored with the test's own container.
class OwnContainer : public testing::Test {
 protected:
  fs::path write_model(const PackScheme& scheme) {
    const fs::path golden = fs::path(kSourceFolder) / "tests/golden/families/llama_gqa_untied";
    const Checkpoint source = Checkpoint::open(golden);
    const fs::path directory = folder_.path() / "model";
    fs::create_directories(directory);
    const BlockDescription& block = source.description().blocks[0];
    std::vector<OwnedTensor> tensors;
    std::vector<StoredModule> modules;
    std::set<std::string> replaced;
    for (const LinearDescription& linear : {block.q, block.k, block.v, block.o, block.experts[0].down}) {
      StoredLinear stored = random_linear(scheme, linear.num_out, linear.num_in, {.scale_dtype = DType::F32});
      container_format(scheme.container).adapt(stored, scheme);
      for (OwnedTensor& tensor : pack_linear(stored, scheme, linear.name)) tensors.push_back(std::move(tensor));
      linears_.push_back(linear);
      expected_[linear.name] = std::move(stored);
      modules.push_back({linear.name, scheme});
      replaced.insert(linear.name + ".weight");
    }
    std::vector<NamedTensor> named;
    for (const OwnedTensor& tensor : tensors) named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
    for (const std::string& name : source.tensor_names()) {
      const TensorView& view = source.tensor(name);
      if (!replaced.contains(name)) named.push_back({name, view.dtype, view.shape, view.data});
    }
    write_safetensors(directory / "model.safetensors", named);
    Json config = Json::parse(source.config_json());
    config["quantization_config"] = Json::parse(container_config_json(modules, {}));
    std::ofstream(directory / "config.json") << config.dump(1);
    return directory;
  }

  TemporaryFolder folder_;
  std::vector<LinearDescription> linears_;
  std::map<std::string, StoredLinear> expected_;
};

TEST_F(OwnContainer, IsStoredAndOpenedLikeAnyOther) {
  register_container(row_container());
  register_container(row_container());  // registering it again changes nothing
  EXPECT_EQ(container_formats().back(), &row_container());
  const PackScheme wanted{.bits = 4, .group_size = 4, .act_order = StoredActOrder::weight};
  ASSERT_TRUE(container_format("test-rows").accepts(wanted, 8, 8));
  const fs::path directory = write_model(container_format("test-rows").adapted(wanted));
  const Checkpoint checkpoint = Checkpoint::open(directory);
  EXPECT_EQ(checkpoint.quantization_method(), "rows");
  for (const LinearDescription& linear : linears_) {
    const LinearWeights read = checkpoint.linear(linear);
    ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(read.weight));
    expect_equal({.weight = std::get<QuantizedWeight>(read.weight)}, expected_.at(linear.name));
    EXPECT_EQ(checkpoint.stored_scheme(linear)->container, "test-rows");
    checkpoint.drop_pages(linear);
    EXPECT_EQ(std::get<QuantizedWeight>(checkpoint.linear(linear).weight).codes_OI,
              expected_.at(linear.name).weight.codes_OI);
  }
  const LinearDescription& gate = checkpoint.description().blocks[0].experts[0].gate;
  EXPECT_FALSE(checkpoint.stored_scheme(gate).has_value());
  EXPECT_TRUE(std::holds_alternative<DenseWeight>(checkpoint.linear(gate).weight));
  EXPECT_EQ(row_container().unread_by(Engine::transformers, PackScheme{}),
            std::vector<std::string>{"the container test-rows is pare's own"});
}

TEST_F(OwnContainer, ErrorsOfTheCheckpointNameItsTensors) {
  register_container(row_container());
  const fs::path directory = write_model(row_container().adapted({.bits = 8}));
  Json config = Json::parse(std::ifstream(directory / "config.json"));
  config["quantization_config"].erase("quant_method");
  std::ofstream(directory / "config.json") << config.dump();
  expect_error<std::runtime_error>([&] { Checkpoint::open(directory); }, {"unnamed method", "'rows' (test-rows)"});
  config.erase("quantization_config");
  std::ofstream(directory / "config.json") << config.dump();
  expect_error<std::runtime_error>([&] { Checkpoint::open(directory); }, {"q_proj.rows'", "test-rows", "missing"});
}

// This name is taken.
class Impostor final : public ContainerFormat {
 public:
  std::string_view name() const override { return "awq-gemm"; }
  std::string_view method() const override { return "other"; }
  std::span<const std::string_view> suffixes() const override { return {}; }
  PackScheme adapted(PackScheme wanted) const override { return wanted; }
  void check(const FindTensor&, const PackScheme&, int64_t, int64_t, const std::string&) const override {}
  StoredLinear load(const FindTensor&, const PackScheme&, int64_t, int64_t, const std::string&) const override {
    return {};
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string&, const std::string&) const override {
    return nullptr;
  }

 private:
  std::string why_not(const PackScheme&) const override { return ""; }
  int64_t size_bytes(const PackScheme&, int64_t, int64_t, const StoredExtent&) const override { return 0; }
  std::vector<OwnedTensor> pack(const StoredLinear&, const PackScheme&, const std::string&) const override {
    return {};
  }
  std::string write_config(std::span<const StoredModule>, std::span<const std::string>) const override { return "{}"; }
};

TEST_F(OwnContainer, ANameIsGivenOnce) {
  const Impostor impostor;
  expect_error<std::invalid_argument>([&] { register_container(impostor); }, {"'awq-gemm' already"});
}

}  // namespace
}  // namespace pare
