#include "runtime/containers/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/containers/container_table.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/value_limits.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;
using Parts = std::map<std::string, TensorView>;

FindTensor finder(const Parts& parts) {
  return [&parts](const std::string& name) -> const TensorView* {
    const auto found = parts.find(name);
    return found == parts.end() ? nullptr : &found->second;
  };
}

Parts views_of(const std::vector<OwnedTensor>& tensors) {
  Parts parts;
  for (const OwnedTensor& tensor : tensors) parts[tensor.name] = {tensor.dtype, tensor.shape, tensor.data};
  return parts;
}

const ContainerFormat& version(bool is_v2) {
  return is_v2 ? gptq_v2_container() : gptq_container();
}

StoredLinear random_linear(const PackScheme& scheme, int64_t num_out, int64_t num_in) {
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = DType::F16;
  std::mt19937 generator(static_cast<uint32_t>(num_out + num_in + scheme.bits));
  const auto code = [&] { return static_cast<uint8_t>(generator() & ((1u << scheme.bits) - 1)); };
  for (int64_t i = 0; i < num_out * num_in; ++i) weight.codes_OI.push_back(code());
  for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(round_to(0.01f + static_cast<float>(generator() % 1000) / 777, DType::F16));
    if (scheme.symmetric) continue;
    const uint8_t zero = code();
    weight.zeros_OG.push_back(scheme.container == kGptq ? std::max<uint8_t>(zero, 1) : zero);
  }
  if (scheme.act_order == StoredActOrder::group) {
    weight.group_of_I = columns_in_place(num_in, scheme.group_size);
    std::shuffle(weight.group_of_I.begin(), weight.group_of_I.end(), generator);
  }
  return {.weight = std::move(weight)};
}

uint32_t first_word(const OwnedTensor& tensor) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data(), 4);
  return word;
}

// The words of AutoGPTQ's loops for codes 0 to 7 and for symmetric zeros (docs/formats.md names the source).
TEST(Gptq, CodesAndZerosLieAsInAutoGptq) {
  const std::map<int, std::pair<uint32_t, uint32_t>> zeros = {{2, {0x55555555u, 0xaaaaaaaau}},
                                                              {3, {0xdb6db6dbu, 0x24924924u}},
                                                              {4, {0x77777777u, 0x88888888u}},
                                                              {8, {0x7f7f7f7fu, 0x80808080u}}};
  for (const auto& [bits, words] : zeros) {
    for (const bool is_v2 : {false, true}) {
      const PackScheme scheme = version(is_v2).adapted({.bits = bits});
      const std::vector<OwnedTensor> tensors = version(is_v2).store(random_linear(scheme, 32, 32), scheme, "m");
      ASSERT_EQ(tensors.size(), 4u);
      EXPECT_EQ(tensors[1].name, "m.qzeros");
      EXPECT_EQ(first_word(tensors[1]), is_v2 ? words.second : words.first) << bits;
    }
  }
  const PackScheme scheme = gptq_container().adapted({.bits = 4});
  StoredLinear linear = random_linear(scheme, 8, 8);
  for (int column = 0; column < 8; ++column) linear.weight.codes_OI[static_cast<size_t>(column)] = column;
  const std::vector<OwnedTensor> tensors = gptq_container().store(linear, scheme, "m");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(first_word(tensors[0]), 0x76543210u);
}

TEST(Gptq, EveryWeightIsReadBackBitByBit) {
  for (const bool is_v2 : {false, true}) {
    for (const int bits : {2, 3, 4, 8}) {
      for (const int64_t group_size : {int64_t{32}, int64_t{48}, kPerChannel}) {
        for (const bool symmetric : {true, false}) {
          for (const StoredActOrder order : {StoredActOrder::none, StoredActOrder::group}) {
            const ContainerFormat& container = version(is_v2);
            const PackScheme scheme =
                container.adapted({.bits = bits, .group_size = group_size, .symmetric = symmetric, .act_order = order});
            ASSERT_TRUE(container.accepts(scheme, 64, 96)) << container.accepts(scheme, 64, 96).reason;
            const StoredLinear linear = random_linear(scheme, 64, 96);
            const std::vector<OwnedTensor> tensors = container.store(linear, scheme, "m");
            int64_t num_bytes = 0;
            for (const OwnedTensor& tensor : tensors) num_bytes += static_cast<int64_t>(tensor.data.size());
            EXPECT_EQ(num_bytes, container.stored_bytes(scheme, 64, 96));
            const Parts parts = views_of(tensors);
            const std::vector<StoredModule> modules = {{"m", scheme}};
            const auto config = container.read_config(container.config_json(modules, {}), "c");
            const auto read = config->scheme_of("m", "Linear", finder(parts));
            ASSERT_TRUE(read);
            EXPECT_EQ(*read, scheme);
            const QuantizedWeight back = container.load(finder(parts), *read, 64, 96, "m").weight;
            EXPECT_EQ(back.codes_OI, linear.weight.codes_OI);
            EXPECT_EQ(back.scales_OG, linear.weight.scales_OG);
            EXPECT_EQ(back.zeros_OG, linear.weight.zeros_OG);
            EXPECT_EQ(dequantize(back), dequantize(linear.weight));
          }
        }
      }
    }
  }
}

// What GPTQModel packs (make_gptq.py) is read to its own dequantized weights. Its product of a float16 scale and a
// small whole number is rounded to float16 once.
TEST(Gptq, FilesOfGptqModelAreReadToItsOwnWeights) {
  const SafetensorsFile file =
      SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/formats/gptq.safetensors");
  int num_modules = 0;
  for (const auto& [name, dense] : file.tensors()) {
    if (!name.ends_with(".dense")) continue;
    ++num_modules;
    const std::string module = name.substr(0, name.size() - 6);
    SCOPED_TRACE(module);
    const bool is_v2 = module.ends_with("_v2");
    const bool is_channel = module.find("channel") != std::string::npos;
    const size_t group = module.find("_g");
    const Json config = {{"quant_method", "gptq"},
                         {"bits", module[1] - '0'},
                         {"group_size", is_channel ? -1 : std::stoi(module.substr(group + 2))},
                         {"sym", module.find("asym") == std::string::npos},
                         {"desc_act", module.find("order") != std::string::npos},
                         {"checkpoint_format", is_v2 ? "gptq_v2" : "gptq"}};
    const ContainerFormat* const container = find_container("gptq", config.dump());
    ASSERT_EQ(container, &version(is_v2));
    const auto scheme = container->read_config(config.dump(), "c")->scheme_of(module, "Linear", finder(file.tensors()));
    ASSERT_TRUE(scheme);
    const QuantizedWeight weight = container->load(finder(file.tensors()), *scheme, 32, 64, module).weight;
    std::vector<float> expected(32 * 64);
    convert_to_float(DType::F16, dense.data, expected);
    const std::vector<float> read = dequantize(weight);
    for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(round_to(read[i], DType::F16), expected[i]) << i;
    // Written again, it is the same file.
    for (const OwnedTensor& tensor : container->store({.weight = weight}, container->adapted(*scheme), module)) {
      const TensorView& original = file.tensors().at(tensor.name);
      EXPECT_EQ(tensor.shape, original.shape);
      EXPECT_TRUE(std::ranges::equal(tensor.data, original.data)) << tensor.name;
    }
  }
  EXPECT_EQ(num_modules, 14);
}

// Readers of the first version add 1 to whole words (AutoGPTQ's and GPTQModel's qlinear). Without a zero of 0 that
// carries from no field into the next.
TEST(Gptq, WordsOfTheFirstVersionPlusOnesAreThoseOfTheSecond) {
  for (const auto& [bits, ones] : std::map<int, uint32_t>{{2, 0x55555555u}, {4, 0x11111111u}, {8, 0x01010101u}}) {
    const PackScheme first = gptq_container().adapted({.bits = bits, .group_size = 32, .symmetric = false});
    PackScheme second = first;
    second.container = kGptqV2;
    const StoredLinear linear = random_linear(first, 32, 64);
    const OwnedTensor less_one = gptq_container().store(linear, first, "m")[1];
    const OwnedTensor zeros = gptq_v2_container().store(linear, second, "m")[1];
    ASSERT_EQ(less_one.data.size(), zeros.data.size());
    for (size_t i = 0; i < zeros.data.size(); i += 4) {
      uint32_t stored, expected;
      std::memcpy(&stored, less_one.data.data() + i, 4);
      std::memcpy(&expected, zeros.data.data() + i, 4);
      EXPECT_EQ(stored + ones, expected) << bits << ", byte " << i;
    }
  }
}

// Asymmetric files of the first version hold zeros of 0 as the largest code.
TEST(Gptq, ZerosOfTheFirstVersionWrapInTheirField) {
  const PackScheme scheme = gptq_v2_container().adapted({.bits = 4, .group_size = 32, .symmetric = false});
  StoredLinear linear = random_linear(scheme, 32, 64);
  linear.weight.zeros_OG[0] = 0;
  std::vector<OwnedTensor> tensors = gptq_v2_container().store(linear, scheme, "m");
  for (std::byte& byte : tensors[1].data) {
    const auto value = std::to_integer<uint8_t>(byte);
    byte = static_cast<std::byte>(((value & 0xf0) - 0x10) & 0xf0) | static_cast<std::byte>((value - 1) & 0xf);
  }
  PackScheme first = scheme;
  first.container = kGptq;
  const Parts parts = views_of(tensors);
  EXPECT_EQ(gptq_container().load(finder(parts), first, 32, 64, "m").weight.zeros_OG, linear.weight.zeros_OG);
}

// sym: true says what zeros are, whichever version the file names.
TEST(Gptq, FilesThatNameTheOtherVersionAreRead) {
  for (const bool is_v2 : {false, true}) {
    const PackScheme scheme = version(is_v2).adapted({.bits = 4, .group_size = 32});
    const StoredLinear linear = random_linear(scheme, 32, 64);
    const std::vector<OwnedTensor> tensors = version(is_v2).store(linear, scheme, "m");
    const Parts parts = views_of(tensors);
    const QuantizedWeight read = version(!is_v2).load(finder(parts), scheme, 32, 64, "m").weight;
    EXPECT_EQ(dequantize(read), dequantize(linear.weight));
  }
}

TEST(Gptq, ReadingRefusesWhatDoesNotFit) {
  const PackScheme scheme = gptq_container().adapted({.bits = 4, .group_size = 32});
  const std::vector<OwnedTensor> tensors = gptq_container().store(random_linear(scheme, 32, 64), scheme, "m");
  const Parts whole = views_of(tensors);
  const auto refused = [&](const std::function<void(Parts&)>& change, std::initializer_list<std::string> words,
                           PackScheme stated) {
    Parts parts = whole;
    change(parts);
    expect_error<std::runtime_error>([&] { gptq_container().load(finder(parts), stated, 32, 64, "m"); }, words);
  };
  for (const char* name : {"m.qweight", "m.qzeros", "m.scales", "m.g_idx"}) {
    refused([&](Parts& parts) { parts[name].shape.push_back(1); }, {name, "expected", "found"}, scheme);
    refused([&](Parts& parts) { parts[name].dtype = DType::U8; }, {name, "found U8"}, scheme);
  }
  refused([](Parts& parts) { parts.erase("m.qweight"); }, {"m.qweight", "missing"}, scheme);
  refused([](Parts& parts) { parts.erase("m.scales"); }, {"m.scales", "missing"}, scheme);
  static const std::vector<std::byte> fives(2 * 4 * 4, std::byte{0x55});
  refused([](Parts& parts) { parts["m.qzeros"].data = fives; }, {"m.qzeros", "zeros of 8", "sym: true"}, scheme);
  static const std::vector<std::byte> ones(2 * 32 * 2, std::byte{0xff});
  refused([](Parts& parts) { parts["m.scales"].data = ones; }, {"'m'", "scale", "not finite"}, scheme);
  PackScheme other = scheme;
  other.group_size = 48;
  refused([](Parts&) {}, {"48", "64"}, other);
  other = scheme;
  other.symmetric = false;
  refused([](Parts& parts) { parts.erase("m.qzeros"); }, {"m.qzeros", "missing"}, other);
  // Symmetric files need neither zeros nor the groups of columns that are in place.
  Parts parts = whole;
  parts.erase("m.qzeros");
  parts.erase("m.g_idx");
  EXPECT_NO_THROW(gptq_container().load(finder(parts), scheme, 32, 64, "m"));
  // A column of a group that is not there.
  static const std::vector<int32_t> groups(64, 2);
  parts["m.g_idx"] = {DType::I32, {64}, std::as_bytes(std::span(groups))};
  other = scheme;
  other.act_order = StoredActOrder::group;
  expect_error<std::runtime_error>([&] { gptq_container().load(finder(parts), other, 32, 64, "m"); }, {"'m'", "group"});
}

TEST(Gptq, WritingRefusesWhatTheContainerCannotHold) {
  const auto refused = [](const ContainerFormat& container, const PackScheme& scheme,
                          std::initializer_list<std::string> words, int64_t num_out = 64, int64_t num_in = 96) {
    const std::string reason = container.accepts(scheme, num_out, num_in).reason;
    for (const std::string& word : words) EXPECT_NE(reason.find(word), std::string::npos) << word << " in: " << reason;
    EXPECT_FALSE(reason.empty());
  };
  const std::string asymmetric = holds_all(gptq_container(), {.bits = 4, .symmetric = false}).reason;
  for (const char* const word : {"zeros of 0", "gptq-v2"}) EXPECT_NE(asymmetric.find(word), std::string::npos) << word;
  refused(gptq_container(), {.code = &kNf4Code, .bits = 4}, {"integers", "nf4"});
  refused(gptq_container(), {.bits = 8, .per_tensor = true}, {"per tensor"});
  refused(gptq_container(), {.bits = 4}, {"multiple of 8 inputs", "found 100"}, 64, 100);
  refused(gptq_container(), {.bits = 3}, {"multiple of 32 outputs", "found 48"}, 48);
  refused(gptq_container(), dense_scheme(), {"dense"});
  PackScheme rounded{.bits = 8};
  rounded.input = {.type = InputType::int8};
  refused(gptq_container(), rounded, {"inputs", "compressed-tensors"});
  const PackScheme scheme = gptq_container().adapted({.bits = 4});
  StoredLinear linear = random_linear(scheme, 32, 32);
  linear.weight.scales_OG[3] = 0x1p-30f;  // a bfloat16
  expect_error<std::invalid_argument>([&] { gptq_container().store(linear, scheme, "m"); },
                                      {"'m'", "not exactly representable in F16"});
}

TEST(GptqConfig, RulesSayWhatDiffersAndWhatIsLeftOut) {
  const PackScheme base = gptq_container().adapted({.bits = 4, .group_size = 64});
  const PackScheme eight = gptq_container().adapted({.bits = 8, .group_size = 32});
  const std::vector<StoredModule> modules = {{"model.layers.0.mlp.up_proj", base},
                                             {"model.layers.0.mlp.down_proj", eight},
                                             {"model.layers.1.mlp.up_proj", base}};
  const std::vector<std::string> ignore = {"lm_head", "model.layers.1.mlp.down_proj"};
  const Json config = Json::parse(gptq_container().config_json(modules, ignore));
  EXPECT_EQ(config["bits"], 4);
  EXPECT_EQ(config["group_size"], 64);
  EXPECT_EQ(config["desc_act"], false);
  EXPECT_EQ(config["sym"], true);
  EXPECT_EQ(config["lm_head"], false);
  EXPECT_EQ(config["checkpoint_format"], "gptq");
  EXPECT_EQ(config["dynamic"]["+:^model\\.layers\\.0\\.mlp\\.down_proj$"]["bits"], 8);
  EXPECT_TRUE(config["dynamic"].contains("-:^lm_head$"));
  EXPECT_TRUE(config["dynamic"].contains("-:^model\\.layers\\.1\\.mlp\\.down_proj$"));
  // optimum takes names that a module's ends with.
  EXPECT_EQ(config["modules_in_block_to_quantize"],
            Json::parse(R"([["mlp.up_proj", "model.layers.0.mlp.down_proj"]])"));

  const GptqConfig read = GptqConfig::parse(config.dump(), "c");
  static const std::vector<std::byte> bytes(4);
  const Parts parts = {{"model.layers.0.mlp.down_proj.qweight", {DType::I32, {1, 1}, bytes}},
                       {"model.layers.0.mlp.up_proj.qweight", {DType::I32, {1, 1}, bytes}},
                       {"lm_head.qweight", {DType::I32, {1, 1}, bytes}}};
  EXPECT_EQ(read.scheme_of("model.layers.0.mlp.down_proj", "Linear", finder(parts)), eight);
  EXPECT_EQ(read.scheme_of("model.layers.0.mlp.up_proj", "Linear", finder(parts)), base);
  EXPECT_EQ(read.scheme_of("model.layers.1.mlp.up_proj", "Linear", finder(parts)), std::nullopt);
  EXPECT_EQ(read.scheme_of("model.embed_tokens", "Embedding", finder(parts)), std::nullopt);
  expect_error<std::runtime_error>([&] { read.scheme_of("lm_head", "Linear", finder(parts)); },
                                   {"lm_head.qweight", "not quantized"});
}

TEST(GptqConfig, TheGroupsOfColumnsAreThoseOfTheFile) {
  const auto scheme_of = [](bool desc_act, const std::vector<int32_t>& groups) {
    const Json json = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 2}, {"desc_act", desc_act}};
    static const std::vector<std::byte> bytes(4);
    Parts parts = {{"m.qweight", {DType::I32, {1, 1}, bytes}}};
    if (!groups.empty()) parts["m.g_idx"] = {DType::I32, {4}, std::as_bytes(std::span(groups))};
    return GptqConfig::parse(json.dump(), "c").scheme_of("m", "Linear", finder(parts))->act_order;
  };
  EXPECT_EQ(scheme_of(false, {}), StoredActOrder::none);
  EXPECT_EQ(scheme_of(false, {0, 0, 1, 1}), StoredActOrder::none);
  EXPECT_EQ(scheme_of(false, {1, 0, 1, 0}), StoredActOrder::group);
  EXPECT_EQ(scheme_of(true, {1, 0, 1, 0}), StoredActOrder::group);
  expect_error<std::runtime_error>([&] { scheme_of(true, {}); }, {"'m.g_idx'", "missing", "desc_act: true"});
}

// GPTQModel takes the first rule of the file that matches, which need not be the first one of the alphabet.
TEST(GptqConfig, TheFirstRuleOfTheFileDecides) {
  const std::string text = R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false,
      "dynamic": {"+:.*z": {"bits": 8}, ".*": {"bits": 2}}})";
  const GptqConfig config = GptqConfig::parse(text, "c");
  static const std::vector<std::byte> bytes(4);
  const Parts parts = {{"z.qweight", {DType::I32, {1, 1}, bytes}}, {"y.qweight", {DType::I32, {1, 1}, bytes}}};
  EXPECT_EQ(config.scheme_of("z", "Linear", finder(parts))->bits, 8);
  EXPECT_EQ(config.scheme_of("y", "Linear", finder(parts))->bits, 2);
}

TEST(GptqConfig, EverythingUnsupportedIsRefusedByName) {
  const auto refused = [](const char* key, const Json& value, std::initializer_list<std::string> parts) {
    Json config = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}, {"desc_act", false}};
    config[key] = value;
    expect_error<std::invalid_argument>([&] { GptqConfig::parse(config.dump(), "config.json"); }, parts);
  };
  refused("bits", 5, {"'config.json'", "bits", "2, 3, 4 or 8", "found 5"});
  refused("bits", nullptr, {"bits", "missing"});
  refused("group_size", 0, {"group_size", "found 0"});
  refused("sym", 1, {"sym", "true or false"});
  refused("desc_act", "no", {"desc_act", "true or false"});
  refused("checkpoint_format", "marlin", {"checkpoint_format", "gptq_v2", "marlin"});
  refused("is_marlin_format", true, {"is_marlin_format"});
  refused("pack_dtype", "int64", {"pack_dtype", "int32", "int64"});
  refused("dynamic", {1}, {"dynamic", "object"});
  refused("dynamic", {{"+:(?=a)", Json::object()}}, {"dynamic", "(?=a)"});
  refused("dynamic", {{"a", {{"bits", 7}}}}, {"dynamic", "bits", "found 7"});
  expect_error<std::invalid_argument>([] { GptqConfig::parse("[", "config.json"); }, {"not valid JSON"});
}

}  // namespace
}  // namespace pare
