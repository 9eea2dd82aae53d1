// Files that pare writes, read back by the packages that define their formats: safetensors, numpy and
// compressed-tensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/pare_sparse24.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

QuantizedWeight random_weight(std::mt19937& generator, int bits, bool in_groups, bool symmetric, DType scale_dtype) {
  QuantizedWeight weight;
  weight.num_out = in_groups ? 11 : 9;
  weight.num_in = in_groups ? 128 : 45;
  weight.bits = bits;
  weight.group_size = in_groups ? 64 : kPerChannel;
  weight.symmetric = symmetric;
  weight.scale_dtype = scale_dtype;
  const auto random_code = [&] { return static_cast<uint8_t>(generator() & ((1u << bits) - 1)); };
  for (int64_t i = 0; i < weight.num_out * weight.num_in; ++i) weight.codes_OI.push_back(random_code());
  for (int64_t i = 0; i < weight.num_out * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(round_to(0.01f + static_cast<float>(generator() % 1000) / 777, scale_dtype));
    if (!symmetric) weight.zeros_OG.push_back(random_code());
  }
  return weight;
}

std::vector<NamedTensor> named(const std::vector<OwnedTensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const OwnedTensor& tensor : tensors) result.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  return result;
}

void write_packed(const std::filesystem::path& folder) {
  std::mt19937 generator(11);
  std::vector<OwnedTensor> tensors;
  std::vector<StoredModule> modules;
  for (int bits : {2, 3, 4, 8}) {
    for (bool in_groups : {true, false}) {
      for (bool symmetric : {true, false}) {
        const DType dtype = in_groups == symmetric ? DType::BF16 : bits == 4 ? DType::F32 : DType::F16;
        const QuantizedWeight weight = random_weight(generator, bits, in_groups, symmetric, dtype);
        const std::string name = "module" + std::to_string(modules.size());
        for (OwnedTensor& tensor : pack_compressed_tensors(weight, name)) tensors.push_back(std::move(tensor));
        const std::vector<float> dense = dequantize(weight);
        const auto bytes = std::as_bytes(std::span(dense));
        tensors.push_back(
            {name + ".expected", DType::F32, {weight.num_out, weight.num_in}, {bytes.begin(), bytes.end()}});
        modules.push_back({name, {.bits = bits, .group_size = weight.group_size, .symmetric = symmetric}});
      }
    }
  }
  write_safetensors(folder / "packed.safetensors", named(tensors));
  write_file_atomically(folder / "mixed.json", quantization_config_json(modules, std::vector<std::string>{"lm_head"}));
  modules.resize(1);
  write_file_atomically(folder / "single.json", quantization_config_json(modules, std::vector<std::string>{"lm_head"}));
}

OwnedTensor expected_tensor(const std::string& module, const StoredLinear& linear) {
  return make_tensor<float>(module + ".expected", DType::F32, {linear.weight.num_out, linear.weight.num_in},
                            dequantize(linear.weight));
}

// Writes every container of compressed-tensors into one file, with the mixed-precision configuration that describes
// them.
void write_containers(const std::filesystem::path& folder) {
  std::mt19937 generator(12);
  std::vector<OwnedTensor> tensors;
  std::vector<StoredModule> modules;
  const auto add = [&](StoredLinear linear, PackScheme scheme) {
    const std::string name = "module" + std::to_string(modules.size());
    linear.input = scheme.input;
    if (linear.input.has_stored_scale()) {
      linear.input.scale = 0.25f;
      linear.input.zero = linear.input.symmetric ? 0 : -7;
    }
    for (OwnedTensor& tensor : pack_compressed_tensors(linear, scheme, name)) tensors.push_back(std::move(tensor));
    tensors.push_back(expected_tensor(name, linear));
    modules.push_back({name, scheme});
  };
  const InputFormat tokens{.type = InputType::int8};
  const InputFormat fixed{.type = InputType::int8, .range = InputRange::static_, .symmetric = false};
  const InputFormat floats{.type = InputType::fp8, .range = InputRange::static_};
  StoredLinear linear;
  linear.weight = random_weight(generator, 8, false, true, DType::BF16);
  add(linear, {.bits = 8, .layout = CodeLayout::bytes, .input = tokens});
  add(linear, {.bits = 8, .layout = CodeLayout::bytes, .input = fixed});
  linear.weight.scales_OG.assign(9, 0.375f);
  add(linear, {.bits = 8, .layout = CodeLayout::bytes, .per_tensor = true, .input = fixed});
  linear.weight = random_weight(generator, 4, true, true, DType::F16);
  add(linear, {.bits = 4, .group_size = 64, .input = tokens});
  linear.weight = random_weight(generator, 4, true, false, DType::F16);
  add(linear, {.bits = 4, .group_size = 64, .symmetric = false, .input = tokens});
  QuantizedWeight float8;
  float8.num_out = 9;
  float8.num_in = 45;
  float8.code = &kFp8Code;
  float8.bits = 8;
  for (int i = 0; i < 9 * 45; ++i) float8.codes_OI.push_back(static_cast<uint8_t>(generator() % 256 & 0xfe));  // no NaN
  for (int row = 0; row < 9; ++row) float8.scales_OG.push_back(0.5f + 0.125f * static_cast<float>(row));
  linear.weight = float8;
  add(linear, {.code = &kFp8Code, .bits = 8, .input = {.type = InputType::fp8}});
  float8.scales_OG.assign(9, 2.5f);
  linear.weight = float8;
  add(linear, {.code = &kFp8Code, .bits = 8, .per_tensor = true, .input = floats});
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
    QuantizedWeight weight = random_weight(generator, 4, true, true, *code->scale_dtype);
    weight.code = code;
    weight.group_size = code->block;
    weight.scales_OG.clear();
    for (int64_t i = 0; i < weight.num_out * weight.num_groups(); ++i) {
      weight.scales_OG.push_back(round_to(0.01f + static_cast<float>(generator() % 1000) / 77, weight.scale_dtype));
    }
    if (code->has_tensor_scale) weight.tensor_scale = 1234.5f;
    linear.weight = weight;
    add(linear, {.code = code, .bits = 4, .group_size = code->block});
    if (code == &kNvfp4Code) {
      add(linear, {.code = code, .bits = 4, .group_size = code->block, .input = {.type = InputType::nvfp4}});
    }
  }
  write_safetensors(folder / "containers.safetensors", named(tensors));
  write_file_atomically(folder / "containers.json", quantization_config_json(modules, {}));
}

void write_awq(const std::filesystem::path& folder) {
  std::mt19937 generator(13);
  std::vector<OwnedTensor> tensors;
  for (const bool symmetric : {false, true}) {
    QuantizedWeight weight = random_weight(generator, 4, true, symmetric, DType::F16);
    weight.num_out = 8;
    weight.codes_OI.resize(8 * 128);
    weight.scales_OG.resize(8 * 2);
    if (!symmetric) weight.zeros_OG.resize(8 * 2);
    const std::string name = symmetric ? "symmetric" : "asymmetric";
    for (OwnedTensor& tensor : pack_awq_gemm(weight, name)) tensors.push_back(std::move(tensor));
    tensors.push_back(expected_tensor(name, {weight}));
  }
  write_safetensors(folder / "awq.safetensors", named(tensors));
  write_file_atomically(folder / "awq.json", awq_config_json(64, std::vector<std::string>{"lm_head"}));
}

void write_int8(const std::filesystem::path& folder) {
  std::mt19937 generator(14);
  const QuantizedWeight weight = random_weight(generator, 8, false, true, DType::BF16);
  std::vector<OwnedTensor> tensors = pack_bitsandbytes_int8(weight, "m");
  tensors.push_back(expected_tensor("m", {weight}));
  write_safetensors(folder / "int8.safetensors", named(tensors));
  write_file_atomically(folder / "int8.json", bitsandbytes_config_json(6.0f, std::vector<std::string>{"lm_head"}));
}

// Writes weights [6, 64] that keep two of four or all. "expected" is what a reader must decode.
void write_sparse24(const std::filesystem::path& folder) {
  std::mt19937 generator(15);
  std::vector<OwnedTensor> tensors;
  std::vector<StoredModule> modules;
  const auto add = [&](const PackScheme& wanted, DType dtype) {
    const PackScheme scheme = pare_sparse24_container().adapted(wanted);
    const std::string name = "module" + std::to_string(modules.size());
    StoredLinear linear;
    QuantizedWeight& weight = linear.weight;
    linear.input = scheme.input;
    linear.input.scale = scheme.input.range == InputRange::static_ ? 0.25f : 0.0f;
    linear.input.zero = scheme.input.symmetric ? 0 : -7;
    weight.num_out = 6;
    weight.num_in = 64;
    weight.pattern = scheme.pattern;
    std::vector<bool> pruned(6 * 64, false);
    for (size_t i = 0; i < pruned.size() && !scheme.pattern.is_dense(); i += 4) {
      const size_t first = generator() % 4;
      pruned[i + first] = pruned[i + (first + 1 + generator() % 3) % 4] = true;
      if (generator() % 4 == 0) pruned[i + generator() % 4] = true;
    }
    if (scheme.is_dense()) {
      std::vector<float> values;
      for (const bool zero : pruned) values.push_back(zero ? 0.0f : static_cast<float>(generator() % 512) / 64 - 4);
      linear.dense_dtype = dtype;
      linear.dense_OI.resize(values.size() * dtype_size_bytes(dtype));
      convert_from_float(dtype, values, linear.dense_OI);
    } else {
      weight.bits = scheme.bits;
      weight.group_size = scheme.group_size;
      weight.symmetric = scheme.symmetric;
      weight.scale_dtype = dtype;
      for (int64_t i = 0; i < 6 * weight.num_groups(); ++i) {
        weight.scales_OG.push_back(scheme.per_tensor ? 0.5f : round_to(0.01f + (generator() % 1000) / 777.0f, dtype));
        if (!scheme.symmetric) {
          weight.zeros_OG.push_back(scheme.per_tensor ? 1 : static_cast<uint8_t>(generator() % (1u << scheme.bits)));
        }
      }
      for (int64_t i = 0; i < 6 * 64; ++i) {
        const auto code = static_cast<uint8_t>(generator() % (1u << scheme.bits));
        const auto zero = static_cast<uint8_t>(weight.zero(i / 64, weight.group(i % 64)));
        weight.codes_OI.push_back(pruned[static_cast<size_t>(i)] ? zero : code);
      }
    }
    for (OwnedTensor& tensor : pack_linear(linear, scheme, name)) tensors.push_back(std::move(tensor));
    tensors.push_back(make_tensor<float>(name + ".expected", DType::F32, {6, 64}, effective_weight(linear)));
    modules.push_back({name, scheme});
  };
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    add({.code = nullptr, .bits = kDenseBits, .pattern = kTwoOfFour}, dtype);
    for (const int bits : {2, 3, 4, 8}) {
      for (const SparsePattern pattern : {kTwoOfFour, SparsePattern{}}) {
        add({.bits = bits, .group_size = 16, .pattern = pattern}, dtype);
        add({.bits = bits, .group_size = 32, .symmetric = false, .pattern = pattern}, dtype);
        add({.bits = bits, .symmetric = false, .per_tensor = true, .pattern = pattern}, dtype);
      }
    }
  }
  const InputFormat fixed{.type = InputType::int8, .range = InputRange::static_, .symmetric = false};
  add({.bits = 8, .input = fixed, .pattern = kTwoOfFour}, DType::BF16);
  write_safetensors(folder / "sparse24.safetensors", named(tensors));
  write_file_atomically(folder / "sparse24.json",
                        pare_sparse24_config_json(modules, std::vector<std::string>{"lm_head"}));
}

// check_formats.py is the other half: it has the same closed forms and fails with a message.
TEST(FormatsPython, ThePackagesReadWhatPareWrites) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON must name a Python with the packages of tests/requirements.txt: "
                                "run `make test`, which sets it up";
  TemporaryFolder folder;
  TokenWindows windows{.num_windows = 4, .num_tokens = 7, .ids_NT = {}};
  for (int i = 0; i < 28; ++i) windows.ids_NT.push_back(3 * i);
  write_npy(folder.path() / "windows.npy", windows);
  std::vector<float> floats(15);
  for (int i = 0; i < 15; ++i) floats[static_cast<size_t>(i)] = static_cast<float>(i) / 8 - 1;
  std::vector<NamedTensor> tensors;
  std::vector<std::byte> halves[2] = {std::vector<std::byte>(30), std::vector<std::byte>(30)};
  convert_from_float(DType::BF16, floats, halves[0]);
  convert_from_float(DType::F16, floats, halves[1]);
  tensors.push_back({"float32", DType::F32, {3, 5}, std::as_bytes(std::span(floats))});
  tensors.push_back({"bfloat16", DType::BF16, {5, 3}, halves[0]});
  tensors.push_back({"float16", DType::F16, {15}, halves[1]});
  write_safetensors(folder.path() / "plain.safetensors", tensors);
  write_packed(folder.path());
  write_containers(folder.path());
  write_awq(folder.path());
  write_int8(folder.path());
  write_sparse24(folder.path());
  const std::filesystem::path log = folder.path() / "log";
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/runtime/containers/check_formats.py' '" + folder.path().string() + "' > '" +
                              log.string() + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text_file(log);
}

}  // namespace
}  // namespace pare
