// `pare export` between formats whose codes are the same and whose scales, zeros or inputs are said in other ways. The
// oracle is the bytes of both files and closed forms of what they stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/export/mxfp4_as_nvfp4.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/export/export_fixture.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kAsymmetric = "passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n";
constexpr const char* kFirst = "model.layers.0.self_attn.q_proj";
constexpr const char* kUp = "model.layers.0.mlp.up_proj";

class Transcode : public Export {
 protected:
  // Copies a golden model, in float32, with `change` made to the values of one linear's weight.
  void copy_changed(const std::string& name, const std::string& to, const std::string& linear,
                    const std::function<void(std::vector<float>&, int64_t num_in)>& change) {
    fs::copy(family(name), at(to), fs::copy_options::recursive);
    const Checkpoint source = Checkpoint::open(family(name));
    std::map<std::string, std::vector<float>> values;
    std::vector<NamedTensor> tensors;
    for (const std::string& tensor : source.tensor_names()) {
      const TensorView view = source.tensor(tensor);
      std::vector<float>& own = values[tensor];
      own.resize(static_cast<size_t>(view.num_elements()));
      convert_to_float(view.dtype, view.data, own);
      if (tensor == linear + ".weight") change(own, view.shape[1]);
      tensors.push_back({tensor, DType::F32, view.shape, std::as_bytes(std::span(own))});
    }
    fs::remove(at(to + "/model.safetensors"));
    write_safetensors(at(to + "/model.safetensors"), std::move(tensors));
  }
  SafetensorsFile file(const std::string& name) const { return SafetensorsFile::open(at(name + "/model.safetensors")); }
  std::string passage_of(const Json& result, const std::string& layer) {
    for (const Json& entry : result.at("layers")) {
      if (entry.at("name") == layer) return entry.at("passage");
    }
    return "missing";
  }
};

template <typename Value>
std::vector<Value> values_of(const TensorView& tensor) {
  std::vector<Value> values(tensor.data.size() / sizeof(Value));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// What llm-compressor says beside the weights: the scales of keys and values, and rotations that stand in the weights.
TEST_F(Transcode, ScalesOfKeysAndValuesAreNotWritten) {
  for (const std::string name : {"fp8_kv", "spinquant"}) {
    fs::create_directories(at(name));
    for (const char* const part : {"config.json", "model.safetensors"}) {
      fs::copy(fs::path(kSourceFolder) / "tests/golden/llm_compressor" / name / part, at(name));
    }
  }
  const SafetensorsFile source = file("fp8_kv");
  ASSERT_TRUE(source.tensors().contains("model.layers.0.self_attn.k_scale"));
  for (const std::string format : {"compressed-tensors", "dense", "gptq"}) {
    export_to("fp8_kv", "kv-" + format, format);
    const SafetensorsFile written = file("kv-" + format);
    for (const auto& [name, view] : written.tensors()) {
      EXPECT_FALSE(name.ends_with(".k_scale") || name.ends_with(".v_scale")) << format << " " << name;
    }
    const Json quantization = Json::parse(bytes("kv-" + format + "/config.json")).value("quantization_config", Json());
    EXPECT_TRUE(!quantization.contains("kv_cache_scheme") || quantization["kv_cache_scheme"].is_null()) << format;
  }
  export_to("spinquant", "rotated", "compressed-tensors", "--lossless");
  EXPECT_FALSE(Json::parse(bytes("rotated/config.json")).at("quantization_config").contains("transform_config"));
}

// AutoGPTQ and GPTQModel add 0x11111111 to the first version's words of 4 bits, which gives the second version's.
TEST_F(Transcode, ZerosOtherThanZeroPassToGptqsFirstVersion) {
  make("qwen2_biases_tied", "ct",
       std::string(kAsymmetric) +
           "    layers: {override: {\"*.up_proj\": {bits: 8, group_size: -1}, \"*.o_proj\": {bits: 3}}}\n");
  const Json result = export_to("ct", "v1", "gptq", "--lossless");
  export_to("ct", "v2", "gptq-v2", "--lossless");
  export_to("v1", "back", "compressed-tensors", "--lossless");
  const Checkpoint source = Checkpoint::open(at("ct")), back = Checkpoint::open(at("back"));
  int64_t num_coded = 0;
  for (const LinearDescription& linear : stored_linears(source)) {
    EXPECT_EQ(weight(back, linear), weight(source, linear)) << linear.name;
    EXPECT_EQ(back.stored_scheme(linear), source.stored_scheme(linear)) << linear.name;
    num_coded += source.stored_scheme(linear).has_value();
  }
  EXPECT_EQ(count(result, "codes and scales unchanged"), num_coded);
  EXPECT_EQ(Json::parse(bytes("v1/config.json"))["quantization_config"]["checkpoint_format"], "gptq");
  EXPECT_EQ(Json::parse(bytes("v1/config.json"))["quantization_config"]["sym"], false);
  const SafetensorsFile first = file("v1"), second = file("v2");
  for (const auto& [name, tensor] : first.tensors()) {
    const TensorView& other = second.tensors().at(name);
    if (!name.ends_with(".qzeros")) {
      EXPECT_TRUE(std::ranges::equal(tensor.data, other.data)) << name;
      continue;
    }
    if (name.find("up_proj") != name.npos || name.find("o_proj") != name.npos) continue;
    std::vector<uint32_t> words = values_of<uint32_t>(tensor);
    for (uint32_t& word : words) word += 0x11111111u;
    EXPECT_EQ(words, values_of<uint32_t>(other)) << name;
  }
}

TEST_F(Transcode, AZeroOfZeroIsRefusedByItsLayer) {
  copy_changed("llama_gqa_untied", "positive", kFirst, [](std::vector<float>& values, int64_t num_in) {
    for (int64_t column = 32; column < 64; ++column)
      values[3 * num_in + column] = std::abs(values[3 * num_in + column]);
  });
  make(at("positive").string(), "ct", kAsymmetric);
  const std::string place = std::string("layer '") + kFirst + "': row 3, group 1 has a zero of 0";
  for (const char* const option : {"", "--lossless"}) {
    refused("ct", "gptq", {"--format gptq", place, "gptq-v2"}, option);
  }
  EXPECT_EQ(count(export_to("ct", "v2", "gptq-v2", "--lossless"), "codes and scales unchanged"), 14);
  // A recipe does not know its zeros.
  write_text(at("r.yaml"), "model: " + at("positive").string() + "\ncontainer: gptq\n" + kAsymmetric);
  const Outcome run = run_pare({"run", at("r.yaml").string(), "--out", at("out").string(), "--dry-run"});
  EXPECT_EQ(run.status, 1);
  for (const char* const word : {"q_proj", "zeros of 0", "gptq-v2"}) {
    EXPECT_NE(run.err.find(word), std::string::npos) << run.err;
  }
}

// Weights of int8 with a scale for each row are LLM.int8's, whose threshold of 0 keeps no column in floating point.
TEST_F(Transcode, Int8WithRoundedInputsBecomesLlmInt8) {
  make("llama_gqa_untied", "w8a8", "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  const Json result = export_to("w8a8", "int8", "bitsandbytes", "--lossless");
  EXPECT_EQ(count(result, "codes and scales unchanged"), 14) << result;
  ASSERT_EQ(result["events"].size(), 1u) << result;
  EXPECT_NE(result["events"][0].get<std::string>().find("inputs of 14 layers"), std::string::npos) << result;
  const Json config = Json::parse(bytes("int8/config.json"))["quantization_config"];
  EXPECT_EQ(config["load_in_8bit"], true);
  EXPECT_EQ(config["llm_int8_threshold"], 0.0);
  EXPECT_TRUE(config["llm_int8_threshold"].is_number_float());  // transformers takes no integer
  const SafetensorsFile before = file("w8a8"), after = file("int8");
  const Checkpoint written = Checkpoint::open(at("int8"));
  int64_t num_coded = 0;
  for (const LinearDescription& linear : stored_linears(written)) {
    if (!written.stored_scheme(linear)) continue;
    ++num_coded;
    const TensorView& codes = after.tensors().at(linear.name + ".weight");
    EXPECT_EQ(codes.dtype, DType::I8);
    EXPECT_TRUE(std::ranges::equal(codes.data, before.tensors().at(linear.name + ".weight").data)) << linear.name;
    const TensorView& scales = before.tensors().at(linear.name + ".weight_scale");
    std::vector<float> stored(static_cast<size_t>(scales.num_elements()));
    convert_to_float(scales.dtype, scales.data, stored);
    std::vector<float> absmax = values_of<float>(after.tensors().at(linear.name + ".SCB"));
    for (float& value : absmax) value /= 127.0f;
    EXPECT_EQ(absmax, stored) << linear.name;
    const InputFormat input = written.linear(linear).input;
    EXPECT_EQ(input.type, InputType::int8);
    EXPECT_TRUE(input.outlier_columns.empty());
  }
  EXPECT_EQ(num_coded, 14);
  const std::string ids = (family("llama_gqa_untied") / "ids.npy").string();
  EXPECT_EQ(run_pare({"eval", at("int8").string(), "--text", ids, "--json"}).status, 0);
  // And what has a threshold of 0 passes to the same format, byte by byte.
  export_to("int8", "again", "bitsandbytes", "--lossless");
  EXPECT_EQ(bytes("again/model.safetensors"), bytes("int8/model.safetensors"));
  EXPECT_EQ(bytes("again/config.json"), bytes("int8/config.json"));
  // A file of bitsandbytes has one kind of codes.
  make("llama_gqa_untied", "mixed",
       "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n    layers: {override: {\"*.up_proj\": {bits: "
       "4}}}\n");
  const Json mixed = export_to("mixed", "nf4", "bitsandbytes");
  EXPECT_EQ(count(mixed, "rounded anew"), 12);  // NF4 holds no rows of 96
  EXPECT_EQ(count(mixed, "decoded"), 2);
  // Where 8 bits become NF4, the reason says what int8 would take.
  for (const std::string options : {"symmetric: false, activations: int8", "activations: {range: tensor}",
                                    "activations: {symmetric: false}", "activations: none"}) {
    SCOPED_TRACE(options);
    make("llama_gqa_untied", "other", "passes:\n  - rtn: {bits: 8, group_size: -1, " + options + "}\n");
    const Json other = export_to("other", "other-nf4", "bitsandbytes");
    EXPECT_EQ(count(other, "rounded anew"), 12);
    const Outcome told = run_pare({"export", at("other").string(), at("told").string(), "--format", "bitsandbytes"});
    EXPECT_NE((told.out + told.err).find("bitsandbytes holds int8 only where all layers have symmetric codes"),
              std::string::npos)
        << told.out << told.err;
    for (const char* name : {"other", "other-nf4", "told"}) fs::remove_all(at(name));
  }
}

// What the bits of E4M3 and E8M0 stand for (OCP 8-bit Floating Point and Microscaling Formats, both 1.0).
double value_of_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  return exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
}
double value_of_e8m0(uint8_t bits) {
  return std::ldexp(1.0, bits - 127);
}
double value_of_e2m1(uint8_t code) {
  constexpr double kValues[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

// Compares all that two linears stand for, from their bytes. Returns the float32 of the whole weight.
float expect_same_blocks(const SafetensorsFile& mxfp4, const SafetensorsFile& nvfp4, const std::string& name) {
  const auto codes = values_of<uint8_t>(mxfp4.tensors().at(name + ".weight_packed"));
  EXPECT_EQ(codes, values_of<uint8_t>(nvfp4.tensors().at(name + ".weight_packed"))) << name;
  const auto powers = values_of<uint8_t>(mxfp4.tensors().at(name + ".weight_scale"));
  const auto scales = values_of<uint8_t>(nvfp4.tensors().at(name + ".weight_scale"));
  const float whole = values_of<float>(nvfp4.tensors().at(name + ".weight_global_scale")).at(0);
  EXPECT_EQ(scales.size(), 2 * powers.size());
  EXPECT_EQ(codes.size(), 16 * powers.size());
  for (size_t i = 0; i < 2 * codes.size(); ++i) {
    const uint8_t code = codes[i / 2] >> (4 * (i % 2)) & 15;
    const double before = value_of_e2m1(code) * value_of_e8m0(powers[i / 32]);
    const double after = value_of_e2m1(code) * value_of_e4m3(scales[i / 16]) / static_cast<double>(whole);
    EXPECT_EQ(before, after) << name << ", value " << i;
    if (before != after) break;
  }
  return whole;
}

TEST_F(Transcode, PowersOfTwoPassToNvfp4) {
  make("llama_gqa_untied", "mx", "passes:\n  - rtn: {code: mxfp4}\n");
  const Json result = export_to("mx", "nv", "nvfp4", "--lossless");
  EXPECT_EQ(count(result, "codes and scales unchanged"), 14) << result;
  const Checkpoint source = Checkpoint::open(at("mx")), written = Checkpoint::open(at("nv"));
  const SafetensorsFile before = file("mx"), after = file("nv");
  std::set<float> wholes;
  for (const LinearDescription& linear : stored_linears(source)) {
    if (!source.stored_scheme(linear)) continue;
    wholes.insert(expect_same_blocks(before, after, linear.name));
    EXPECT_EQ(weight(written, linear), weight(source, linear)) << linear.name;
    EXPECT_EQ(written.stored_scheme(linear)->code, &kNvfp4Code);
  }
  EXPECT_EQ(wholes.size(), 1u);  // engines fuse q, k and v
}

// Rows that are 2^-30 of what they were are out of reach of one number for the whole weight.
TEST_F(Transcode, PowersThatNvfp4DoesNotHoldAreRounded) {
  copy_changed("llama_gqa_untied", "spread", kUp, [](std::vector<float>& values, int64_t num_in) {
    for (int64_t column = 0; column < num_in; ++column) values[5 * num_in + column] *= 0x1p-30f;
  });
  make(at("spread").string(), "mx", "passes:\n  - rtn: {code: mxfp4}\n");
  refused("mx", "nvfp4", {"--lossless", kUp, "18 powers of two"}, "--lossless");
  const Json result = export_to("mx", "nv", "nvfp4");
  EXPECT_EQ(passage_of(result, kUp), "rounded anew") << result;
  EXPECT_EQ(count(result, "codes and scales unchanged"), 13);
  const SafetensorsFile before = file("mx"), after = file("nv");
  expect_same_blocks(before, after, kFirst);
}

QuantizedWeight mxfp4_weight(const std::vector<int>& powers) {
  QuantizedWeight weight;
  weight.num_out = static_cast<int64_t>(powers.size());
  weight.num_in = 32;
  weight.code = &kMxfp4Code;
  weight.bits = 4;
  weight.group_size = 32;
  weight.scale_dtype = DType::F8_E8M0;
  for (size_t i = 0; i < powers.size() * 32; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(i % 16));
  for (const int power : powers) weight.scales_OG.push_back(std::ldexp(1.0f, power));
  return weight;
}

TEST(Mxfp4AsNvfp4, EighteenPowersOfTwoFit) {
  using namespace compress;
  for (const int largest : {-118, -20, 0, 20, 127}) {
    SCOPED_TRACE(largest);
    const QuantizedWeight fits = mxfp4_weight({largest, largest - 17, largest - 3});
    const std::optional<float> scale = tensor_scale_for_powers(*power_range(fits));
    ASSERT_TRUE(scale);
    const QuantizedWeight made = nvfp4_of_mxfp4(fits, *scale);
    EXPECT_NO_THROW(validate(made, "m"));
    EXPECT_EQ(made.codes_OI, fits.codes_OI);
    EXPECT_EQ(made.scales_OG, (std::vector<float>{256.0f, 256.0f, 0x1p-9f, 0x1p-9f, 32.0f, 32.0f}));
    if (largest < 120) {
      EXPECT_EQ(dequantize(made), dequantize(fits));  // else 6 * 2^127 is infinite
    }
    EXPECT_FALSE(tensor_scale_for_powers(*power_range(mxfp4_weight({largest, largest - 18}))));
    expect_error<std::invalid_argument>([&] { nvfp4_of_mxfp4(mxfp4_weight({largest - 18}), *scale); },
                                        {"block 0", "2^-9"});
  }
  // 2^127 would be the number for the whole, whose inverse is subnormal.
  EXPECT_FALSE(tensor_scale_for_powers({-119, -119}));
  // Halves of zeros, of either sign, need no scale of their own.
  QuantizedWeight zeros = mxfp4_weight({0, -100});
  for (size_t i = 16; i < 64; ++i) zeros.codes_OI[i] = i % 2 == 0 ? 0 : 8;
  EXPECT_EQ(power_range(zeros)->smallest, 0);
  const QuantizedWeight made = nvfp4_of_mxfp4(zeros, *tensor_scale_for_powers(*power_range(zeros)));
  EXPECT_EQ(made.scales_OG, (std::vector<float>{256.0f, 1.0f, 1.0f, 1.0f}));
  EXPECT_EQ(dequantize(made), dequantize(zeros));
  zeros.codes_OI.assign(64, 8);
  EXPECT_FALSE(power_range(zeros));
  zeros.code = &kNvfp4Code;
  expect_error<std::invalid_argument>([&] { nvfp4_of_mxfp4(zeros, 1.0f); }, {"expected codes of mxfp4", "nvfp4"});
}

// A row that float16 makes zeros of is lost, however small it is beside the others. One of zeros loses nothing.
TEST_F(Transcode, ScalesAreJudgedRowByRow) {
  for (const float factor : {0x1p-30f, 0.0f}) {
    SCOPED_TRACE(factor);
    const std::string name = factor == 0.0f ? "zeros" : "small";
    copy_changed("llama_gqa_untied", name, kUp, [&](std::vector<float>& values, int64_t num_in) {
      for (int64_t column = 0; column < num_in; ++column) values[5 * num_in + column] *= factor;
    });
    make(at(name).string(), name + "-ct", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
    for (const char* const format : {"gptq", "awq-gemm"}) {
      SCOPED_TRACE(format);
      const Json result = export_to(name + "-ct", name + "-" + format, format);
      EXPECT_EQ(passage_of(result, kUp), factor == 0.0f ? "codes and scales unchanged" : "decoded") << result;
      if (factor == 0.0f) continue;
      refused(name + "-ct", format, {"--lossless", kUp, "float16", "row 5"}, "--lossless");
      const Checkpoint source = Checkpoint::open(at(name + "-ct")), written = Checkpoint::open(at(name + "-" + format));
      for (const LinearDescription& linear : stored_linears(source)) {
        if (linear.name != kUp) continue;
        const std::vector<float> before = weight(source, linear), after = weight(written, linear);
        for (int64_t i = 5 * linear.num_in; i < 6 * linear.num_in; ++i) {
          // The model's own type rounds by at most 2^-9.
          EXPECT_NEAR(after[i], before[i], std::abs(before[i]) * 0x1p-9f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace pare::test
